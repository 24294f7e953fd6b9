"""Two processes on the CPU learn what one learns from the same global batch."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import TINY, TinyMethod, tiny_config

from comastre.config import TrainingConfig
from comastre.data.loading import training_batches
from comastre.errors import UserError
from comastre.training.checkpoint import load_latest
from comastre.training.launch import build_fabric
from comastre.training.run import run
from comastre.training.stopping import Diverged, Interrupted


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_give_the_losses_weights_and_scores_of_one(tmp_path: Path):
    # With frozen BatchNorm, because statistics are taken per process.
    one = run(tiny_config(frozen=True, iterations=20), tmp_path / "one", parts=TINY)
    two = run(tiny_config(frozen=True, iterations=20, devices=2), tmp_path / "two", parts=TINY)
    for first, second in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        for term in ("total", "recognition", "points", "memory"):
            assert first[term] == pytest.approx(second[term], abs=1e-4)
    weights, others = (load_file(tmp_path / name / "steps" / "02" / "model.safetensors") for name in ("one", "two"))
    torch.testing.assert_close(weights, others, atol=1e-4, rtol=1e-3)
    for first, second in zip(one.steps, two.steps, strict=True):
        assert first.per_class == pytest.approx(second.per_class, abs=1.0)


class Diverging(TinyMethod):
    """The loss of the second process breaks at the third iteration."""

    def _losses(self, model: Any, batch: Any, points: Any) -> Any:
        recognition, noise, memory = super()._losses(model, batch, points)
        bad = batch.iteration == 2 and batch.rows.start > 0
        return recognition / 0 if bad else recognition, noise, memory


def test_an_error_of_one_process_arrives_as_one_sentence(tmp_path: Path):
    with pytest.raises(Diverged, match="term recognition became inf at step 0, iteration 3"):
        run(tiny_config(frozen=True, devices=2), tmp_path / "run", parts=replace(TINY, method=Diverging))


def signal_to_second_process(data: Any, task: Any, *rest: Any) -> Iterator[Any]:
    for batch in training_batches(data, task, *rest):
        if batch[0].iteration == 2 and batch[0].rows.start > 0:
            os.kill(os.getpid(), signal.SIGTERM)
        yield batch


def test_a_signal_to_any_process_stops_all_at_the_same_iteration(tmp_path: Path):
    config = tiny_config(frozen=True, devices=2, checkpoint_every=100)
    with pytest.raises(Interrupted) as caught:
        run(config, tmp_path / "run", parts=replace(TINY, batches=signal_to_second_process))
    assert caught.value.exit_code == 143
    saved = load_latest(tmp_path / "run" / "checkpoints", pytest.fail)
    assert saved is not None
    assert saved.position.iteration == 3
    assert len(saved.random_states) == 2


def test_what_the_machine_lacks_is_one_sentence():
    if torch.cuda.is_available():
        pytest.skip("this machine has what the test asks for in vain")
    with pytest.raises(UserError, match="not possible here"):
        build_fabric(TrainingConfig(accelerator="cuda"))
