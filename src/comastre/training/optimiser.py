"""AdamW with the paper's parameter groups, and the learning rate as a pure function of the iteration."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from comastre.config.run import TrainingConfig


def iterations_of_step(config: TrainingConfig, step: int, num_new_classes: int) -> int:
    """Iterations of one step: fixed for the first, in proportion to the new classes for later ones."""
    return config.iterations if step == 0 else config.iterations_per_class * num_new_classes


def learning_rate_factor(iteration: int, total: int, warmup: int, power: float) -> float:
    """Share of the base learning rate at `iteration` (0-based): linear warm-up times polynomial decay."""
    rise = min(1.0, (iteration + 1) / (warmup + 1))
    return rise * (1.0 - iteration / total) ** power


def parameter_groups(model: nn.Module, weight_decay: float, backbone_factor: float) -> list[dict[str, Any]]:
    """Trainable parameters in up to four groups: backbone or not, decayed or not; `scale` is the group's rate factor.

    As in Mask2Former, norms and embeddings are not decayed, and the biases of other layers are.
    """
    grouped: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    seen: set[nn.Parameter] = set()
    for path, module in model.named_modules():
        in_backbone = path.split(".")[0] == "backbone"
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or parameter in seen:
                continue
            seen.add(parameter)
            grouped.setdefault((in_backbone, _is_decayed(module, name)), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": weight_decay if decayed else 0.0,
            "scale": backbone_factor if in_backbone else 1.0,
        }
        for (in_backbone, decayed), parameters in sorted(grouped.items())
    ]


def _is_decayed(module: nn.Module, name: str) -> bool:
    # By the class's name, because timm brings norms of its own.
    if isinstance(module, nn.Embedding) or "Norm" in type(module).__name__:
        return False
    # What a layer multiplies or adds is called weight or bias (in_proj_weight of attention too); a parameter under
    # any other name is a learned embedding: queries, positions, levels, tasks.
    return name.endswith(("weight", "bias"))


def build_optimiser(model: nn.Module, config: TrainingConfig, step: int) -> AdamW:
    """AdamW over all trainable parameters, at the step's base learning rate."""
    rate = config.learning_rate if step == 0 else config.later_learning_rate
    later = config.later_backbone_factor
    factor = config.backbone_factor if step == 0 or later is None else later
    groups = parameter_groups(model, config.weight_decay, factor)
    # One kernel for all parameters: a small model's step would otherwise be mostly Python.
    optimiser = AdamW(groups, lr=rate, fused=True)
    set_learning_rate(optimiser, rate)
    return optimiser


def set_learning_rate(optimiser: Optimizer, rate: float) -> None:
    """Give every group its share of `rate`."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["scale"]
