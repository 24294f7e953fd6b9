"""What a teacher says of the very same queries, as soft targets: how surely each is an object, and of which class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.losses.classification import focal_terms
from comastre.losses.reduce import mean_over
from comastre.nets.precision import upcast


def split_classes(teacher_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Objectness (...,) and the distribution over classes given an object (..., C) of logits (..., C + 1).

    "No object" is the last one; the distribution is that over the others alone, whatever "no object" is.
    """
    logits = upcast(teacher_logits.detach())
    return 1 - logits.softmax(-1)[..., -1], logits[..., :-1].softmax(-1)


def taught_objectness(logits: Tensor, objectness: Tensor) -> Tensor:
    """Cross-entropy of logits (B, N) with the teacher's objectness there: a mean over all queries."""
    logits = upcast(logits)
    losses = F.binary_cross_entropy_with_logits(logits, objectness.to(logits.dtype), reduction="none")
    return losses.mean()


def taught_classes(logits: Tensor, classes: Tensor, objectness: Tensor, gamma: float) -> Tensor:
    """Eq. 2 of each class, logits (B, N, C), as expected under the teacher's probabilities (B, N, C).

    What labels drawn from the teacher would teach on average, so that logits come to the size that lessons, by the same
    loss, give those of new classes. A sum over classes; a query weighs its objectness (B, N) in the mean, as what is
    nothing is of no class.
    """
    logits = upcast(logits)
    true = torch.ones_like(logits, dtype=torch.bool)
    classes = classes.to(logits.dtype)
    losses = classes * focal_terms(logits, true, gamma) + (1 - classes) * focal_terms(logits, ~true, gamma)
    return mean_over(losses.sum(-1), objectness)
