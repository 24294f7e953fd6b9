"""The verb `comastre export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from comastre.text import say

ModelName = Annotated[str, tyro.conf.arg(metavar="MODEL")]
Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]


def export(model: tyro.conf.Positional[ModelName], /, out: Out, to: Literal["transformers"] = "transformers") -> int:
    """Write a model in the format of another program.

    Args:
        model: Folder of a model bundle, or its id on the hub.
        out: New folder for the result.
        to: transformers takes models of Mask2Former's kind, trained without pixel_decoder.top_down.
    """
    from comastre.bundle import store
    from comastre.bundle.hub import locate
    from comastre.bundle.imported import export_model

    folder = export_model(store.load(locate(model)), out)
    say(f"{model} is in {folder} as {to} reads it")
    return 0
