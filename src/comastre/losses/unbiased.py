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
    log_p = torch.log_softmax(logits, dim=1)
    any_old = torch.logsumexp(log_p[:, :num_old], dim=1, keepdim=True)  # (B, 1, H, W)
    log_p = torch.cat([any_old, log_p[:, 1:]], dim=1)
    return mean_over(F.nll_loss(log_p, labels, ignore_index=IGNORE, reduction="none"), labels != IGNORE)


def unbiased_distillation(logits: Tensor, old_logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of old probabilities q (K_old channels) and new ones, where background and new classes are one.

    Divided by K_old, as in MiB; mean over the pixels that are not ignored.
    """
    num_old = old_logits.shape[1]
    log_p = torch.log_softmax(logits, dim=1)
    background = torch.logsumexp(torch.cat([log_p[:, :1], log_p[:, num_old:]], dim=1), dim=1, keepdim=True)
    folded = torch.cat([background, log_p[:, 1:num_old]], dim=1)  # (B, K_old, H, W)
    per_pixel = -(old_logits.softmax(dim=1) * folded).mean(dim=1)  # (B, H, W)
    return mean_over(per_pixel, labels != IGNORE)
