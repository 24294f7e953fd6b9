"""How long an iteration takes is measured without leaving a trace."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import TINY, TinyMethod, start_from, tiny_config

from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.stream.loading import training_batches
from comastre.training import pace
from comastre.training.pace import seconds_per_iteration
from comastre.training.parts import Parts
from comastre.training.run import run
from comastre.training.stopping import Interrupted


class Clock:
    """Batches that take so long as given, one after the other, the last one ever after."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.steps: list[int] = []

    def parts(self, parts: Parts = TINY) -> Parts:
        def batches(data: Any, task: Any, *rest: Any) -> Iterator[Any]:
            for number, batch in enumerate(training_batches(data, task, *rest)):
                self.steps.append(task.step)
                time.sleep(self.seconds[min(number, len(self.seconds) - 1)])
                yield batch

        return replace(parts, batches=batches)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is written by mistake would be seen."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not [path for path in tmp_path.iterdir() if path.name != "base"]


def without_hooks() -> Parts:
    """As most methods: nothing to measure before a step, so that only iterations draw batches."""

    class Plain(TinyMethod):
        def losses(self, model: Any, batch: Any, points: Any) -> Any:
            self.brightness = torch.zeros(())
            return super().losses(model, batch, points)

        def before_training(self, model: Any, batches: Any) -> None:
            pass

    return replace(TINY, method=Plain)


def test_the_median_without_the_first_iteration():
    clock = Clock(0.6, 0.05, 0.4, 0.05)
    seconds = seconds_per_iteration(tiny_config(), clock.parts(without_hooks()))
    assert 0.05 <= seconds < 0.3
    assert clock.steps == [0] * 10  # the most, as they are quick


def test_slow_iterations_are_measured_fewer_times_but_never_too_few(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "_LONG_ENOUGH", 0.01)
    clock = Clock(0.02)
    assert seconds_per_iteration(tiny_config(), clock.parts(without_hooks())) >= 0.02
    assert clock.steps == [0] * 3


def test_a_step_of_one_iteration_can_be_measured():
    clock = Clock(0.0)
    assert seconds_per_iteration(tiny_config(iterations=1), clock.parts(without_hooks())) > 0


def test_a_method_that_looks_at_its_images_first_does_so_here_too():
    """What it finds there acts in its losses."""
    assert seconds_per_iteration(tiny_config(iterations=1), TINY) > 0


def test_the_step_after_a_start_is_measured(tmp_path: Path):
    run(tiny_config(iterations=1, iterations_per_class=1), tmp_path / "base", parts=TINY)
    before = {path: path.read_bytes() for path in (tmp_path / "base").rglob("*") if path.is_file()}
    clock = Clock(0.0)
    start = start_from(tmp_path / "base")
    assert seconds_per_iteration(tiny_config(), clock.parts(without_hooks()), start) > 0
    assert set(clock.steps) == {1}
    assert {path: path.read_bytes() for path in (tmp_path / "base").rglob("*") if path.is_file()} == before


def test_a_signal_ends_it():
    def batches(data: Any, task: Any, *rest: Any) -> Iterator[Any]:
        for batch in training_batches(data, task, *rest):
            os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped while the speed of this machine was measured") as caught:
        seconds_per_iteration(tiny_config(), replace(without_hooks(), batches=batches))
    assert caught.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is handler


def test_bad_data_is_refused_as_in_a_run():
    def refuse(config: RunConfig) -> Any:
        raise UserError("no such data")

    with pytest.raises(UserError, match="no such data"):
        seconds_per_iteration(tiny_config(), replace(TINY, data=refuse))


def test_what_is_learned_afterwards_is_the_same(tmp_path: Path):
    config = tiny_config(iterations=2, iterations_per_class=1)
    out = tmp_path / "base"
    run(config, out / "plain", parts=TINY)
    seconds_per_iteration(config, without_hooks())
    run(config, out / "measured", parts=TINY)
    for step in ("00", "02"):
        weights = Path("steps") / step / "model.safetensors"
        assert (out / "measured" / weights).read_bytes() == (out / "plain" / weights).read_bytes()
