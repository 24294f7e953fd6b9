"""MiB, "Modeling the Background" (Cermelli et al., CVPR 2020).

Background changes its meaning from step to step. Where a pixel is labelled so, the loss asks for any old class or
background; the old model's background is compared with background and new classes together; new classes begin as
shares of the background, so that no old probability moves. Everything learns on.

Decided here: means are over labelled pixels, where the authors' code counts ignored ones in the denominator and turns
VOC's void into background; old classes that are labelled (protocol sequential) keep their label. The authors name a
weight of 100 for 15-1 in a thread and have 10 in the code: 10 is the default.
"""

from __future__ import annotations

from torch import Tensor

from comastre.losses.unbiased import unbiased_cross_entropy, unbiased_distillation
from comastre.methods.perpixel.config import MibConfig
from comastre.methods.perpixel.method import PerPixelMethod, Seen
from comastre.methods.protocol import Setup
from comastre.nets.deeplab import DeepLab


class Mib(PerPixelMethod):
    """Unbiased cross-entropy and distillation."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.settings, MibConfig)
        self.settings = setup.settings

    def start_new_classes(self, model: DeepLab) -> None:
        if self.settings.from_background:
            model.start_from_background()

    def later_terms(self, model: DeepLab, seen: Seen) -> dict[str, Tensor]:
        terms = {"cross_entropy": unbiased_cross_entropy(seen.logits, seen.labels, seen.num_old)}
        if self.settings.distillation > 0:
            terms["distillation"] = unbiased_distillation(seen.logits, seen.old_logits, seen.labels)
        return terms

    def weights(self) -> dict[str, float]:
        return {"cross_entropy": 1.0, "distillation": self.settings.distillation}
