"""When a step ends, by iterations or by the clock, and what is said to be left of it."""

import pytest
from rich.console import Console

from comastre.training.checkpoint import Position
from comastre.training.clock import Clock, Times
from comastre.training.progress import RunProgress
from comastre.training.schedule import learning_rate_factor


def test_without_a_limit_iterations_end_a_step():
    clock = Clock(10)
    assert clock.used(Position(0, 9, 1e9)) == 0.0
    assert not clock.is_over(Position(0, 9, 1e9)) and clock.is_over(Position(0, 10, 1.0))


def test_a_step_ends_where_no_time_is_left_for_one_more_iteration():
    clock = Clock(10, seconds=20.0)
    assert not clock.is_over(Position(0, 0, 0.0)) and not clock.is_over(Position(0, 4, 16.0))
    assert clock.is_over(Position(0, 4, 16.1)) and clock.is_over(Position(0, 10, 3.0))
    assert clock.used(Position(0, 1, 5.0)) == 0.25 and clock.used(Position(0, 1, 50.0)) == 1.0


def test_the_rate_follows_what_is_ahead():
    assert learning_rate_factor(10, 100, 0, 1.0, by_clock=0.5) == pytest.approx(0.5)
    assert learning_rate_factor(60, 100, 0, 1.0, by_clock=0.5) == pytest.approx(0.4)
    assert learning_rate_factor(99, 100, 0, 0.9, by_clock=1.0) == 0.0


@pytest.mark.parametrize(
    ("times", "left"), [(Times(), "1:30"), (Times(scoring=30.0), "2:00"), (Times(40.0, 30.0), "1:00")]
)
def test_the_time_left_counts_the_scoring_and_the_limit(monkeypatch, times, left):
    now = [0.0]
    monkeypatch.setattr("comastre.training.progress.time.perf_counter", lambda: now[0])
    progress = RunProgress((100,), 2, Console(quiet=True), times=times)
    progress.begin_step(0, 0, "images")
    now[0] = 10.0
    progress.advance(10)  # a second each; with the limit 30 seconds are left of 40
    assert progress.time_left(0, 10) == left
