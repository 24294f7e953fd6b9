"""SDR, "Sparse and Disentangled Representations" (Michieli and Zanuttigh, CVPR 2021).

MiB's losses, and four on the backbone's last features: the mean feature of an old class stays at its prototype, a
running mean over all that was ever seen of the class; features are drawn to the prototype of their class; means of
different classes are pushed apart; and features are made sparse. The last one acts in the first step, too. Prototypes
are a part of the model. New classes begin at random.

Decided here: the formulas. The public code reshapes the features of a class so that channels and locations mix, and
divides early classes by the number of classes several times: `reshapes: public_code`. Background, which means another
thing in every step, has no prototype. The largest feature of a class, by which the sparse loss divides, has no
gradient. Example scripts and README disagree about rates by a factor of 10: the scripts' are the defaults.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from comastre.data.dataset import IGNORE
from comastre.losses.prototypes import (
    attraction,
    class_sums,
    prototype_matching,
    public_attraction,
    public_class_sums,
    public_matching,
    repulsion,
    shrink_labels,
    sparsity,
)
from comastre.losses.unbiased import unbiased_cross_entropy, unbiased_distillation
from comastre.methods.perpixel.config import SdrConfig
from comastre.methods.perpixel.method import PerPixelMethod, Seen
from comastre.methods.protocol import Setup
from comastre.nets.backbone import Backbone
from comastre.nets.deeplab import DeepLab
from comastre.nets.precision import upcast
from comastre.nets.prototypes import DeepLabWithPrototypes


class Sdr(PerPixelMethod):
    """Unbiased losses, prototypes and sparse features."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.settings, SdrConfig)
        self.settings = setup.settings

    def new_model(self, setup: Setup, tasks: Sequence[int]) -> DeepLabWithPrototypes:
        backbone = Backbone(setup.backbone, self.head.output_stride)
        return DeepLabWithPrototypes(backbone, self.head.channels, self.head.rates, tasks, backbone.channels[-1])

    def first_terms(self, model: DeepLab, seen: Seen) -> dict[str, Tensor]:
        features, labels = self._features(model, seen)
        return super().first_terms(model, seen) | self._sparsity(features, labels, seen)

    def later_terms(self, model: DeepLab, seen: Seen) -> dict[str, Tensor]:
        features, labels = self._features(model, seen)
        terms = {"cross_entropy": unbiased_cross_entropy(seen.logits, seen.labels, seen.num_old)}
        if self.settings.distillation > 0:
            terms["distillation"] = unbiased_distillation(seen.logits, seen.old_logits, seen.labels)
        return terms | self._sparsity(features, labels, seen) | self._prototype_terms(model, seen, features, labels)

    def _features(self, model: DeepLab, seen: Seen) -> tuple[Tensor, Tensor]:
        """The features and their labels, which the prototypes follow while the model is trained."""
        assert isinstance(model, DeepLabWithPrototypes)
        features = upcast(seen.output.body)
        labels = shrink_labels(seen.labels, features)
        if model.training:
            sums_of = public_class_sums if self.settings.reshapes == "public_code" else class_sums
            objects = torch.where(labels == 0, IGNORE, labels)
            found = sums_of(features.detach(), objects, seen.num_classes)
            model.prototypes.add(found.sums, found.counts)
        return features, labels

    def _sparsity(self, features: Tensor, labels: Tensor, seen: Seen) -> dict[str, Tensor]:
        if self.settings.sparsity == 0:
            return {}
        return {"sparsity": sparsity(features, labels, seen.num_classes)}

    def _prototype_terms(self, model: DeepLab, seen: Seen, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        assert isinstance(model, DeepLabWithPrototypes)
        settings, public = self.settings, self.settings.reshapes == "public_code"
        prototypes, known = model.prototypes.means.clone(), model.prototypes.known
        terms = {}
        if settings.matching > 0:
            # Old classes are where the old model sees one in what is labelled background, or labelled themselves.
            predicted = shrink_labels(seen.old_logits.argmax(dim=1), features)
            old = torch.where(labels == 0, predicted, torch.where(labels < seen.num_old, labels, 0))
            old = torch.where(old == 0, IGNORE, old)
            if public:
                terms["matching"] = public_matching(features, old, prototypes)
            else:
                terms["matching"] = prototype_matching(class_sums(features, old, seen.num_classes), prototypes, known)
        if settings.attraction > 0:
            attract = public_attraction(features, labels, prototypes) if public else None
            terms["attraction"] = attraction(features, labels, prototypes, known) if attract is None else attract
        if settings.repulsion > 0:
            terms["repulsion"] = repulsion(class_sums(features, labels, seen.num_classes))
        return terms

    def weights(self) -> dict[str, float]:
        names = ("distillation", "matching", "attraction", "repulsion", "sparsity")
        return {"cross_entropy": 1.0} | {name: getattr(self.settings, name) for name in names}
