"""What a run leaves behind while it trains: `metrics.jsonl` and TensorBoard, without doubles after a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from comastre.config.run_files import METRICS, TENSORBOARD
from comastre.documents import parse_json
from comastre.training.checkpoint import Position, disk_error, write_atomically
from comastre.training.loggers import Logger, log_all

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class MetricsLog:
    """Appends one line per logged iteration; what an earlier start logged after `position` is dropped."""

    def __init__(self, out: Path, position: Position, first_iteration: int, loggers: Sequence[Logger] = ()) -> None:
        """`first_iteration` is the number of iterations of the whole run that are done."""
        from torch.utils.tensorboard import SummaryWriter

        self._loggers = loggers
        self._path = out / METRICS
        self.damaged = damaged_lines(self._path)
        """Lines that could not be read, and are left out."""
        kept = lines_until(self._path, position)
        write_atomically(self._path, "".join(kept).encode())
        self._file = self._path.open("a", encoding="utf-8")
        # Iterations count from 1 in the logs, so all later than `first_iteration` are out of date.
        self._board: SummaryWriter = SummaryWriter(str(out / TENSORBOARD), purge_step=first_iteration + 1)

    def write(self, position: Position, overall: int, values: dict[str, float]) -> None:
        """Log the values of one iteration; `overall` counts iterations over all steps."""
        line = {"step": position.step, "iteration": position.iteration, **values}
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise disk_error(error, self._path) from error
        for name, value in values.items():
            self._board.add_scalar(f"train/{name}", value, overall)
        log_all(self._loggers, {f"train/{name}": value for name, value in values.items()}, overall)

    def write_scores(self, overall: int, scores: dict[str, float | None]) -> None:
        """Scores of an evaluation, for TensorBoard and other loggers only: `results.json` is their home."""
        known = {f"evaluation/{name}": value for name, value in scores.items() if value is not None}
        for name, value in known.items():
            if math.isfinite(value):
                self._board.add_scalar(name, value, overall)
        self._board.flush()
        log_all(self._loggers, known, overall)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._board.close()
        for logger in self._loggers:
            logger.close()


def lines_until(path: Path, position: Position) -> list[str]:
    """Whole lines of `metrics.jsonl` up to `position`; a line that a kill cut short is dropped."""
    whole = [line for line in _lines(path) if line.endswith("\n")]
    places = [_place(line) for line in whole]
    last = (position.step, position.iteration)
    return [line for line, place in zip(whole, places, strict=True) if place is not None and place <= last]


def damaged_lines(path: Path) -> int:
    """Whole lines that cannot be read."""
    return sum(_place(line) is None for line in _lines(path) if line.endswith("\n"))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.exists() else []


def _place(line: str) -> tuple[int, int] | None:
    """Step and iteration of a line; None of one that is damaged, or of somebody else."""
    try:
        entry = parse_json(line)
        step, iteration = int(entry["step"]), int(entry["iteration"])
    except (ValueError, LookupError, TypeError):
        return None
    return step, iteration
