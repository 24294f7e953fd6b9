"""REMINDER, "Class Similarity Weighted Knowledge Distillation" (Phan et al., CVPR 2022).

PLOP, and one loss more: where a pixel is labelled as a new class, the old model's probabilities of old classes are
kept, the more the new class resembles an old one. How much it does is the cosine of its mean feature in the batch and
the old class's prototype, its mean feature in the step that brought it. Prototypes are taken in one pass over a step's
images after the last iteration, and are a part of the model.

Decided here: background is one of the classes of the first step, as the authors say in a thread. The prototype of a
class is the mean over batches of its mean feature in the batch, with features resized with aligned corners, as in the
public code. `delta` is 0, as the method's own option has it; the scripts for ADE20K set 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from comastre.distributed import sum_over_processes
from comastre.losses.similarity import class_similarity, similarity_distillation, upsampled_class_sums
from comastre.methods.perpixel.config import ReminderConfig
from comastre.methods.perpixel.method import Seen
from comastre.methods.perpixel.plop import Plop
from comastre.methods.protocol import Batches, Setup
from comastre.nets.backbone import Backbone
from comastre.nets.deeplab import DeepLab
from comastre.nets.precision import upcast
from comastre.nets.prototypes import DeepLabWithPrototypes


class Reminder(Plop):
    """PLOP's losses and distillation by similarity."""

    settings: ReminderConfig

    def new_model(self, setup: Setup, tasks: Sequence[int]) -> DeepLabWithPrototypes:
        backbone = Backbone(setup.backbone, self.head.output_stride)
        return DeepLabWithPrototypes(backbone, self.head.channels, self.head.rates, tasks, self.head.channels)

    def later_terms(self, model: DeepLab, seen: Seen) -> dict[str, Tensor]:
        assert isinstance(model, DeepLabWithPrototypes)
        terms = super().later_terms(model, seen)
        if self.settings.similarity > 0:
            sums, counts = _batch_sums(seen.output.head.detach(), seen.labels, seen.num_classes)
            means = sums[seen.num_old :] / counts[seen.num_old :].clamp(min=1)[:, None]
            shares = class_similarity(means, model.prototypes.means[: seen.num_old], self.settings.delta)
            terms["similarity"] = similarity_distillation(
                seen.logits, seen.old_logits, seen.labels, shares, self.settings.temperature
            )
        return terms

    @torch.no_grad()
    def look_back(self, model: nn.Module, batches: Batches) -> None:
        """Take the prototypes of the newest classes, and in a first step of background."""
        assert isinstance(model, DeepLabWithPrototypes)
        model.eval()
        num_classes = 1 + sum(model.tasks)
        first = num_classes - model.tasks[-1] if len(model.tasks) > 1 else 0
        sums = torch.zeros_like(model.prototypes.means)
        batches_with = torch.zeros_like(model.prototypes.counts)
        for batch in batches():
            features = model(batch.images, batch.padding).head
            found, counts = _batch_sums(features, batch.labels.long(), num_classes)
            sums += found / counts.clamp(min=1)[:, None]
            batches_with += counts > 0
        model.prototypes.means[first:] = (sums / batches_with.clamp(min=1)[:, None])[first:]
        model.prototypes.counts[first:] = batches_with[first:]

    def weights(self) -> dict[str, float]:
        return super().weights() | {"similarity": self.settings.similarity}


def _batch_sums(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sums and counts of each class's features in the batch of all processes."""
    sums, counts = upsampled_class_sums(upcast(features), labels, num_classes)
    return sum_over_processes(sums), sum_over_processes(counts)
