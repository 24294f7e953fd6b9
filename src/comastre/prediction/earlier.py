"""Results that an earlier start of the same command left: finished ones are kept, half ones are made again.

A result's list of segments is signed by what made it, and that file is written first, the label map last. So a label
map is never without its overlay, whatever a kill or a full disk left half done is known to be ours, and a list that was
changed since is not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from comastre import __version__
from comastre.bundle.store import Bundle
from comastre.documents import read_json
from comastre.errors import UserError
from comastre.prediction.image_files import ImageFile
from comastre.prediction.result import MADE_BY, result_files, signature


def made_by(bundle: Bundle, settings: Mapping[str, Any]) -> str:
    """A short name for all that decides a result: the model, its classes, how it predicts, and this version of us."""
    digest = hashlib.sha256()
    described = (__version__, bundle.description.method, bundle.classes.model_dump_json())
    for text in (*described, bundle.description.settings.model_dump_json(), json.dumps(settings, sort_keys=True)):
        digest.update(f"{text}\n".encode())
    for name, tensor in sorted(bundle.model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def left_to_do(images: Sequence[ImageFile], out: Path, maker: str, overwrite: bool) -> list[ImageFile]:
    """The images without a finished result of `maker`; what others made is never replaced unless asked."""
    if overwrite:
        return list(images)
    waiting, foreign = [], []
    for image in images:
        files = result_files(out / image.name)
        existing = [file for file in files if file.exists()]
        if existing and not _is_ours(image, files[2], maker):
            foreign += existing
        elif len(existing) < len(files):
            waiting.append(image)
    if foreign:
        more = f" and {len(foreign) - 1:,} more results" if foreign[1:] else ""
        raise UserError(
            f"{foreign[0]}{more} would be replaced: choose another --out, or give --overwrite if they may go"
        )
    return waiting


def _is_ours(image: ImageFile, segments: Path, maker: str) -> bool:
    """Whether a list of segments is one that `maker` would write of the image as it is now."""
    try:
        content = read_json(segments)
        return (
            isinstance(content, dict)
            and content.get(MADE_BY) == signature(content, maker)
            and content.get("image") == str(image.path)
            and image.path.stat().st_mtime <= segments.stat().st_mtime
        )
    except (OSError, ValueError):
        return False
