"""The model of the step before as a teacher, and modules of a method as tensors that survive a kill."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

OLD_MODEL = "old_model/"
"""What the names of a teacher's tensors begin with in a method's state."""

Model = TypeVar("Model", bound=nn.Module)


def frozen_copy(model: Model) -> Model:
    """A model as its successor's teacher: fixed and in eval mode."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def state_of(module: nn.Module | None, prefix: str = OLD_MODEL) -> dict[str, Tensor]:
    """The tensors of a module under names that begin with `prefix`; none where there is no module."""
    return {} if module is None else {f"{prefix}{name}": tensor for name, tensor in module.state_dict().items()}


def below(state: Mapping[str, Tensor], prefix: str = OLD_MODEL) -> dict[str, Tensor]:
    """What `state_of` gave, by its own names; empty where there was nothing."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
