"""Tensors that cost little to make are made again for the gradient, not kept for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

_recomputing: ContextVar[bool] = ContextVar("recomputing", default=False)


@contextmanager
def made_again(made: Tensor, make: Callable[..., Tensor], *of: Tensor) -> Iterator[None]:
    """Inside this block, whatever would keep `made` for its gradient keeps what it was made of, and makes it again.

    `make(*of)` gives `made`, bit for bit. Nothing is done where nothing is kept, and where everything is recomputed
    anyway: this would hide from the recomputing what is to be thrown away.
    """
    if not torch.is_grad_enabled() or _recomputing.get() or torch.compiler.is_compiling():
        yield
        return
    # Numbers, not the tensor itself, which would live as long as the hooks do.
    place, size = made.untyped_storage().data_ptr(), made.numel()
    versions = [each._version for each in of]

    def pack(kept: Tensor) -> Any:
        whole = kept.untyped_storage().data_ptr() == place and kept.numel() == size
        return kept.shape if whole else kept

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        if versions != [each._version for each in of]:
            raise RuntimeError("what a tensor was made of has changed since, so that its gradient can't be computed")
        with torch.no_grad():
            return make(*of).view(kept)

    with saved_tensors_hooks(pack, unpack):
        yield


@contextmanager
def recomputing() -> Iterator[None]:
    """Around what is computed once more for the gradient as a whole."""
    before = _recomputing.set(True)
    try:
        yield
    finally:
        _recomputing.reset(before)
