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

    def extended(self, masks: Sequence[Tensor], labels: Sequence[Tensor]) -> Targets:
        """With more masks (G_i, H, W) and labels (G_i,) behind those of each image, all on the same device."""
        counts = tuple(count + len(more) for count, more in zip(self.counts, labels, strict=True))
        largest = max(counts, default=0)
        all_masks = self.masks.new_zeros(len(counts), largest, *self.masks.shape[-2:])
        all_labels = self.labels.new_zeros(len(counts), largest)
        for image, (before, count) in enumerate(zip(self.counts, counts, strict=True)):
            all_masks[image, :before], all_labels[image, :before] = (
                self.masks[image, :before],
                self.labels[image, :before],
            )
            all_masks[image, before:count], all_labels[image, before:count] = masks[image], labels[image]
        return Targets(all_masks, all_labels, counts, self.image_ids)

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
