"""What the processes of one training or evaluation agree on; in a single process everything is its own value."""

from __future__ import annotations

import torch.distributed
from torch import Tensor


def in_many_processes() -> bool:
    """Whether this process is one of several that work together."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def rank_and_size() -> tuple[int, int]:
    """Which process this is, and how many there are."""
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if in_many_processes() else (0, 1)


def average_over_processes(value: Tensor) -> Tensor:
    """The mean of `value` over all processes, without gradient; `value` itself in a single process.

    A collective: every process must call it the same number of times, also with an empty batch.
    """
    value = value.detach()
    if not in_many_processes():
        return value
    total = value.clone()
    torch.distributed.all_reduce(total)
    return total / torch.distributed.get_world_size()


def sum_over_processes(counts: Tensor) -> Tensor:
    """`counts` added up over all processes: sums of integers stay right however the images are split."""
    total = counts.clone()
    if in_many_processes():
        torch.distributed.all_reduce(total, op=torch.distributed.ReduceOp.SUM)
    return total


def max_over_processes(values: Tensor) -> Tensor:
    """The largest of each value over the processes, without gradient."""
    largest = values.detach().clone()
    if in_many_processes():
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
    return largest


def sum_for_gradient(value: Tensor) -> Tensor:
    """`value` added up over all processes, for a loss of the whole sum that every process computes alike.

    Data-parallel training averages the gradients of the processes, each of which knows its own share of the sum only;
    so the gradient of that share is multiplied by their number.
    """
    if not in_many_processes():
        return value
    total = sum_over_processes(value.detach())
    return total + torch.distributed.get_world_size() * (value - value.detach())
