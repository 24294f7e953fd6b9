"""`comastre predict`: from image files to label maps, overlays and lists of segments."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from comastre.arguments import whole_number
from comastre.config.view import UNWRITTEN, ViewConfig, padded_sizes
from comastre.data.images import image_size, read_image
from comastre.errors import UserError
from comastre.evaluation.image_progress import ImageProgress
from comastre.files import sweep
from comastre.paths import user_path
from comastre.prediction.beside import InOrder, one_ahead
from comastre.prediction.earlier import left_to_do, made_by
from comastre.prediction.image_files import ImageFile, find_images
from comastre.prediction.model import Model, Source, load
from comastre.prediction.result import Prediction, result_files
from comastre.segmentation import Size

PIXELS_AT_ONCE = 4_000_000
"""Of images that the model sees large, fewer than --batch-size are segmented at once."""
PIXELS_IN_MEMORY = 16_000_000
"""And of large images, whatever the model sees of them: a batch's results, and those that wait to be written."""


@dataclass
class Outcome:
    """What became of the images."""

    written: list[Path] = field(default_factory=list)
    """Label maps."""
    failed: list[str] = field(default_factory=list)
    """One sentence per image that could not be segmented."""
    images_with: Counter[str] = field(default_factory=Counter)
    """How many images show each class."""
    empty: int = 0
    """Images in which nothing was found."""
    kept: int = 0
    """Images whose results an earlier start of the same command left."""
    seconds: float = 0.0


