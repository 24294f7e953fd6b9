"""The connected parts of a label map as masks: what a per-pixel model can be said to propose (paper Figure 1)."""

from __future__ import annotations

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from comastre.segmentation import ProposedMasks

MOST = 100
"""Parts of an image, the largest first: as many proposals as COCO's average recall looks at."""
_LOGIT = 20.0
"""Of a pixel that is in a mask."""
_UNSURE = 0.5
"""Objectness of background, which is not above the threshold."""


def parts_of(label_map: Tensor, num_classes: int) -> ProposedMasks:
    """Parts of every label (H, W) whose pixels touch at sides; those of classes are sure, those of background are not.

    Background is among them: whatever a per-pixel model does not know, it can only show there.
    """
    labels = label_map.cpu().numpy()
    masks, classes, areas = [], [], []
    for label in np.unique(labels):
        numbered, count = ndimage.label(labels == label)
        sizes = np.bincount(numbered.ravel(), minlength=count + 1)[1:]
        for number in np.argsort(-sizes, kind="stable")[:MOST] + 1:
            masks.append(numbered == number)
            classes.append(int(label))
            areas.append(int(sizes[number - 1]))
    chosen = np.argsort(-np.array(areas), kind="stable")[:MOST]
    stacked = torch.from_numpy(np.stack([masks[place] for place in chosen]))  # (N, H, W)
    scores = torch.zeros(len(chosen), num_classes)
    objectness = torch.full((len(chosen),), _UNSURE)
    for row, place in enumerate(chosen):
        if 1 <= classes[place] <= num_classes:
            scores[row, classes[place] - 1] = objectness[row] = 1.0
    height, width = labels.shape
    return ProposedMasks(
        objectness=objectness,
        class_scores=scores,
        confident=_UNSURE,
        logits=(stacked.float() * 2 - 1) * _LOGIT,
        size=(height, width),
    )
