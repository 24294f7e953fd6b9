"""SIGKILL at any moment, then the same command again: the same weights, results and logs, bit for bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import torch
from safetensors.torch import load_file

from comastre.training.checkpoint import load

RUNS = [*tiny_run.KILLS, "everywhere"]
STARTS = [*tiny_run.STARTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    script = [sys.executable, tiny_run.__file__, str(folder)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return folder


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in ("seconds", "images_per_second")}
    return [without_times(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", RUNS + STARTS)
def test_every_run_was_really_killed_and_then_finished(folder: Path, name: str):
    *killed, last = json.loads((folder / "statuses.json").read_text())[name]
    assert set(killed) == {-signal.SIGKILL}
    assert last == 0


@pytest.mark.parametrize("name", RUNS + STARTS)
def test_weights_of_every_step_are_bit_identical(folder: Path, name: str):
    for step in ("00", "01", "02"):
        expected = load_file(folder / "reference" / "steps" / step / "model.safetensors")
        found = load_file(folder / name / "steps" / step / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", RUNS + STARTS)
def test_results_and_metrics_are_the_same_without_doubles(folder: Path, name: str):
    expected, found = (json.loads((folder / run / "results.json").read_text()) for run in ("reference", name))
    assert without_times(found) == without_times(expected)
    expected, found = (
        [without_times(json.loads(line)) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("reference", name)
    )
    assert [(line["step"], line["iteration"]) for line in expected] == [
        *((0, i) for i in range(1, 7)),
        *((step, i) for step in (1, 2) for i in range(1, 6)),
    ]
    # A run that starts from a model has nothing to say of the steps that were learned elsewhere.
    assert found == [line for line in expected if name in RUNS or line["step"] > 0]


def test_training_changes_the_weights_of_every_step(folder: Path):
    """The comparison above would also pass on a run that learns nothing."""
    first, last = (load_file(folder / "reference" / "steps" / step / "model.safetensors") for step in ("00", "02"))
    assert not torch.equal(first["backbone.0.weight"], last["backbone.0.weight"])
    # BatchNorm follows the data in the first step only.
    assert torch.equal(first["backbone.1.running_mean"], last["backbone.1.running_mean"])
    assert first["backbone.1.running_mean"].abs().sum() > 0


def test_nothing_half_written_is_left(folder: Path):
    for name in RUNS + STARTS:
        assert len(list((folder / name / "checkpoints").glob("*.safetensors"))) == 2
        assert not list((folder / name).rglob("*.partial"))


def test_what_a_method_does_around_a_step_is_seen(folder: Path):
    """The comparisons above would also pass on hooks that are never called."""
    checkpoints = folder / "reference" / "checkpoints"
    end, after = (
        load(checkpoints / f"step-{place}.safetensors") for place in ("02-iteration-00000005", "03-iteration-00000000")
    )
    assert 0 < end.method["brightness"].item() < 1
    assert {name.partition("/")[0] for name in end.method} == {"brightness", "old"}
    assert after.method == {}
    kept = load_file(folder / "reference" / "steps" / "02" / "model.safetensors")
    assert torch.equal(kept["heads.2.bias"], end.model["heads.2.bias"] - tiny_run.AFTERWARDS)
    assert torch.equal(after.model["heads.2.bias"], kept["heads.2.bias"])
    assert (end.tasks, after.tasks) == ((2, 1, 1), (2, 1, 1))
