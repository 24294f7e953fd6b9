"""The whole program on Shapes, small: real model, losses, evaluation and bundles in the loop."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comastre.bundle import history
from comastre.bundle.store import load
from comastre.config.run import RunConfig
from comastre.config.settings import write_config
from comastre.stream.loading import training_batches
from comastre.training.parts import default_parts
from comastre.training.run import run
from comastre.training.stopping import Interrupted


def real_config(method: str = "comastre", **training: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "method": method,
            "size": "tiny",
            # So that a new model starts as the old one: BatchNorm that follows a batch differs from the old one's.
            "backbone": {"freeze_batch_norm": "later"},
            "data": {"crop": 64, "train_images": 40, "val_images": 5, "workers": 0},
            "continual": {"setting": "8-2"},
            "comastre": {
                "matching": {"points": 128},
                "masks": {"points": 128},
                "optimiser": {"learning_rate": 1e-3},
            },
            "training": {
                "iterations": 20,
                "iterations_per_class": 1,
                "batch_size": 4,
                "accelerator": "cpu",
                "log_every": 1,
                **training,
            },
        }
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("real") / "run"
    run(real_config(), out)
    return out


def metrics(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_it_learns_and_leaves_a_bundle_per_step(finished: Path):
    totals = [line["total"] for line in metrics(finished) if line["step"] == 0]
    assert sum(totals[-5:]) < sum(totals[:5])
    for step, classes in (("00", 8), ("01", 10)):
        bundle = load(finished / "steps" / step)
        assert len(bundle.classes.names) == classes
        assert len(bundle.classes.lineage) == len(bundle.model.tasks) == int(step) + 1
    # A later step says which model it began with, by which `comastre undo` and `learn --continue` find it.
    assert [each.parent for each in bundle.classes.lineage] == [None, history.digest(finished / "steps" / "00")]
    assert bundle.classes.lineage[0] == load(finished / "steps" / "00").classes.lineage[0]
    assert history.parent_of(finished / "steps" / "01").name == "00"


def test_later_steps_distil_from_the_old_model(finished: Path):
    first, later = ([line for line in metrics(finished) if line["step"] == step] for step in (0, 1))
    assert not any("mask_kd_bce" in line for line in first)
    # Zero at first, when the new model still is the old one.
    assert later[0]["position_kd"] < later[-1]["position_kd"]


def stopping_in_step_1(data: Any, task: Any, *rest: Any) -> Iterator[Any]:
    for batch in training_batches(data, task, *rest):
        if (task.step, batch[0].iteration) == (1, 0):
            os.kill(os.getpid(), signal.SIGTERM)
        yield batch


def test_interrupted_and_resumed_it_ends_bit_identical(tmp_path: Path, finished: Path):
    with pytest.raises(Interrupted, match="step 2/2 after 1 of 2"):
        run(real_config(), tmp_path / "run", parts=replace(default_parts(), batches=stopping_in_step_1))
    run(real_config(), tmp_path / "run")
    for step in ("00", "01"):
        weights = Path("steps") / step / "model.safetensors"
        assert (tmp_path / "run" / weights).read_bytes() == (finished / weights).read_bytes()


@pytest.mark.parametrize("method", ["finetune", "joint"])
def test_the_other_methods_run_in_the_same_loop(tmp_path: Path, method: str):
    results = run(real_config(method, iterations=1), tmp_path / "run")
    assert [len(step.new_classes) for step in results.steps] == ([10] if method == "joint" else [8, 2])
    names = {name for line in metrics(tmp_path / "run") for name in line}
    assert {"objectness", "mask_bce", "mask_dice", "classification"} <= names
    assert not any("kd" in name or name == "auxiliary" for name in names)


def test_two_devices_give_the_losses_and_scores_of_one(tmp_path: Path, finished: Path):
    """From the command line; BatchNorm follows the data in the 20 iterations of the first step."""
    write_config(real_config(), tmp_path / "config.yaml")
    start = [sys.executable, "-c", "import sys; from comastre.cli.main import main; sys.exit(main())"]
    command = [
        *start,
        "train",
        str(tmp_path / "config.yaml"),
        "--training.devices",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"The report is {tmp_path / 'run' / 'report.html'}\n")
    one, two = metrics(finished), metrics(tmp_path / "run")
    assert [line["step"] for line in two] == [0] * 20 + [1] * 2
    for first, second in zip(one, two, strict=True):
        assert first.keys() == second.keys()
        for term in first.keys() - {"images_per_second"}:
            assert first[term] == pytest.approx(second[term], abs=1e-4), (term, first["step"], first["iteration"])
    results = [json.loads((out / "results.json").read_text())["steps"] for out in (finished, tmp_path / "run")]
    for first, second in zip(*results, strict=True):
        assert first["per_class"] == pytest.approx(second["per_class"], abs=0.1)
        assert first["recall"] == pytest.approx(second["recall"], abs=0.1)
        assert first["errors"] == second["errors"]


def test_every_step_leaves_examples_for_the_report_and_its_environment(finished: Path):
    index = json.loads((finished / "examples" / "index.json").read_text())
    assert 0 < len(index["images"]) <= 5
    for part in ("image", "truth", "step-00", "step-01"):
        assert len(list((finished / "examples" / part).iterdir())) == len(index["images"])
    environment = json.loads((finished / "environment.json").read_text())
    assert {"comastre", "torch", "python", "device"} <= environment.keys()


def no_pictures(*args: Any) -> None:
    raise RuntimeError("no pictures today")


def test_a_run_does_not_end_for_want_of_examples(tmp_path: Path, finished: Path, capfd: pytest.CaptureFixture[str]):
    run(real_config(), tmp_path / "run", parts=replace(default_parts(), examples=no_pictures))
    assert capfd.readouterr().err.count("the report will lack examples of step") == 2
    assert not (tmp_path / "run" / "examples").exists()
    for step in ("00", "01"):  # and with examples nothing else is learned than without
        weights = Path("steps") / step / "model.safetensors"
        assert (tmp_path / "run" / weights).read_bytes() == (finished / weights).read_bytes()
