"""What a lesson changed, kept inside the new bundle where that is little: the way back to the model before it.

`previous.safetensors` holds the tensors that are other than before, and the old text files. Where a lesson moved most
of the weights it would be as large as a second model and is not written: the old model, which no lesson touches, is the
way back then.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as as_safetensors

from comastre.bundle import history, store
from comastre.bundle.statistics import STATISTICS
from comastre.bundle.weights import WEIGHTS, written
from comastre.errors import UserError
from comastre.files import write_whole

PREVIOUS = "previous.safetensors"
MOST = 0.25
"""Of the weights' size: what is larger is not kept."""
_TEXTS = (store.CONFIG, store.CLASSES, store.CARD)
_ORDER, _PARENT = "tensors", "sha256"


def keep_difference(new: Path, old: Path) -> bool:
    """Write what leads from the bundle `new` back to `old`, where that is little; gives whether it was written."""
    before, after = load_file(old / WEIGHTS), load_file(new / WEIGHTS)
    changed = {name: tensor for name, tensor in before.items() if not _same(tensor, after.get(name))}
    size = sum(tensor.numel() * tensor.element_size() for tensor in changed.values())
    if size > MOST * (new / WEIGHTS).stat().st_size or not (old / store.CARD).is_file():
        return False
    if written(before) != (old / WEIGHTS).read_bytes():  # of another program: it could not be made again bit for bit
        return False
    if (old / STATISTICS).is_file():
        changed[STATISTICS] = torch.frombuffer(bytearray((old / STATISTICS).read_bytes()), dtype=torch.uint8)
    texts = {name: (old / name).read_text(encoding="utf-8") for name in _TEXTS}
    marks = {**texts, _ORDER: json.dumps(list(before)), _PARENT: history.digest(old)}
    write_whole(new / PREVIOUS, as_safetensors(changed, metadata=marks))
    return True


def restore(folder: Path, target: Path) -> None:
    """Write the model before the last lesson of the bundle `folder` into the empty folder `target`."""
    file = folder / PREVIOUS
    try:
        with safe_open(file, framework="pt") as opened:
            marks = opened.metadata() or {}
        changed, after = load_file(file), load_file(folder / WEIGHTS)
        statistics = changed.pop(STATISTICS, None)
        if statistics is not None:
            write_whole(target / STATISTICS, statistics.numpy().tobytes())
        tensors = {name: changed[name] if name in changed else after[name] for name in json.loads(marks[_ORDER])}
        for name in _TEXTS:
            write_whole(target / name, marks[name].encode())
        write_whole(target / WEIGHTS, written(tensors))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}): give --parent FOLDER, the model before the lesson") from None
    if history.digest(target) != marks.get(_PARENT):
        raise UserError(f"{file} does not fit {WEIGHTS} beside it: give --parent FOLDER, the model before the lesson")


def _same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Bit for bit, -0 and NaN too."""
    if other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one.numpy().tobytes() == other.numpy().tobytes()
