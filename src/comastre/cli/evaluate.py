"""The verb `comastre eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from comastre.errors import UserError
from comastre.text import say


def evaluate(
    model: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]],
    /,
    data: Annotated[str, tyro.conf.arg(metavar="DATA")],
    map: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="JSON")] = None,
    split: Annotated[Literal["train", "val", "all"] | None, tyro.conf.arg(metavar="train|val|all")] = None,
    masks: Literal["semantic", "instance"] = "semantic",
    device: str = "cpu",
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    batch_size: int = 1,
    workers: int = 0,
    short_side: Annotated[str | None, tyro.conf.arg(metavar="PIXELS")] = None,
    max_side: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Score a trained model on data: mIoU under every convention, per class, recall, and where masks got lost.

    Base classes are those of the model's first step. Classes go together by name, or as --map says.

    Args:
        model: Folder of a model bundle, or its id on the hub.
        data: A folder with images/, masks/ and classes.txt, a COCO JSON file, NAME:FOLDER such as voc:FOLDER (see
            `comastre data list`), or shapes.
        map: YAML or JSON file with lines `class of the data: class of the model`; null for a class that the model
            does not know, background, or ignore for pixels that are not to be scored.
        out: File for all scores.
        split: Which images; by default the validation split where the data has one, else all.
        masks: What recall counts as a true mask: all pixels of a class in an image, or an object.
        device: cpu, cuda or mps.
        precision: 32-true, or bf16-mixed: bfloat16, faster on a device that has it; nearly all pixels stay the same.
        batch_size: Images at once, at most; scores do not depend on it.
        workers: Processes that read images.
        short_side: The size at which the model sees images, which are scored at their own: pixels, 224,320 to look at
            each, or native; by default what the model was trained for.
        max_side: Limit of the long side that the model sees; by default the model's own.
        overwrite: Replace the file of --out.
    """
    from comastre.data.class_mapping import read_map
    from comastre.data.sources import parse_source

    if out is not None and out.exists() and not (overwrite and out.is_file()):
        fix = "give the name of a file" if out.is_dir() else "choose another name, or give --overwrite"
        raise UserError(f"--out {out} is already there: {fix}")
    source = parse_source(data)
    class_map = None if map is None else read_map(map)
    from comastre.evaluation.scoring import Options, score
    from comastre.evaluation.scoring_text import render
    from comastre.nets.precision import predicting_in
    from comastre.prediction.model import load

    options = Options(split, masks, batch_size, workers, short_side, max_side)
    loaded = load(model).to(device)
    with predicting_in(precision, loaded.segmenter):
        scores = score(loaded, source, class_map, options)
    say(render(scores, model))
    if out is not None:
        scores.write(out)
        say(f"\nall of this is in {out}")
    return 0
