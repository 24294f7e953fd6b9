"""Mean IoU under every convention in use, from one confusion matrix, and forgetting (docs/specification.md, Scores).

The matrix has a row and a column for background (0) and for every class of the stream (k + 1 for class k in learning
order), learned or not. A convention decides what becomes of the rows of classes not learned yet and which labels a
mean runs over. A label that occurs neither in the truth nor in the prediction has no IoU: it is nan and left out of
means (counting it as 0 or 100 would let the choice of validation images move the score).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from comastre.config.conventions import CONVENTIONS, Convention


@dataclass(frozen=True)
class Miou:
    """Mean IoU in percent over the first task's classes, the later tasks' and all; nan where nothing can be scored."""

    base: float
    inc: float | None
    """None at step 0, where nothing was incremented."""
    all: float


def fold(matrix: Tensor, num_learned: int, ignore_future: bool = False) -> Tensor:
    """(1 + learned, 1 + learned): rows of classes not learned yet join the background row, or are dropped."""
    known = num_learned + 1
    if matrix[:, known:].any():
        raise ValueError(f"classes beyond the {num_learned} learned ones were predicted")
    folded = matrix[:known, :known].clone()
    if not ignore_future:
        folded[0] += matrix[known:, :known].sum(dim=0)
    return folded


def iou_per_label(matrix: Tensor) -> Tensor:
    """IoU in percent of each label of a square confusion matrix: (labels,) float64, nan for a label that is nowhere."""
    counts = matrix.to(torch.float64)
    hits = counts.diagonal()
    return 100.0 * hits / (counts.sum(dim=0) + counts.sum(dim=1) - hits)  # 0 / 0 is the nan wanted


def mean_iou(matrix: Tensor, tasks: Sequence[int], convention: Convention, unscored: Collection[int] = ()) -> Miou:
    """Scores under one convention after learning `tasks` (their numbers of classes, first to newest).

    Labels `unscored` are left out of the means: the truth does not know them, so predicting them proves nothing.
    """
    num_base, num_learned = tasks[0], sum(tasks)
    ious = iou_per_label(fold(matrix, num_learned, convention.ignore_future))  # (1 + learned,)
    ious[sorted(unscored)] = math.nan
    base = ious[(0 if convention.background_in_base else 1) : num_base + 1]
    everything = ious[(0 if convention.background_in_all else 1) :]
    inc = ious[num_base + 1 :].nanmean().item() if len(tasks) > 1 else None
    return Miou(base=base.nanmean().item(), inc=inc, all=everything.nanmean().item())


def all_conventions(matrix: Tensor, tasks: Sequence[int], unscored: Collection[int] = ()) -> dict[str, Miou]:
    """Scores under every convention, by name."""
    return {name: mean_iou(matrix, tasks, convention, unscored) for name, convention in CONVENTIONS.items()}


def task_confusion(matrix: Tensor, tasks: Sequence[int]) -> Tensor:
    """Pixels by true and predicted task, background first: (1 + tasks, 1 + tasks); shows old taken for new."""
    folded = fold(matrix, sum(tasks))
    groups = [1, *tasks]
    by_rows = torch.stack([rows.sum(dim=0) for rows in folded.split(groups, dim=0)])
    return torch.stack([columns.sum(dim=1) for columns in by_rows.split(groups, dim=1)], dim=1)


def average(scores: Sequence[Miou]) -> float:
    """`avg`: the mean of `all` over the steps so far; nan if no step has one."""
    known = [score.all for score in scores if not math.isnan(score.all)]
    return sum(known) / len(known) if known else math.nan


def forgetting(history: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Best IoU so far minus IoU now, for each class that an earlier step of `history` (IoU by class) already has.

    "So far" includes now, so it is never negative; None where the class can't be scored now.
    """
    if not history:
        return {}
    now = history[-1]
    earlier = [name for name in now if any(name in step for step in history[:-1])]
    lost: dict[str, float | None] = {}
    for name in earlier:
        latest = now[name]
        known = [value for step in history if (value := step.get(name)) is not None]
        lost[name] = None if latest is None else max(known) - latest
    return lost
