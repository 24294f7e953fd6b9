"""Ground truth of one batch, padded so that every loss is one batched operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Targets:
    """G is the largest number of masks of an image in the batch; rows beyond an image's count are padding."""

    masks: Tensor
    """(B, G, H, W) bool, at the size of the padded images."""
    labels: Tensor
    """(B, G) index of the class in learning order, 0-based without background; 0 in padding rows."""
    counts: tuple[int, ...]
    """Masks of each image, known on the host without asking the device."""
    image_ids: tuple[str, ...]
    """Names for error messages."""

    @classmethod
    def stack(cls, masks: Sequence[Tensor], labels: Sequence[Tensor], image_ids: Sequence[str]) -> Targets:
        """Pad per-image masks (G_i, H, W) and labels (G_i,) to one batch."""
        counts = tuple(len(rows) for rows in labels)
        largest = max(counts, default=0)
        height, width = masks[0].shape[-2:]
        all_masks = torch.zeros(len(masks), largest, height, width, dtype=torch.bool)
        all_labels = torch.zeros(len(masks), largest, dtype=torch.long)
        for image, count in enumerate(counts):
            all_masks[image, :count] = masks[image]
            all_labels[image, :count] = labels[image]
        return cls(all_masks, all_labels, counts, tuple(image_ids))

    @property
    def valid(self) -> Tensor:
        """(B, G) bool: which rows are real; built on the device from the host's counts."""
        counts = torch.tensor(self.counts, device=self.labels.device)
        return torch.arange(self.labels.shape[1], device=self.labels.device) < counts[:, None]

    def to(self, device: torch.device | str) -> Targets:
        return Targets(
            self.masks.to(device, non_blocking=True),
            self.labels.to(device, non_blocking=True),
            self.counts,
            self.image_ids,
        )
