"""AdamW with the paper's parameter groups, and plain SGD; every group says what share of the step's rate it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW

from comastre.config.sections import OptimiserConfig


def parameter_groups(modules: Iterable[nn.Module], weight_decay: float, backbone_factor: float) -> list[dict[str, Any]]:
    """Trainable parameters in up to four groups: backbone or not, decayed or not; `scale` is the group's rate factor.

    As in Mask2Former, norms and embeddings are not decayed, and the biases of other layers are.
    """
    grouped: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    seen: set[nn.Parameter] = set()
    for path, module in (named for each in modules for named in each.named_modules()):
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


def adamw(modules: Iterable[nn.Module], config: OptimiserConfig, step: int) -> AdamW:
    """AdamW over all trainable parameters of the modules, at the step's base learning rate."""
    rate = config.rate(step)
    groups = parameter_groups(modules, config.weight_decay, config.factor_of_backbone(step))
    for group in groups:
        group["base_lr"] = rate
        group["lr"] = rate * group["scale"]
    # One kernel for all parameters: a small model's step would otherwise be mostly Python.
    return AdamW(groups, lr=rate, fused=True)


def sgd(module: nn.Module, config: OptimiserConfig, step: int, momentum: float, nesterov: bool) -> SGD:
    """SGD over all trainable parameters, all decayed alike, as MiB and those that follow it have it."""
    rate = config.rate(step)
    parts: dict[bool, list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            parts.setdefault(name.startswith("backbone."), []).append(parameter)
    scales = {True: config.factor_of_backbone(step), False: 1.0}
    groups = [
        {"params": parameters, "scale": scales[part], "base_lr": rate, "lr": rate * scales[part]}
        for part, parameters in sorted(parts.items())
    ]
    # Nesterov's form needs a momentum.
    return SGD(
        groups,
        lr=rate,
        momentum=momentum,
        nesterov=nesterov and momentum > 0,
        weight_decay=config.weight_decay,
        fused=True,
    )
