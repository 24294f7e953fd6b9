"""The stage 1 of another model as the start of a run's first step (`init`, paper Table 4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comastre.bundle import store
from comastre.errors import UserError
from comastre.methods.comastre.segmenter import Segmenter
from comastre.training.directory import CONFIG

# The paper transfers stage 1; the class decoder starts afresh, whatever it knew before.
_STAGE_ONE = ("backbone", "pixel_decoder", "mask_decoder")


def start_from(model: Segmenter, source: str | None) -> None:
    """Give `model` the stage 1 of the run or model bundle `source`, which must be built alike; nothing for None."""
    if source is None:
        return
    given = store.load(_bundle_of(Path(source).expanduser())).model
    for field, theirs, ours in _fields(given, model):
        if theirs != ours:
            raise UserError(
                f"--init {source} does not fit: model.{field} is {theirs} there but {ours} here; "
                f"set --model.{field} {_written(theirs)}, or start from another model"
            )
    for part in _STAGE_ONE:
        getattr(model, part).load_state_dict(getattr(given, part).state_dict())


def _bundle_of(source: Path) -> Path:
    """The model of the last finished step where `source` is a run."""
    if not (source / CONFIG).exists():
        if not source.exists():
            raise UserError(f"--init: there is no run or model at {source}")
        return source
    # Names of bundles that are being written start with a dot.
    finished = sorted(path for path in (source / "steps").glob("[0-9]*") if path.is_dir())
    if not finished:
        raise UserError(f"--init: the run {source} has no finished step yet: let it go on first")
    return finished[-1]


def _fields(given: Segmenter, model: Segmenter) -> Iterator[tuple[str, Any, Any]]:
    """Everything that decides what stage 1 is: the field, its value in `given` and in `model`."""
    yield "backbone.name", given.config.backbone.name, model.config.backbone.name
    for name in ("mean", "std"):
        theirs, ours = (tuple(getattr(each.backbone, name).flatten().tolist()) for each in (given, model))
        yield f"backbone.{name}", theirs, ours
    for section in ("pixel_decoder", "mask_decoder"):
        theirs, ours = getattr(given.config, section), getattr(model.config, section)
        for name in type(ours).model_fields:
            yield f"{section}.{name}", getattr(theirs, name), getattr(ours, name)


def _written(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
