"""How good the proposals of a model are, image after image; a model that proposes no masks gets no such scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from comastre.distributed import rank_and_size, sum_over_processes
from comastre.evaluation.confusion import IGNORE
from comastre.evaluation.recall import ErrorSplit, Recall, RecallCounter, error_split, mask_overlaps
from comastre.evaluation.results import ClassErrors
from comastre.segmentation import ProposedMasks


@dataclass(frozen=True)
class ProposalScores:
    """Over all images; one entry per learned class in `recall_per_class` and `errors`."""

    recall: Recall
    recall_per_class: tuple[Recall, ...]
    later: tuple[Recall, ...]
    """Of every class of a later step."""
    later_recall: Recall | None
    """Of all their masks; None after the last step."""
    errors: tuple[ClassErrors, ...]
    alpha: float
    """Objectness above which proposals are recognised."""


class ProposalCounter:
    """Counts which true masks were proposed, and where the others got lost."""

    def __init__(self, num_learned: int, num_later: int = 0, device: torch.device | str = "cpu") -> None:
        self._num_learned = num_learned
        self._num_later = num_later
        self._device = device
        self._images = 0
        self._alpha = 0.0
        self._recall = RecallCounter(num_learned, device)
        self._later = RecallCounter(num_later, device)
        self._errors = ErrorSplit.zeros(num_learned)

    def update(self, proposals: ProposedMasks, labels: np.ndarray, instances: np.ndarray | None) -> None:
        """Add one image with its true model labels (H, W) and, where recall goes by objects, its objects (H, W)."""
        masks, truth_classes = true_masks(labels, instances, self._num_learned)
        later_masks, later_classes = true_masks(
            labels, instances, self._num_learned + self._num_later, after=self._num_learned
        )
        proposed = proposals.masks()
        # Nobody knows what ignored pixels show, so a proposal may cover them freely.
        counted = torch.from_numpy(labels != IGNORE).to(proposed.device)
        truths = torch.from_numpy(np.concatenate([masks, later_masks])).to(proposed.device)
        both = mask_overlaps(proposed & counted, truths)
        # Each group has a matching of its own: what is still to be learned takes no proposal from what is learned.
        overlaps, later_overlaps = both[:, : len(masks)], both[:, len(masks) :]
        objectness = proposals.objectness.float().cpu().numpy()
        classes = proposals.classes.cpu().numpy()
        self._images += 1
        self._alpha = proposals.confident
        self._recall.update(overlaps, objectness, truth_classes, proposals.confident)
        self._later.update(later_overlaps, objectness, later_classes - self._num_learned, proposals.confident)
        self._errors += error_split(
            overlaps, objectness, classes, truth_classes, proposals.confident, self._num_learned
        )

    def reduce(self, num_images: int) -> ProposalScores | None:
        """The scores over the processes' `num_images`, None where none had proposals; every process must call it."""
        # The first process sees an image in any case, so its alpha can stand for all.
        alpha = self._alpha if rank_and_size()[0] == 0 else 0.0
        here = torch.tensor([self._images, alpha], dtype=torch.float64, device=self._device)
        counted, alpha = sum_over_processes(here).tolist()
        recall, recall_per_class = self._recall.reduce()
        later_recall, later = self._later.reduce()
        errors = self._errors.reduce(self._device)
        if counted == 0:
            return None
        if counted < num_images:
            raise ValueError(f"the model proposes masks for {counted:.0f} of {num_images} images: for all or for none")
        columns = (errors.not_proposed, errors.below_alpha, errors.wrong_class, errors.right)
        rows = torch.stack(columns, dim=1).tolist()  # (C, 4)
        return ProposalScores(
            recall,
            recall_per_class,
            later,
            later_recall if self._num_later else None,
            tuple(ClassErrors(*row) for row in rows),
            alpha,
        )


def true_masks(
    labels: np.ndarray, instances: np.ndarray | None, last: int, after: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Masks (G, H, W) bool and class indices (G,) of the labels after + 1 to last in one image.

    One mask per class, or per object when `instances` (H, W; 0 = none) is given; `labels` are model labels (H, W).
    """
    asked = (labels > after) & (labels <= last)
    if instances is None:
        present = np.unique(labels[asked])
        return labels[None] == present[:, None, None], present.astype(np.int64) - 1
    objects = np.unique(instances[asked & (instances > 0)])
    masks = (instances[None] == objects[:, None, None]) & asked
    classes = [np.bincount(labels[mask]).argmax() - 1 for mask in masks]
    return masks, np.array(classes, dtype=np.int64)
