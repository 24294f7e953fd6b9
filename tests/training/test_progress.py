"""What is shown and logged while a run trains."""

import io
import json
import re
import signal
import sys
import types
from pathlib import Path

import pytest
import torch
from rich.console import Console

from comastre.training.checkpoint import Position
from comastre.training.finiteness import LossWatch
from comastre.training.metrics import lines_until
from comastre.training.progress import RunProgress
from comastre.training.stopping import Diverged, Interrupted, StopRequest

TERMS = {"total": 16.812, "objectness": 1.4, "mask_bce": 0.25, "mask_dice": 0.5, "classification": 2.0, "score_kd": 0.1}
TERMS |= {f"another_long_term_{number}": 1.0 for number in range(6)}


def shown(terminal: bool, quiet: bool = False, width: int = 200, scoring: bool = False) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=width, color_system=None)
    with RunProgress((100, 50), batch_size=4, console=console, quiet=quiet) as progress:
        progress.begin_step(0, 40, "12 images")
        progress.advance(50)
        progress.log(0, 50, TERMS if terminal else {"total": 1.5, "mask_bce": 0.25})
        if scoring:
            progress.begin_evaluation(0, 30)
            progress.scored(12)
    return text.getvalue()


def last_line(text: str) -> str:
    """What is on the screen in the end."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").strip().splitlines()[-1]


def test_plain_lines_where_there_is_no_terminal():
    first, second = shown(terminal=False).splitlines()
    assert first == "step 1/2: 12 images, going on at iteration 40"
    assert second.startswith("step 1/2 50/100 · ")
    assert re.search(r" left · [\d.]+ images/s · total 1.500 mask_bce 0.250$", second)


@pytest.mark.parametrize(("width", "terms"), [(40, 0), (80, 1), (120, 3), (240, 8)])
def test_bar_step_and_time_left_come_first_and_as_many_losses_as_fit(
    width: int, terms: int, monkeypatch: pytest.MonkeyPatch
):
    now = iter([100.0, 103.2])
    monkeypatch.setattr("comastre.training.progress.time.perf_counter", lambda: next(now))
    line = last_line(shown(terminal=True, width=width))
    assert len(line) < width  # one line, not two
    assert re.match(r"step 1/2 [━╸╺ ]{16} 50/100", line)
    if width >= 80:
        assert re.search(r"50/100 · \d+:\d\d left · [\d,.]+ images/s", line)
    assert "…" not in line and "going on" not in line
    found = [name for name in TERMS if f"{name} " in line]
    assert found == list(TERMS)[:terms]  # in their order, the total first


def test_scoring_shows_how_far_it_is():
    assert re.match(r"step 1/2 scoring [━╸╺ ]{16} 12/30 · images", last_line(shown(terminal=True, scoring=True)))
    assert shown(terminal=False, scoring=True).splitlines()[-1] == "step 1/2: evaluation on 30 images"


def test_a_notebook_gets_one_line_in_place(monkeypatch: pytest.MonkeyPatch):
    lines: list[list[str]] = []

    class Shown:
        def __init__(self, content: dict[str, str]) -> None:
            self.said = [content["text/plain"]]
            lines.append(self.said)

        def update(self, content: dict[str, str], raw: bool) -> None:
            self.said.append(content["text/plain"])

    notebook = types.ModuleType("IPython.display")
    notebook.display = lambda content, raw, display_id: Shown(content)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    clock = iter(range(1000))
    monkeypatch.setattr("comastre.live_line.time.monotonic", lambda: float(next(clock)))
    console = Console(file=io.StringIO(), force_jupyter=True)
    with RunProgress((100,), batch_size=4, console=console) as progress:
        progress.begin_step(0, 0, "12 images")
        progress.advance(100)
    (said,) = lines
    assert said[0].startswith("step 1/1 ░░░") and said[-1].startswith("step 1/1 ███") and "100/100" in said[-1]


def test_where_nothing_can_be_written_the_run_goes_on():
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    with RunProgress((2,), batch_size=1, console=Console(file=Full())) as progress:
        progress.begin_step(0, 0, "12 images")
        progress.advance(1)
        progress.log(0, 1, {"total": 1.0})
    assert progress.images_per_second > 0


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