def predict_files(
    model_name: str,
    sources: Sequence[str | Path],
    out: Path,
    *,
    device: str = "cpu",
    precision: str = "32-true",
    batch_size: int = 8,
    short_side: str | None = None,
    max_side: int | None = None,
    overwrite: bool = False,
    adjust: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> Outcome:
    """Write the results of every image to the folder `out`; what cannot be read is left out and reported.

    Started again, it keeps finished results of the same model and settings. `adjust` are fields that the model's method
    reads when it predicts.
    """
    whole_number("--batch-size", batch_size)
    if max_side is not None:
        whole_number("--max-side", max_side)
    UNWRITTEN.changed(short_side, max_side)  # what is wrong with them is said before anything is loaded
    out = user_path(out, "--out")
    images = find_images(sources, leave_out=out)
    check_targets(images, out)
    model = load(model_name).adjusted(**(adjust or {})).to(device, precision)
    view = model.view.changed(short_side, max_side)
    settings = {"view": view.model_dump(mode="json")} | ({} if precision == "32-true" else {"precision": precision})
    maker = made_by(model.bundle, settings)
    waiting = left_to_do(images, out, maker, overwrite)
    for folder in {(out / image.name).parent for image in images}:
        sweep(folder)
    outcome, began = Outcome(kept=len(images) - len(waiting)), time.perf_counter()

    def save(result: tuple[ImageFile, Prediction]) -> None:
        image, prediction = result
        left_to_do([image], out, maker, overwrite)  # another command may have written there meanwhile
        outcome.written.append(prediction.save(out / image.name, overwrite=True, maker=maker)[0])
        outcome.images_with.update({each.name for each in prediction.segments})
        outcome.empty += not prediction.segments

    with ImageProgress("segmenting", len(waiting), console) as progress:
        with InOrder(save, PIXELS_IN_MEMORY) as saver:  # the model goes on while results are written
            for batch, read in one_ahead(batches(waiting, batch_size, view, outcome), read_all):
                for image, prediction in segmented(model, batch, read, view, outcome):
                    saver.add((image, prediction), prediction.label_map.size)
                progress.advance(len(outcome.written) + len(outcome.failed) - progress.done)
        progress.advance(len(outcome.written) + len(outcome.failed) - progress.done)
    outcome.seconds = time.perf_counter() - began
    return outcome


def check_targets(images: Sequence[ImageFile], out: Path) -> None:
    """Refuse to write over images, ever; before any work is done."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: give the name of a folder")
    given = {image.path.absolute() for image in images}
    targets = [file for image in images for file in result_files(out / image.name)]
    over_image = next((file for file in targets if file.absolute() in given), None)
    if over_image is not None:
        raise UserError(f"{over_image} is one of the images and would be replaced by a result: choose another --out")


def batches(
    images: Sequence[ImageFile], batch_size: int, view: ViewConfig, outcome: Outcome
) -> Iterator[list[ImageFile]]:
    """Images together of which the model sees the same size."""
    by_size: dict[tuple[Size, ...], list[tuple[ImageFile, int]]] = {}
    for image in images:
        try:
            height, width = image_size(image.path)
            by_size.setdefault(padded_sizes(view, height, width), []).append((image, height * width))
        except UserError as error:
            outcome.failed.append(str(error))
    for sizes, same in by_size.items():
        most = max(1, min(batch_size, PIXELS_AT_ONCE // max(height * width for height, width in sizes)))
        batch: list[ImageFile] = []
        in_memory = 0
        for image, pixels in same:
            if batch and (len(batch) == most or in_memory + pixels > PIXELS_IN_MEMORY):
                yield batch
                batch, in_memory = [], 0
            batch.append(image)
            in_memory += pixels
        yield batch


def read_all(batch: Sequence[ImageFile]) -> list[np.ndarray | UserError]:
    """The pixels of every image, or why there are none."""
    read: list[np.ndarray | UserError] = []
    for image in batch:
        try:
            read.append(read_image(image.path)[0])
        except UserError as error:
            read.append(error)
    return read


def segmented(
    model: Model,
    batch: Sequence[ImageFile],
    read: Sequence[np.ndarray | UserError],
    view: ViewConfig,
    outcome: Outcome,
) -> Iterator[tuple[ImageFile, Prediction]]:
    """The batch's images with what was found in them; of those that fail, only the reason is kept."""
    outcome.failed += [str(each) for each in read if isinstance(each, UserError)]
    images = [image for image, each in zip(batch, read, strict=True) if not isinstance(each, UserError)]
    pixels = [each for each in read if not isinstance(each, UserError)]
    try:
        sources = [Source(each, str(image.path)) for image, each in zip(images, pixels, strict=True)]
        predictions = model.predict_many(
            sources, batch_size=len(batch), short_side=view.short_side, max_side=view.max_side
        )
        yield from zip(images, predictions, strict=True)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):  # PyTorch has no class for that on a CPU
            raise
        if len(images) > 1:  # what was too much together may do one by one
            for image, each in zip(images, pixels, strict=True):
                yield from segmented(model, [image], [each], view, outcome)
        else:
            height, width = pixels[0].shape[:2]
            outcome.failed.append(
                f"The image {images[0].path} ({width} x {height}) needs more memory than there is: give --max-side 1024"
            )


def render(outcome: Outcome, out: Path) -> str:
    """What a user should know at the end, in one or two lines."""
    number, before = len(outcome.written), f"{outcome.kept:,} {'was' if outcome.kept == 1 else 'were'} done before"
    if outcome.kept and not number and not outcome.failed:
        return f"nothing is left to do: the results of all {outcome.kept:,} images are in {out}"
    lines = [f"{number:,} {'image' if number == 1 else 'images'} segmented in {outcome.seconds:.1f} s"]
    lines[0] += f" ({before})" if outcome.kept else ""
    if number:
        found = [f"{name} in {images:,}" for name, images in outcome.images_with.most_common(8)]
        others = len(outcome.images_with) - len(found)
        found += [f"{others} other {'class' if others == 1 else 'classes'}"] if others else []
        found += [f"nothing in {outcome.empty:,}"] if outcome.empty else []
        lines[0] += f": {', '.join(found)}"
        lines.append(f"results are in {out}: NAME.labels.png, NAME.overlay.jpg and NAME.segments.json")
    return "\n".join(lines)
