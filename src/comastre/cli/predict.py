"""The verb `comastre predict`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from comastre.config.overrides import UsageError
from comastre.text import complain, say

ModelName = Annotated[str, tyro.conf.arg(metavar="MODEL")]
Images = Annotated[list[str], tyro.conf.arg(metavar="IMAGES")]
Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]


def predict(
    model: tyro.conf.Positional[ModelName],
    images: tyro.conf.Positional[Images],
    /,
    out: Out,
    device: str = "cpu",
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    batch_size: int = 8,
    short_side: Annotated[str | None, tyro.conf.arg(metavar="PIXELS")] = None,
    max_side: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    overrides: tyro.conf.Suppress[Mapping[str, Any] | None] = None,
) -> int:
    """Segment images with a trained model: label maps, overlays with a legend, and lists of segments.

    What cannot be read is reported at the end and does not stop the rest; the exit code is then 1. Stopped, the same
    command goes on: finished results are kept. Fields that the model's method has for predictions can be given too,
    such as --alpha 0.5 for a model of CoMasTRe.

    Args:
        model: Folder of a model bundle, or its id on the hub.
        images: Image files, folders (with their sub-folders), or patterns in quotes such as "photos/**/*.jpg".
        out: Folder for the results, which mirror the folders of the images: NAME.labels.png, .overlay.jpg and
            .segments.json (class, score, area, box and COCO's run lengths).
        device: cpu, cuda or mps.
        precision: 32-true, or bf16-mixed: bfloat16, faster on a device that has it; nearly all pixels stay the same.
        batch_size: Images of one size that are segmented at once.
        short_side: The size at which the model sees images, whose results keep their own: pixels, 224,320 to look at
            each, or native; by default what the model was trained for.
        max_side: Limit of the long side that the model sees; by default the model's own.
        overwrite: Replace results that are already there.
        overrides: Fields from the command line, already split off.
    """
    adjust = _of_predictions(overrides or {})
    from comastre.prediction.run import predict_files, render

    outcome = predict_files(
        model,
        images,
        out,
        device=device,
        precision=precision,
        batch_size=batch_size,
        short_side=short_side,
        max_side=max_side,
        overwrite=overwrite,
        adjust=adjust,
    )
    say(render(outcome, out))
    if not outcome.failed:
        return 0
    for sentence in outcome.failed:
        complain(sentence)
    number = len(outcome.failed)
    complain(f"{number:,} {'image' if number == 1 else 'images'} could not be segmented")
    return 1


def _of_predictions(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a method's part for predictions; others are for training."""
    adjust: dict[str, Any] = {}
    for section, values in overrides.items():
        for name, value in values.items() if isinstance(values, Mapping) else [("", values)]:
            if name != "inference" or not isinstance(value, Mapping):
                raise UsageError(f"--{f'{section}.{name}'.rstrip('.')} is for training: leave it away")
            adjust |= value
    return adjust
