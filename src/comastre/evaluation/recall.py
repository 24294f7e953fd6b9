"""Average recall of class-agnostic proposals, as COCO counts it, and why a true mask was missed.

What is counted: docs/specification.md, Recall and errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from comastre.distributed import sum_over_processes

THRESHOLDS = np.linspace(0.50, 0.95, 10)
_PIXELS_AT_ONCE = 1 << 18  # keeps the float copies of 100 masks near 100 MB at any image size


def mask_overlaps(proposals: Tensor, truths: Tensor) -> np.ndarray:
    """IoU of every proposal (N, H, W) with every true mask (G, H, W): (N, G) float64 on the host."""
    proposal_pixels = proposals.flatten(1)  # (N, HW)
    truth_pixels = truths.flatten(1)  # (G, HW)
    shared = torch.zeros(len(proposals), len(truths), dtype=torch.float64, device="cpu")
    blocks = zip(proposal_pixels.split(_PIXELS_AT_ONCE, dim=1), truth_pixels.split(_PIXELS_AT_ONCE, dim=1), strict=True)
    for some_proposals, some_truths in blocks:
        # float32 holds integers up to 2^24 exactly, so a block's counts are exact.
        shared += (some_proposals.float() @ some_truths.float().T).cpu().double()
    areas = proposal_pixels.sum(dim=1).cpu().double()[:, None] + truth_pixels.sum(dim=1).cpu().double()[None, :]
    return (shared / (areas - shared).clamp(min=1.0)).numpy()


def match_greedily(overlaps: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Which proposal each true mask is matched to at each threshold: (10, G), -1 for none.

    COCO's rule: proposals in order of score (ties: as given) each take the free true mask that they overlap most, if
    by at least the threshold (ties: the last such mask).
    """
    num_truths = overlaps.shape[1]
    matched = np.full((len(THRESHOLDS), num_truths), -1)
    if num_truths == 0:
        return matched
    rows = np.arange(len(THRESHOLDS))
    for proposal in np.argsort(-scores, kind="stable"):
        if overlaps[proposal].max() < THRESHOLDS[0]:
            continue
        free = np.where(matched < 0, overlaps[proposal], -1.0)  # (10, G)
        best = num_truths - 1 - free[:, ::-1].argmax(axis=1)  # (10,)
        takes = free[rows, best] >= THRESHOLDS
        matched[rows[takes], best[takes]] = proposal
    return matched


@dataclass(frozen=True)
class Recall:
    """Average recall in percent; nan where there is no true mask."""

    all: float
    """Of all proposals (s > 0)."""
    confident: float
    """Of proposals with s > alpha, those that inference recognises."""


class RecallCounter:
    """Matched and true masks per class, image after image."""

    def __init__(self, num_classes: int, device: torch.device | str = "cpu") -> None:
        self._true = torch.zeros(num_classes, dtype=torch.int64)
        self._matched = torch.zeros(2, num_classes, dtype=torch.int64)  # all, confident; summed over thresholds
        self._device = device

    def update(self, overlaps: np.ndarray, objectness: np.ndarray, truth_classes: np.ndarray, alpha: float) -> None:
        """Add one image: `mask_overlaps` (N, G), scores (N,) and the classes (G,) of the true masks."""
        proposed = objectness > 0
        scores = objectness[proposed]
        matched = match_greedily(overlaps[proposed], scores)  # (10, G)
        # Matching goes by score, so what is matched at s > alpha doesn't depend on the proposals below it.
        found = matched >= 0
        confident = found & (np.append(scores, 0.0)[matched] > alpha)  # index -1 reads the appended 0
        classes = torch.from_numpy(truth_classes.astype(np.int64))
        self._true.index_add_(0, classes, torch.ones_like(classes))
        for row, hits in enumerate((found, confident)):
            self._matched[row].index_add_(0, classes, torch.from_numpy(hits.sum(axis=0).astype(np.int64)))

    def reduce(self) -> tuple[Recall, tuple[Recall, ...]]:
        """Recall over all true masks, and per class, summed over processes; every process must call it."""
        counts = torch.cat([self._matched, self._true[None]]).to(self._device)  # (3, C)
        found, confident, true = sum_over_processes(counts).cpu().double()
        true = true * len(THRESHOLDS)
        overall = Recall(float(100.0 * found.sum() / true.sum()), float(100.0 * confident.sum() / true.sum()))
        per_class = zip((100.0 * found / true).tolist(), (100.0 * confident / true).tolist(), strict=True)
        return overall, tuple(Recall(*pair) for pair in per_class)


@dataclass(frozen=True)
class ErrorSplit:
    """Where the true masks of each class got lost; each field counts masks per class: (C,) int64."""

    not_proposed: Tensor
    """No proposal overlaps the mask by 0.5 or more."""
    below_alpha: Tensor
    """Proposed, but only with s <= alpha: inference never looks at it."""
    wrong_class: Tensor
    """Proposed with s > alpha, but always recognised as another class."""
    right: Tensor
    """Proposed with s > alpha and recognised."""

    @classmethod
    def zeros(cls, num_classes: int) -> ErrorSplit:
        return cls(*torch.zeros(4, num_classes, dtype=torch.int64))

    def __add__(self, other: ErrorSplit) -> ErrorSplit:
        return ErrorSplit(
            self.not_proposed + other.not_proposed,
            self.below_alpha + other.below_alpha,
            self.wrong_class + other.wrong_class,
            self.right + other.right,
        )

    def reduce(self, device: torch.device | str = "cpu") -> ErrorSplit:
        """Sums over processes, through `device`; every process must call it."""
        counts = torch.stack([self.not_proposed, self.below_alpha, self.wrong_class, self.right])
        return ErrorSplit(*sum_over_processes(counts.to(device)).cpu())


def error_split(
    overlaps: np.ndarray,
    objectness: np.ndarray,
    classes: np.ndarray,
    truth_classes: np.ndarray,
    alpha: float,
    num_classes: int,
) -> ErrorSplit:
    """Split one image's true masks: overlaps (N, G), objectness (N,), recognised classes (N,) or -1, truth (G,)."""
    good = overlaps >= THRESHOLDS[0]  # (N, G)
    confident = good & (objectness > alpha)[:, None]
    right = (confident & (classes[:, None] == truth_classes[None, :])).any(axis=0)  # (G,)
    stage = good.any(axis=0).astype(np.int64) + confident.any(axis=0) + right  # (G,) how far each mask got: 0..3
    bins = stage * num_classes + truth_classes.astype(np.int64)
    counts = np.bincount(bins, minlength=4 * num_classes).reshape(4, num_classes)
    return ErrorSplit(*torch.from_numpy(counts.astype(np.int64)))
