"""The verb `comastre diff`."""

from __future__ import annotations

from typing import Annotated

import tyro

from comastre.text import say


def diff(
    before: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="A")]],
    after: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="B")]],
    /,
    images: Annotated[str, tyro.conf.arg(metavar="FOLDER")],
    device: str = "cpu",
) -> int:
    """Compare two models on any images: which classes differ, on how many pixels, and what became what.

    No labels are needed. Classes go together by name.

    Args:
        before: Folder of a model bundle, or its id on the hub.
        after: The other model.
        images: Images to look at: a folder, a file or a pattern.
        device: cpu, cuda or mps.
    """
    from comastre.prediction.compare import compare, render

    say(render(compare(before, after, images, device)))
    return 0
