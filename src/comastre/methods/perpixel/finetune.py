"""DeepLabv3 with nothing that remembers: the floor of the per-pixel methods and, with all classes at once, the ceiling.

Plain cross-entropy in every step, where old classes are labelled background; new classifiers start at random. It is
"FT" and "joint" of the tables of MiB (Cermelli et al., CVPR 2020) and of those that follow it.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from comastre.methods.perpixel.method import PerPixelMethod, Seen
from comastre.nets.deeplab import DeepLab


class DeepLabAlone(PerPixelMethod):
    """Cross-entropy on whatever is labelled."""

    keeps_old_model: ClassVar[bool] = False

    def later_terms(self, model: DeepLab, seen: Seen) -> dict[str, Tensor]:
        return self.first_terms(model, seen)

    def weights(self) -> dict[str, float]:
        return {"cross_entropy": 1.0}
