"""Several processes end together, and tell their caller why; `test_real_run` compares what they learn."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import TINY, TinyMethod, tiny_config

from comastre.config.run import TrainingConfig
from comastre.errors import UserError
from comastre.stream.loading import training_batches
from comastre.training.checkpoint import load_latest
from comastre.training.launch import build_fabric
from comastre.training.run import run
from comastre.training.stopping import Diverged, Interrupted


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
