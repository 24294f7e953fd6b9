"""When a step ends: after its iterations, or before, where a time limit says so."""

from __future__ import annotations

from dataclasses import dataclass

from comastre.training.checkpoint import Position


@dataclass(frozen=True)
class Times:
    """Seconds that a run may or will take beside what its iterations say."""

    training: float | None = None
    """Of a step's training over all restarts, at most; None for no limit."""
    scoring: float = 0.0
    """What follows the training, for the time that is said to be left."""
    look_until: float | None = None
    """When a method's look at whole images must end (of `time.monotonic`), where it can do with fewer; None: never."""


@dataclass(frozen=True)
class Clock:
    """The end of one step."""

    total: int
    """Iterations, at most."""
    seconds: float | None = None
    """Of training, at most."""

    def used(self, position: Position) -> float:
        """Share of the time that is used, 0..1; 0 without a limit."""
        return 0.0 if self.seconds is None else min(1.0, position.seconds / self.seconds)

    def is_over(self, position: Position) -> bool:
        """Whether no iteration is left, or no time for one more as long as those before."""
        if position.iteration >= self.total:
            return True
        if self.seconds is None or position.iteration == 0:
            return False
        return position.seconds * (position.iteration + 1) / position.iteration > self.seconds
