"""PLOP, "Learning without Forgetting for Continual Semantic Segmentation" (Douillard et al., CVPR 2021).

Where a pixel is labelled background, the old model's class is the label if it is surer there than the median of that
class; an image counts the less the less of it the old model is sure of. Features of all stages, of the head, and
logits are held by local POD: means over rows and columns of windows at three scales. New classes begin as MiB's.

Decided here: uncertainty is the entropy as a share of the largest, and thresholds are true medians. The public code
divides the entropy by the number of classes and by a logarithm once more, and its search for the median adds up places
in place of counts, so that nearly all is accepted: `thresholds: public_code`. An image without background counts in
full, not with 0. Activations are ReLU, where the authors have leaky ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from comastre.data.dataset import IGNORE
from comastre.distributed import sum_over_processes
from comastre.losses.pod import fold_logits, growth, pod_distance, without_padding
from comastre.losses.pseudo_labels import (
    PseudoLabels,
    count_uncertainties,
    entropy,
    median_thresholds,
    pseudo_label,
    public_entropy,
    public_thresholds,
)
from comastre.losses.reduce import mean_over
from comastre.losses.unbiased import pixel_cross_entropy
from comastre.methods.perpixel.config import PlopConfig
from comastre.methods.perpixel.method import PerPixelMethod, Seen
from comastre.methods.protocol import Batches, Setup
from comastre.nets.deeplab import DeepLab, resize, shrink
from comastre.stream.scenario import Task

_THRESHOLDS = "thresholds"
_BINS = 1000  # of the medians
_PUBLIC_BINS = 100
_MAPS = 6  # four stages, head and logits, over which PLOP averages


class Plop(PerPixelMethod):
    """Pseudo-labels and local POD."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.settings, PlopConfig)
        self.settings = setup.settings
        self.thresholds: Tensor | None = None

    def start_new_classes(self, model: DeepLab) -> None:
        model.start_from_background()

    def before_training(self, model: nn.Module, batches: Batches) -> None:
        if self.old_model is not None:
            assert isinstance(model, DeepLab)
            num_classes = 1 + sum(model.tasks)
            self.thresholds = find_thresholds(self.old_model, batches, num_classes, self.settings)

    def later_terms(self, model: DeepLab, seen: Seen) -> dict[str, Tensor]:
        found = relabel(seen, self.thresholds, self.settings)
        return {"cross_entropy": pseudo_cross_entropy(seen, found)} | pod_terms(seen, self.settings)

    def weights(self) -> dict[str, float]:
        settings = self.settings
        return {"cross_entropy": 1.0, "pod_features": settings.pod_features, "pod_logits": settings.pod_logits}

    def state(self) -> dict[str, Tensor]:
        return super().state() | ({} if self.thresholds is None else {_THRESHOLDS: self.thresholds})

    def restore(self, task: Task | None, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        super().restore(task, model, state)
        self.thresholds = state.get(_THRESHOLDS)


# --- pseudo-labels ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def find_thresholds(old_model: DeepLab, batches: Batches, num_classes: int, settings: PlopConfig) -> Tensor:
    """(K_old,): how uncertain the old model may be of each class, from one pass over the images of a task."""
    public = settings.thresholds == "public_code"
    bins = _PUBLIC_BINS if public else _BINS
    num_old = 1 + sum(old_model.tasks)
    device = next(old_model.parameters()).device
    histogram = torch.zeros(num_old, bins, dtype=torch.long, device=device)
    for batch in batches():
        logits = resize(old_model(batch.images, batch.padding).logits, batch.labels.shape[-2:])
        predicted, uncertainty = _old_word(logits, num_classes, settings)
        histogram += count_uncertainties(uncertainty, predicted, batch.labels == 0, num_old, bins)
    find = public_thresholds if public else median_thresholds
    return find(sum_over_processes(histogram), settings.threshold_floor)


def relabel(seen: Seen, thresholds: Tensor | None, settings: PlopConfig) -> PseudoLabels:
    """The batch's labels with the old model's word in the background."""
    if thresholds is None:  # nobody has looked at the images yet
        thresholds = seen.logits.new_full((seen.num_old,), settings.threshold_floor)
    with torch.no_grad():
        predicted, uncertainty = _old_word(seen.old_logits, seen.num_classes, settings)
        return pseudo_label(seen.labels, predicted, uncertainty, thresholds)


def _old_word(old_logits: Tensor, num_classes: int, settings: PlopConfig) -> tuple[Tensor, Tensor]:
    """The class of each pixel by the old model, and how uncertain it is, both (B, H, W)."""
    probabilities = old_logits.softmax(dim=1)
    public = settings.thresholds == "public_code"
    uncertainty = public_entropy(probabilities, num_classes) if public else entropy(probabilities)
    return probabilities.argmax(dim=1), uncertainty


def pseudo_cross_entropy(seen: Seen, found: PseudoLabels) -> Tensor:
    """Cross-entropy of the pseudo-labels, each image times its share of sure background, mean over labelled pixels."""
    per_pixel = pixel_cross_entropy(seen.logits, found.labels) * found.sure[:, None, None]
    return mean_over(per_pixel, seen.labels != IGNORE)


# --- local POD -------------------------------------------------------------------------------------------------------


def pod_terms(seen: Seen, settings: PlopConfig) -> dict[str, Tensor]:
    """Local POD of features and of logits, times the growth of the task; those of weight 0 are left out."""
    assert seen.old is not None
    new, old = seen.output, seen.old
    factor = growth(seen.num_classes, seen.num_classes - seen.num_old) / _MAPS

    def distance(maps: Tensor, old_maps: Tensor) -> Tensor:
        padding = None if seen.padding is None else shrink(seen.padding, maps)
        shown, old_shown = without_padding(maps, padding), without_padding(old_maps, padding)
        return pod_distance(shown, old_shown, settings.scales, squared=True).mean()

    terms = {}
    if settings.pod_features > 0:
        pairs = zip((*new.stages, new.head), (*old.stages, old.head), strict=True)
        terms["pod_features"] = factor * torch.stack([distance(*pair) for pair in pairs]).sum()
    if settings.pod_logits > 0:
        terms["pod_logits"] = factor * distance(fold_logits(new.logits, seen.num_old), old.logits)
    return terms
