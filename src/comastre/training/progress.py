"""What a user sees while a run trains: a live bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console

from comastre.live_line import LiveLine
from comastre.text import readable_time
from comastre.training.clock import Times

SECONDS_BETWEEN_LINES = 30.0
"""Of an evaluation, where there is no live bar."""


class RunProgress:
    """Step, iteration, the time left of the whole run, images per second and loss terms; then the images scored."""

    def __init__(
        self,
        iterations: tuple[int, ...],
        batch_size: int,
        console: Console | None = None,
        quiet: bool = False,
        title: str | None = None,
        times: Times | None = None,
    ) -> None:
        """`iterations` of every step; `quiet` for all processes but the first; `title` in place of a step's number."""
        self._times = times or Times()
        self._iterations = iterations
        self._title = title
        self._batch_size = batch_size
        self._quiet = quiet
        self._line = LiveLine(console or Console(stderr=True), quiet)
        self._step = 0
        self._started = (0.0, 0)
        self._speed = 0.0
        self._scored = (0, 0)
        self._verb = "scoring"
        self._said = 0.0

    @property
    def images_per_second(self) -> float:
        """Mean speed of this start, without evaluation."""
        return self._speed

    def title(self, step: int) -> str:
        """What a step is called."""
        return self._title or f"step {step + 1}/{len(self._iterations)}"

    def begin_step(self, step: int, done: int, what: str) -> None:
        """A step begins or goes on after `done` iterations."""
        self._started, self._step = (time.perf_counter(), done), step
        if self._line.in_place:
            self._line.show(self.title(step), done, self._iterations[step], (what,))
        else:
            self.say(f"{self.title(step)}: {what}" + (f", going on at iteration {done}" if done else ""))

    def advance(self, iteration: int) -> None:
        """`iteration` iterations of the step are done."""
        began, first = self._started
        passed = time.perf_counter() - began
        self._speed = (iteration - first) * self._batch_size / passed if passed > 0 else 0.0
        self._line.show(self.title(self._step), iteration, self._iterations[self._step])

    def log(self, step: int, iteration: int, values: dict[str, float]) -> None:
        """Show the values of a logged iteration; a terminal has room for the first of them."""
        left = f"{self.time_left(step, iteration)} left"
        speed, terms = f"{self._speed:.1f} images/s", [f"{name} {value:.3f}" for name, value in values.items()]
        if self._line.in_place:
            self._line.show(self.title(step), iteration, self._iterations[step], (left, speed, *terms))
        else:
            count = f"{self.title(step)} {iteration}/{self._iterations[step]}"
            self.say(f"{count} · {left} · {speed} · {' '.join(terms)}")

    def begin_evaluation(self, step: int, images: int) -> None:
        """The model of a step is scored on so many images."""
        self._begin_images(step, images, "scoring", f"evaluation on {images} images")

    def begin_look(self, step: int, images: int, all_of_them: bool = True) -> None:
        """The method of a run looks once at so many images of a step, or at those that time allows."""
        how_many = f"each of {images}" if all_of_them else f"up to {images}"
        self._begin_images(step, images, "looking", f"a look at {how_many} images")

    def _begin_images(self, step: int, images: int, verb: str, line: str) -> None:
        self._step, self._scored, self._said, self._verb = step, (0, images), time.monotonic(), verb
        if self._line.in_place:
            self._line.show(f"{self.title(step)} {verb}", 0, images, ("images",))
        else:
            self.say(f"{self.title(step)}: {line}")

    def scored(self, images: int) -> None:
        """So many more are scored, or looked at."""
        done, total = self._scored[0] + images, self._scored[1]
        self._scored = done, total
        title = f"{self.title(self._step)} {self._verb}"
        self._line.show(title, min(done, total), total, ("images",))
        if not self._line.in_place and time.monotonic() - self._said > SECONDS_BETWEEN_LINES and done < total:
            self._said = time.monotonic()
            self.say(f"{title} {done}/{total} images")

    def time_left(self, step: int, iteration: int) -> str:
        """Time to the end of the last step at the present speed, with the scoring after it where that is known."""
        if self._speed <= 0:
            return "?"
        remaining = self._iterations[step] - iteration + sum(self._iterations[step + 1 :])
        seconds = remaining * self._batch_size / self._speed
        if self._times.training is not None:
            seconds = min(seconds, max(0.0, self._times.training - iteration * self._batch_size / self._speed))
        return readable_time(seconds + self._times.scoring)

    def say(self, message: str) -> None:
        """One plain line."""
        if not self._quiet:
            self._line.say(message)

    def __enter__(self) -> Self:
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, error, trace)
