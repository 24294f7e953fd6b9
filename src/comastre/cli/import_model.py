"""The verb `comastre import-model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from comastre.text import say

Source = Annotated[str, tyro.conf.arg(metavar="SOURCE")]
Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]


def import_model(
    source: tyro.conf.Positional[Source],
    /,
    out: Out,
    head: Annotated[
        Literal["semantic", "panoptic", "instance"] | None, tyro.conf.arg(metavar="semantic|panoptic|instance")
    ] = None,
    stuff: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="CLASS")] = None,
) -> int:
    """Turn a public Mask2Former of transformers into a model bundle, with all its classes.

    It then predicts here as it does there. Weights are read from safetensors files only.

    Args:
        source: Folder of a transformers checkpoint (config.json and safetensors files), or its id on the hub.
        out: Folder of the new model bundle.
        head: What it was trained for; by default what the name of the source ends in, else panoptic.
        stuff: Classes without objects, whose segments are one; by default those of COCO, where it has its 133 classes.
    """
    from comastre.bundle import store
    from comastre.bundle.imported import import_model as read

    store.refuse_taken(out)  # before a large checkpoint is fetched
    bundle = read(source, head, stuff)
    store.save(bundle, out)
    say(f"{len(bundle.classes.names)} classes of {source} are in {out}: comastre predict {out} IMAGES --out DIR")
    return 0
