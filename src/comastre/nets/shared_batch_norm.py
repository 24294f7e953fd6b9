"""BatchNorm with statistics over all processes, so that a run's results do not depend on the number of its devices.

torch's SyncBatchNorm runs on CUDA only; this one runs, and is tested, on any device. Parts of an accumulated batch
still have their own statistics: only runs that do not accumulate are the same on any number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, distributed, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from comastre.nets.precision import upcast
from comastre.nets.still_batch_norm import StillBatchNorm2d, StillBatchNormAct2d

_PIXELS = (0, 2, 3)  # all axes but the channels'


def share_batch_statistics(model: nn.Module) -> None:
    """Let every BatchNorm2d of `model` take its training statistics over all processes; nothing changes with one.

    A collective: every process must call it. Names in the state dict stay, and so does everything in eval mode.
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return
    plain: list[Any] = [module for module in model.modules() if type(module) in _SHARED]
    if not plain:  # or shared already, in an earlier step
        return
    processes = Processes()
    for module in plain:
        module.__class__ = _SHARED[type(module)]
        module.processes = processes


class Processes:
    """Those that share statistics, as a group of their own.

    In the group of DDP the order of messages would differ between processes: DDP sends gradients as soon as they are
    there, and where a batch leaves parameters unused that is at another moment.
    """

    def __init__(self) -> None:
        self.group: Any = distributed.new_group()
        self.count = distributed.get_world_size()

    def __deepcopy__(self, memo: dict[int, Any]) -> Processes:
        return self  # a copied model shares its statistics with the same processes


class SharedBatchNorm2d(StillBatchNorm2d):
    """BatchNorm2d after `share_batch_statistics`."""

    processes: Processes

    def forward(self, input: Tensor) -> Tensor:
        return _normalise(self, input, self.processes) if self.training else super().forward(input)


class SharedBatchNormAct2d(StillBatchNormAct2d):
    """timm's BatchNorm with activation after `share_batch_statistics`."""

    processes: Processes

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(_normalise(self, x, self.processes))) if self.training else super().forward(x)


_SHARED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm2d: SharedBatchNorm2d,
    BatchNormAct2d: SharedBatchNormAct2d,
    StillBatchNorm2d: SharedBatchNorm2d,
    StillBatchNormAct2d: SharedBatchNormAct2d,
}


@dataclass(frozen=True)
class Statistics:
    """Mean and biased variance (C,) of `count` values per channel, in float64."""

    mean: Tensor
    variance: Tensor
    count: Tensor


def statistics_over_processes(values: Tensor, processes: Processes) -> Statistics:
    """Statistics of the values (B, C, H, W) of all processes, which may hold different numbers of them."""
    variance, mean = torch.var_mean(upcast(values), dim=_PIXELS, correction=0)
    count = mean.new_full((1,), values.numel() // values.shape[1], dtype=torch.float64)
    own = torch.cat([mean.double(), variance.double(), count])
    everyone = [torch.empty_like(own) for _ in range(processes.count)]
    distributed.all_gather(everyone, own, group=processes.group)
    means, variances, counts = torch.stack(everyone).split([len(mean), len(mean), 1], dim=1)  # (P, C), (P, C), (P, 1)
    total = counts.sum()
    shared_mean = (counts * means).sum(dim=0) / total
    # From squared distances to the means and not from sums of squares, whose difference is nothing but rounding where
    # a mean is large.
    shared_variance = (counts * (variances + (means - shared_mean).square())).sum(dim=0) / total
    return Statistics(shared_mean, shared_variance, total)


def _normalise(module: nn.BatchNorm2d, values: Tensor, processes: Processes) -> Tensor:
    with torch.no_grad():
        statistics = statistics_over_processes(values, processes)
        _follow(module, statistics)
    return _Normalise.apply(values, module.weight, module.bias, statistics, module.eps, processes)


def _follow(module: nn.BatchNorm2d, statistics: Statistics) -> None:
    """Move the running statistics as nn.BatchNorm2d does: a running mean of means, and of unbiased variances."""
    if not module.track_running_stats:
        return
    assert module.running_mean is not None and module.running_var is not None
    assert module.num_batches_tracked is not None
    module.num_batches_tracked.add_(1)
    factor = 1.0 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
    unbiased = statistics.variance * statistics.count / (statistics.count - 1)
    module.running_mean.lerp_(statistics.mean.to(module.running_mean.dtype), factor)
    module.running_var.lerp_(unbiased.to(module.running_var.dtype), factor)


class _Normalise(Function):
    """(values - mean) / deviation * weight + bias, whose gradient knows that the statistics come from all values."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: Statistics,
        epsilon: float,
        processes: Processes,
    ) -> Tensor:
        wide = upcast(values)
        mean = _per_channel(statistics.mean, wide)
        inverse = _per_channel((statistics.variance + epsilon).rsqrt(), wide)
        ctx.save_for_backward(values, weight, mean, inverse, statistics.count)
        ctx.processes = processes
        scaled = (wide - mean).mul_(inverse)
        if weight is not None:
            scaled.mul_(_per_channel(weight, wide))
        if bias is not None:
            scaled.add_(_per_channel(bias, wide))
        return scaled.to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, mean, inverse, count = ctx.saved_tensors
        wide = upcast(gradient)
        normalised = (upcast(values) - mean) * inverse
        sums = torch.stack(
            [wide.sum(_PIXELS, dtype=torch.float64), (wide * normalised).sum(_PIXELS, dtype=torch.float64)]
        )  # (2, C)
        of_bias = sums[0].to(wide.dtype) if ctx.needs_input_grad[2] else None
        of_weight = sums[1].to(wide.dtype) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, of_weight, of_bias, None, None, None
        # Weights get the gradient of this process's loss, which DDP averages; values that of all processes' losses,
        # because every one of those depends on them through the statistics.
        shared = sums.clone()
        distributed.all_reduce(shared, group=ctx.processes.group)
        through_mean, through_variance = (_per_channel(each, wide) for each in shared / count)
        of_values = (wide - through_mean - normalised * through_variance).mul_(inverse)
        if weight is not None:
            of_values.mul_(_per_channel(weight, wide))
        return of_values.to(values.dtype), of_weight, of_bias, None, None, None


def _per_channel(numbers: Tensor, like: Tensor) -> Tensor:
    return numbers.to(like.dtype).view(1, -1, 1, 1)
