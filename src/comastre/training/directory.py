"""The run directory: one process at a time, one configuration for its whole life."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comastre.config.first_step import CHANGEABLE
from comastre.config.run import RunConfig
from comastre.config.run_files import CHECKPOINTS, CONFIG, HOLDER, RESULTS
from comastre.config.settings import differences, listed, load_config, write_config
from comastre.errors import UserError
from comastre.training.lock import locked


def refuse_unfit(out: Path, config: RunConfig, fresh: bool) -> None:
    """Say why `out` cannot be the directory of a run of `config`, where that is so; nothing is written."""
    _refuse_foreign(out)
    if not fresh and (out / CONFIG).exists() and _has_begun(out):
        _refuse_changes(out, config)


@contextmanager
def claimed(out: Path, config: RunConfig, fresh: bool) -> Iterator[None]:
    """Hold `out` as the directory of a run of `config`, new or to be continued, or say why it cannot be.

    `fresh` first moves a run that is there to `out`.old-1, -2 and so on.
    """
    refuse_unfit(out, config, fresh)
    if fresh and (out / CONFIG).exists():
        with locked(out):
            move_aside(out)
    with locked(out):
        refuse_unfit(out, config, fresh=False)  # again, as somebody may have started a run here meanwhile
        write_config(config, out / CONFIG)
        yield


def fingerprint(config: RunConfig) -> str:
    """A short name for everything in `config` that decides what is learned."""
    document = config.model_dump(mode="json")
    for name in CHANGEABLE:
        section, field = name.split(".")
        del document[section][field]
    # It acts on scores alone, and checkpoints of before it was there stay good; `config.yaml` is compared with it.
    del document["evaluation"]["parts_as_proposals"]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: name a folder")
    if not out.exists() or (out / CONFIG).exists():
        return
    # Hidden files are ours: a run that was killed in its first moment leaves nothing else.
    if any(not path.name.startswith(".") for path in out.iterdir()):
        raise UserError(f"--out {out} holds other files and is not a run: name a new or an empty folder")


def has_checkpoint(out: Path) -> bool:
    """Whether there is anything that a restart goes on from."""
    return any((out / CHECKPOINTS).glob("step-*"))


def _has_begun(out: Path) -> bool:
    # A run that was killed before its first checkpoint holds nothing to protect.
    return (out / RESULTS).exists() or has_checkpoint(out)


def move_aside(out: Path) -> None:
    """Give a run's directory another name: out.old-1, -2 and so on."""
    number = 1
    while (aside := out.with_name(f"{out.name}.old-{number}")).exists():
        number += 1
    (out / HOLDER).unlink(missing_ok=True)  # nobody trains what was put aside
    out.rename(aside)


def _refuse_changes(out: Path, config: RunConfig) -> None:
    changed = differences(load_config(out / CONFIG), config)
    refused = [found for found in changed if found.field not in CHANGEABLE]
    if refused:
        raise UserError(
            f"{out} was started with other settings ({listed(refused)}): undo the change, "
            "name another --out, or start over with --fresh"
        )
