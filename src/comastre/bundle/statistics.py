"""What a model keeps of its classes beside its weights: `statistics.safetensors` of a bundle, for later lessons alone.

Predictions do not need it, and a bundle without it is whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from comastre.bundle.weights import CHECKSUM, checksum, refuse_infinite, written
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.methods.class_statistics import KeptStatistics

STATISTICS = "statistics.safetensors"


def write_statistics(model: Any, folder: Path) -> None:
    """Write those of the model, if it has any; not those of before it grew."""
    kept = getattr(model, "statistics", None)
    if isinstance(kept, KeptStatistics) and len(kept.counts) == 1 + sum(model.tasks):
        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in kept.tensors().items()}
        write_whole(folder / STATISTICS, written(tensors))


def read_statistics(model: Any, folder: Path) -> None:
    """Give the model what a bundle's folder has of them, which must be of its classes."""
    file = folder / STATISTICS
    if not file.is_file() or not hasattr(model, "statistics"):
        return
    try:
        with safe_open(file, framework="pt") as opened:
            noted = (opened.metadata() or {}).get(CHECKSUM)
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise _damaged(file, str(error)) from None
    if noted != checksum(tensors):
        raise _damaged(file, "its checksum does not fit its numbers")
    refuse_infinite(str(file), tensors)
    rows, width = 1 + sum(model.tasks), tensors["means"].shape[-1] if "means" in tensors else 0
    expected = {"means": (rows, width), "counts": (rows,), "covariance": (width, width)}
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        raise _damaged(file, "it is of another model")
    if any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise _damaged(file, "its numbers are of another kind")
    model.statistics = KeptStatistics(**tensors)


def _damaged(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is damaged ({reason}): copy it again, or delete it; only instant lessons read it")
