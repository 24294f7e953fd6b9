"""Counting which label was predicted where which label is true, on the device and over all processes."""

from __future__ import annotations

import torch
from torch import Tensor

from comastre.data.dataset import IGNORE
from comastre.distributed import sum_over_processes


class ConfusionMatrix:
    """Pixels per (true label, predicted label); 255 in the truth is ignored."""

    def __init__(self, num_labels: int, device: torch.device | str = "cpu") -> None:
        self.num_labels = num_labels
        # Two more bins: ignored pixels and labels out of range. Bad labels are counted and reported at the end,
        # because looking at them in every batch would make the host wait for the device.
        self._counts = torch.zeros(num_labels * num_labels + 2, dtype=torch.int64, device=device)

    def update(self, prediction: Tensor, truth: Tensor) -> None:
        """Add one label map (H, W) or a batch (B, H, W) of predicted and true labels."""
        if prediction.shape != truth.shape:
            raise ValueError(f"prediction is {tuple(prediction.shape)} but truth is {tuple(truth.shape)}")
        size = self.num_labels
        predicted = prediction.reshape(-1).to(self._counts.device, torch.int64)
        true = truth.reshape(-1).to(self._counts.device, torch.int64)
        in_range = (true >= 0) & (true < size) & (predicted >= 0) & (predicted < size)
        bins = torch.where(in_range, true * size + predicted, size * size + 1)
        bins = torch.where(true == IGNORE, size * size, bins)
        # Not bincount: on CUDA it asks the device for the largest bin.
        self._counts.scatter_add_(0, bins, torch.ones_like(bins))

    def reduce(self) -> Tensor:
        """(labels, labels) int64 on the host, rows = truth, summed over processes; every process must call it."""
        counts = sum_over_processes(self._counts).cpu()
        if counts[-1] > 0:
            raise ValueError(f"{int(counts[-1])} pixels have labels outside 0..{self.num_labels - 1} that are not 255")
        return counts[:-2].reshape(self.num_labels, self.num_labels)
