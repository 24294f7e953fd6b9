"""Exact resume: everything a run needs to go on as if nothing had happened, in one file that is never half written.

A checkpoint is a safetensors file: tensors by name, the rest as JSON in its header, and a checksum of both. Nothing is
ever unpickled.
"""

from __future__ import annotations

import errno
import json
import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.optim import Optimizer

from comastre.bundle.weights import bytes_of, checksum
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.methods.teacher import below
from comastre.training.stopping import Diverged

VERSION = 3
KEPT = 2
_STATE, _CHECKSUM = "comastre", "checksum"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DAMAGED = (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OSError)
"""What reading a damaged checkpoint raises, by where the damage is."""
_FILE_NAME = re.compile(r"step-(\d+)-iteration-(\d+)\.safetensors")


@dataclass(frozen=True)
class Position:
    """Where a run is: `iteration` iterations of step `step` are done; iteration 0 means that the step has not begun."""

    step: int = 0
    iteration: int = 0
    seconds: float = 0.0
    """Training time of this step so far, over all restarts."""


@dataclass(frozen=True)
class Checkpoint:
    position: Position
    model: Mapping[str, Tensor]
    tasks: tuple[int, ...] = ()
    """Classes of each task that the model knows or learns: what its structure is."""
    method: Mapping[str, Tensor] = field(default_factory=dict)
    """What the method keeps beside the model, as its `state` gives it."""
    optimiser: Mapping[str, Tensor] = field(default_factory=dict)
    """As `optimiser_tensors` gives them."""
    random_states: tuple[Mapping[str, Tensor], ...] = ()
    """One set per process, as `random_state` gives it."""
    results: Mapping[str, Any] = field(default_factory=dict)
    """Results of the steps that are done, as in `results.json`."""
    scaler: Mapping[str, Any] = field(default_factory=dict)
    """Loss scaling of 16-bit precision."""
    config: str = ""
    """Fingerprint of the configuration that wrote it."""


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write the checkpoint all or nothing, then drop all but the last two."""
    _refuse_non_finite(checkpoint)
    tensors = _named_tensors(checkpoint)
    state = {
        "version": VERSION,
        "position": asdict(checkpoint.position),
        "results": checkpoint.results,
        "scaler": checkpoint.scaler,
        "config": checkpoint.config,
        "tasks": list(checkpoint.tasks),
        "processes": len(checkpoint.random_states),
    }
    text = json.dumps(state)
    header = {_STATE: text, _CHECKSUM: checksum(tensors, text)}
    position = checkpoint.position
    path = folder / f"step-{position.step:02d}-iteration-{position.iteration:08d}.safetensors"
    write_atomically(path, safetensors.torch.save(tensors, metadata=header))
    # Together with what a kill left half written.
    for old in (*_newest_first(folder)[KEPT:], *folder.glob(".*.partial")):
        old.unlink(missing_ok=True)
    return path


def load_latest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None where there is none yet; damaged ones are put aside and named."""
    paths = _newest_first(folder)
    for path in paths:
        try:
            return load(path)
        except _DAMAGED as error:
            aside = path.with_suffix(".damaged")
            path.replace(aside)
            warn(f"{aside} is damaged ({error}): going on from the checkpoint before it")
    if paths:
        raise UserError(f"every checkpoint in {folder} is damaged: start over with --fresh")
    return None


def load(path: Path) -> Checkpoint:
    """Read one checkpoint; ValueError, KeyError, TypeError or SafetensorError where the file is damaged."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    state = json.loads(header[_STATE])
    if _CHECKSUM in header or state["version"] == VERSION:
        # Before anything in the header is believed, its version too.
        fits = header[_CHECKSUM] == checksum(tensors, header[_STATE])
    else:
        fits = state["version"] != 2 or state["checksum"] == _checksum_of_version_2(tensors)
    if not fits:
        raise ValueError("its checksum does not fit its content")
    if state["version"] not in (2, VERSION):
        raise UserError(f"{path} was written by another version of comastre: start over with --fresh")
    return Checkpoint(
        position=Position(**state["position"]),
        model=below(tensors, "model/"),
        tasks=tuple(state["tasks"]),
        method=below(tensors, "method/"),
        optimiser=below(tensors, "optimiser/"),
        random_states=tuple(below(tensors, f"random/{rank}/") for rank in range(state["processes"])),
        results=state["results"],
        scaler=state["scaler"],
        config=state["config"],
    )


def saved_results(folder: Path) -> Any:
    """What the newest checkpoint's header says of the results, at no cost and not checked: good for a comparison only.

    None where it cannot be read.
    """
    for path in _newest_first(folder)[:1]:
        with (
            suppress(SafetensorError, ValueError, KeyError, TypeError, OSError),
            safe_open(path, framework="pt") as file,
        ):
            return json.loads(file.metadata()[_STATE])["results"]
    return None


# --- the optimiser as flat tensors -----------------------------------------------------------------------------------


def optimiser_tensors(optimiser: Optimizer) -> dict[str, Tensor]:
    """The optimiser's memory as `<parameter number>/<name>`; rates and decays come from the configuration instead."""
    return {
        f"{number}/{name}": torch.as_tensor(value)
        for number, memory in optimiser.state_dict()["state"].items()
        for name, value in memory.items()
    }


