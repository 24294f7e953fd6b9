"""Cross-entropy and distillation of labelled pixels, plain and unbiased (MiB).

In a later step "background" means: an old class, or really background. The unbiased losses say so: labels of
background ask for any old class, and the old model's background may have become a new class.

Logits are (B, K, H, W), background first; labels (B, H, W), where 255 is ignored by every loss.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.data.dataset import IGNORE
from comastre.losses.reduce import mean_over


def pixel_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-log p of the label, (B, H, W); 0 where it is ignored."""
    return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-log p of the label, mean over labelled pixels."""
    return mean_over(pixel_cross_entropy(logits, labels), labels != IGNORE)


def unbiased_cross_entropy(logits: Tensor, labels: Tensor, num_old: int) -> Tensor:
    """As `cross_entropy`, but where the label is background, -log of the sum of p over the first `num_old` classes.

    `num_old` counts the background.
    """
    old, _ = logits.split([num_old, logits.shape[1] - num_old], dim=1)
    more = old.logsumexp(dim=1) - old[:, 0]  # (B, H, W): log of any old class's p over the background's
    per_pixel = pixel_cross_entropy(logits, labels) - more * (labels == 0)
    return mean_over(per_pixel, labels != IGNORE)


def unbiased_distillation(logits: Tensor, old_logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of old probabilities q (K_old channels) and new ones, where background and new classes are one.

    Divided by K_old, as in MiB; mean over the pixels that are not ignored.
    """
    num_old = old_logits.shape[1]
    background, old, new = logits.split([1, num_old - 1, logits.shape[1] - num_old], dim=1)
    folded = torch.cat([background, new], dim=1).logsumexp(dim=1)  # (B, H, W)
    q = old_logits.softmax(dim=1)
    # Of logits in place of their log-probabilities, which are all smaller by one number: q sums to 1.
    expected = q[:, 0] * folded + (q[:, 1:] * old).sum(dim=1)
    per_pixel = (logits.logsumexp(dim=1) - expected) / num_old
    return mean_over(per_pixel, labels != IGNORE)
