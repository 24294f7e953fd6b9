"""How far two models say the same of images, which need no labels for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from comastre.config.view import ViewConfig
from comastre.data.dataset import SegmentationDataset
from comastre.distributed import rank_and_size
from comastre.evaluation.confusion import ConfusionMatrix
from comastre.evaluation.scores import iou_per_label
from comastre.evaluation.seeing import see
from comastre.stream.loading import evaluation_batches


@dataclass(frozen=True)
class Agreement:
    """In percent."""

    pixels: float
    """That have the same label."""
    per_class: Mapping[str, float | None]
    """Of the pixels that one of the two takes for the class, those that both do; None where neither sees it."""


def agreement(
    models: tuple[Any, Any],
    dataset: SegmentationDataset,
    names: Sequence[str],
    view: ViewConfig,
    device: torch.device | str = "cpu",
    seen: Callable[[int], None] | None = None,
) -> Agreement:
    """Of two models in eval mode on every image; `names` are those of their classes, the labels 1, 2, ...

    All processes call it and get the same; `seen` is told how many images more are done.
    """
    rank, world_size = rank_and_size()
    counts = ConfusionMatrix(len(names) + 1, device if torch.device(device).type == "cuda" else "cpu")
    for samples in evaluation_batches(dataset, 1, rank, world_size):
        images = [torch.from_numpy(np.array(sample.image)).permute(2, 0, 1) for sample in samples]
        first, second = (see(model.segment, images, view, device) for model in models)
        for one, other in zip(first, second, strict=True):
            counts.update(one.label_map, other.label_map)
        if seen is not None:
            seen(len(samples))
    matrix = counts.reduce()
    _, *shares = iou_per_label(matrix).tolist()  # without background, which is no class
    return Agreement(
        pixels=100.0 * float(matrix.diagonal().sum()) / max(1, int(matrix.sum())),
        per_class={name: None if share != share else share for name, share in zip(names, shares, strict=True)},
    )
