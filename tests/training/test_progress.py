"""What is shown and logged while a run trains."""

import io
import json
import signal
from pathlib import Path

import pytest
import torch
from rich.console import Console

from comastre.training.checkpoint import Position
from comastre.training.finiteness import LossWatch
from comastre.training.metrics import lines_until
from comastre.training.progress import RunProgress
from comastre.training.stopping import Diverged, Interrupted, StopRequest


def shown(terminal: bool, quiet: bool = False) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None)
    with RunProgress((100, 50), batch_size=4, console=console, quiet=quiet) as progress:
        progress.begin_step(0, 40, "12 images")
        progress.advance(50)
        progress.log(0, 50, {"total": 1.5, "mask_bce": 0.25})
    return text.getvalue()


def test_plain_lines_where_there_is_no_terminal():
    first, second = shown(terminal=False).splitlines()
    assert first == "step 1/2: 12 images, going on at iteration 40"
    assert second.startswith("step 1/2 50/100 total 1.500 mask_bce 0.250 · ")
    assert second.endswith(" left")
    assert " images/s" in second


def test_a_live_bar_on_a_terminal():
    text = shown(terminal=True)
    assert "step 1/2" in text
    assert "50/100 total 1.500 mask_bce 0.250" in text
    assert "going on" not in text


def test_other_processes_are_quiet():
    assert shown(terminal=False, quiet=True) == ""
    assert shown(terminal=True, quiet=True) == ""


def test_time_left_counts_all_steps(monkeypatch: pytest.MonkeyPatch):
    now = iter([100.0, 110.0])
    monkeypatch.setattr("comastre.training.progress.time.perf_counter", lambda: next(now))
    progress = RunProgress((100, 50), batch_size=4, console=Console(file=io.StringIO()))
    progress.begin_step(0, 40, "")
    progress.advance(60)  # 20 iterations of 4 images in 10 seconds
    assert progress.images_per_second == 8.0
    assert progress.time_left(0, 60) == "0:45"  # 40 + 50 iterations at 2 per second


def test_logged_lines_after_the_checkpoint_and_cut_lines_are_dropped(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "iteration": i}) + "\n" for step, i in [(0, 1), (0, 9), (1, 1), (1, 2), (1, 3)]]
    path.write_text("".join(lines) + '{"step": 1, "iter')
    assert lines_until(path, Position(1, 2)) == lines[:4]
    assert lines_until(path, Position(1, 0)) == lines[:2]
    assert lines_until(path, Position()) == []
    # A whole document without its line end may still be cut short: 12 of 123.
    path.write_text(lines[0] + lines[1].strip())
    assert lines_until(path, Position(1, 0)) == lines[:1]


def test_a_bad_term_is_named_with_its_images():
    watch = LossWatch()
    watch.watch({"first": torch.tensor(1.0), "second": torch.tensor(2.0)}, 1, 6, ("a", "b"))
    with pytest.raises(Diverged, match="term second became nan at step 1, iteration 7 on images c, d"):
        watch.watch({"first": torch.tensor(1.0), "second": torch.tensor(float("nan"))}, 1, 7, ("c", "d"))


def test_a_second_ctrl_c_is_obeyed_at_once(monkeypatch: pytest.MonkeyPatch):
    now = iter([10.0, 10.5, 12.0, 12.0])
    monkeypatch.setattr("comastre.training.stopping.time.monotonic", lambda: next(now))
    with StopRequest().listening() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # half a second later: the same key press, passed on by a parent
        assert stop.signal_number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_that_came_before_ends_what_need_not_be_waited_for():
    with StopRequest().listening() as stop:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted, match="saved"), stop.at_once("saved"):
            pytest.fail("it was begun")
