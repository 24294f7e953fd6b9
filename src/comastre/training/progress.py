"""What a user sees while a run trains: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from comastre.text import readable_time


class RunProgress:
    """Step, iteration, loss terms, images per second and the time left of the whole run."""

    def __init__(
        self,
        iterations: tuple[int, ...],
        batch_size: int,
        console: Console | None = None,
        quiet: bool = False,
        title: str | None = None,
    ) -> None:
        """`iterations` of every step; `quiet` for all processes but the first; `title` in place of a step's number."""
        self._iterations = iterations
        self._title = title
        self._batch_size = batch_size
        self._quiet = quiet
        self._console = console or Console(stderr=True)
        live = self._console.is_terminal and not quiet
        self._bar = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.completed}/{task.total} {task.fields[details]}"),
                TimeElapsedColumn(),
                console=self._console,
            )
            if live
            else None
        )
        self._line: TaskID | None = None
        self._started = (0.0, 0)
        self._speed = 0.0

    @property
    def images_per_second(self) -> float:
        """Mean speed of this start, without evaluation."""
        return self._speed

    def title(self, step: int) -> str:
        """What a step is called."""
        return self._title or f"step {step + 1}/{len(self._iterations)}"

    def begin_step(self, step: int, done: int, what: str) -> None:
        """A step begins or goes on after `done` iterations."""
        self._started = (time.perf_counter(), done)
        title = self.title(step)
        if self._bar is None:
            self.say(f"{title}: {what}" + (f", going on at iteration {done}" if done else ""))
        else:
            if self._line is not None:
                self._bar.remove_task(self._line)
            self._line = self._bar.add_task(title, total=self._iterations[step], completed=done, details=what)

    def advance(self, iteration: int) -> None:
        """`iteration` iterations of the step are done."""
        began, first = self._started
        passed = time.perf_counter() - began
        self._speed = (iteration - first) * self._batch_size / passed if passed > 0 else 0.0
        if self._bar is not None and self._line is not None:
            self._bar.update(self._line, completed=iteration)

    def log(self, step: int, iteration: int, values: dict[str, float]) -> None:
        """Show the values of a logged iteration."""
        terms = " ".join(f"{name} {value:.3f}" for name, value in values.items())
        details = f"{terms} · {self._speed:.1f} images/s · {self.time_left(step, iteration)} left"
        if self._bar is not None and self._line is not None:
            self._bar.update(self._line, details=details)
        else:
            self.say(f"{self.title(step)} {iteration}/{self._iterations[step]} {details}")

    def time_left(self, step: int, iteration: int) -> str:
        """Time to the end of the last step at the present speed, without evaluations."""
        remaining = self._iterations[step] - iteration + sum(self._iterations[step + 1 :])
        return readable_time(remaining * self._batch_size / self._speed) if self._speed > 0 else "?"

    def say(self, message: str) -> None:
        """One plain line."""
        if not self._quiet:
            self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
