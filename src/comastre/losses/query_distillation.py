"""What an old model says of queries, passed on: CoMFormer's distillation of classes with "no object"."""

from __future__ import annotations

import torch
from torch import Tensor

from comastre.losses.reduce import mean_over
from comastre.nets.precision import upcast


def query_distillation(logits: Tensor, old_logits: Tensor, gamma: float = 0.0) -> Tensor:
    """KL(old || new) of classes, logits (B, N, C + 1) and (B, N, C_old + 1), "no object" last; a mean over queries.

    What the old model took for nothing may be of a new class: "no object" of the new model is that and all new classes
    (MiB). A query weighs (1 - old probability of "no object")^gamma, all alike for 0: most queries say nothing.
    """
    num_old = old_logits.shape[-1] - 1
    logs = upcast(logits).log_softmax(-1)
    nothing = logs[..., num_old:].logsumexp(-1, keepdim=True)
    new = torch.cat((logs[..., :num_old], nothing), dim=-1)  # (B, N, C_old + 1)
    old = upcast(old_logits.detach()).log_softmax(-1)
    divergence = (old.exp() * (old - new)).sum(-1)  # (B, N)
    weights = (1 - old[..., -1].exp()).clamp(min=0).pow(gamma)
    return mean_over(divergence, weights)