def restore_optimiser(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give the optimiser back what `optimiser_tensors` took."""
    memory: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split("/")
        memory.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict({"state": memory, "param_groups": optimiser.state_dict()["param_groups"]})


# --- random states as tensors ----------------------------------------------------------------------------------------


def random_state() -> dict[str, Tensor]:
    """States of Python's, numpy's and torch's generators (CPU and every CUDA device)."""
    version, internal, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=True)
    assert isinstance(numpy_state, tuple)
    state = {
        "python": torch.tensor([version, *internal], dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(numpy_state[1].astype(np.int64)),
        "numpy_rest": torch.tensor([float(value) for value in numpy_state[2:]], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state |= {f"cuda{number}": value for number, value in enumerate(torch.cuda.get_rng_state_all())}
    return state


def restore_random_state(state: Mapping[str, Tensor]) -> None:
    """Put all generators back to where `random_state` found them."""
    version, *internal = state["python"].tolist()
    gauss = state["python_gauss"].tolist()
    random.setstate((version, tuple(internal), gauss[0] if gauss else None))
    position, has_gauss, cached = state["numpy_rest"].tolist()
    numpy_key = state["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", numpy_key, int(position), int(has_gauss), cached))
    torch.set_rng_state(state["torch"])
    for number in range(torch.cuda.device_count()):
        if f"cuda{number}" in state:
            torch.cuda.set_rng_state(state[f"cuda{number}"], number)


# --- writing ---------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file of a run whole, or say in one sentence why it could not be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_whole(path, content)
    except OSError as error:
        raise disk_error(error, path) from error


def disk_error(error: OSError, path: Path) -> UserError:
    """One sentence for a file that could not be written."""
    if error.errno in _FULL:
        return UserError(
            f"the disk is full: {path} could not be written; free some space and start the same command again, "
            "it goes on from the last checkpoint"
        )
    return UserError(f"{path} could not be written: {error.strerror or error}")


@contextmanager
def explained_full_disk(out: Path) -> Iterator[None]:
    """Turn an error about a full disk, raised in this block by any library, into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise disk_error(error, out) from error


def _newest_first(folder: Path) -> list[Path]:
    matches = {path: _FILE_NAME.fullmatch(path.name) for path in folder.glob("step-*.safetensors")}
    numbered = [(int(match[1]), int(match[2]), path) for path, match in matches.items() if match]
    return [path for *_, path in sorted(numbered, reverse=True)]


def _named_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    groups: dict[str, Mapping[str, Tensor]] = {
        "model/": checkpoint.model,
        "method/": checkpoint.method,
        "optimiser/": checkpoint.optimiser,
    }
    groups |= {f"random/{rank}/": state for rank, state in enumerate(checkpoint.random_states)}
    return {
        # A copy, because safetensors refuses tensors that share memory.
        f"{prefix}{name}": tensor.detach().to("cpu", copy=True).contiguous()
        for prefix, tensors in groups.items()
        for name, tensor in tensors.items()
    }


def _refuse_non_finite(checkpoint: Checkpoint) -> None:
    for name, tensor in checkpoint.model.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            position = checkpoint.position
            raise Diverged(
                f"weight {name} became NaN or infinite by step {position.step}, iteration {position.iteration}: "
                "lower optimiser.learning_rate or optimiser.clip; the last good checkpoint is kept"
            )


def _checksum_of_version_2(tensors: Mapping[str, Tensor]) -> int:
    """That version did not look at its header."""
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(bytes_of(tensors[name]), zlib.crc32(name.encode(), value))
    return value
