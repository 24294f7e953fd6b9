"""Pictures for the report: the same few validation images after every step, with truth and prediction.

They are kept in the run directory, small, so that a report can be made where the dataset is not:

    examples/index.json       which images, and the name and colour of every label
    examples/image/00.jpg     the images
    examples/truth/00.png     true labels of all classes of the stream, 0 background, 255 ignored
    examples/step-00/00.png   labels predicted after the first step
"""

from __future__ import annotations

import io
import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from comastre.config.run_files import EXAMPLES
from comastre.config.view import UNWRITTEN, ViewConfig
from comastre.data.dataset import IGNORE, SegmentationDataset
from comastre.documents import json_bytes, read_json
from comastre.evaluation.seeing import see
from comastre.files import copy_files, write_whole
from comastre.segmentation import SegmentImages
from comastre.stream.scenario import Scenario

INDEX = "index.json"
COUNT = 12
LONGEST_SIDE = 320
_VERSION = 1
_STEP = "step-"  # and its number: a folder of predictions


def choose_examples(
    presence: Sequence[Collection[int]], class_order: Sequence[int], count: int = COUNT
) -> tuple[int, ...]:
    """Indices of `count` images that show as many classes as possible, the first and the last learned ones above all.

    Only the data and the class order decide, not the setting: runs that can be compared show the same images.
    """
    # From both ends in turn: whatever the setting, there are old classes (to be forgotten) and new ones.
    ends = [(class_order[-1 - place], class_order[place]) for place in range((len(class_order) + 1) // 2)]
    turns = [label for pair in ends for label in pair]
    shown: Counter[int] = Counter()
    chosen: list[int] = []
    candidates = [index for index, classes in enumerate(presence) if classes]
    while candidates and len(chosen) < count:
        possible = set().union(*(presence[index] for index in candidates))
        # The least shown class that some image left can show; of equals the first in turn.
        wanted = min((label for label in turns if label in possible), key=lambda label: shown[label], default=None)
        if wanted is None:
            break
        fewest = shown[wanted]

        def gain(index: int) -> int:
            # Two classes tell more than one; the most crowded images would be no fair sample.
            return min(2, sum(shown[label] <= fewest for label in presence[index]))  # noqa: B023 (called at once)

        best = max((index for index in candidates if wanted in presence[index]), key=gain)  # of equals the first
        chosen.append(best)
        candidates.remove(best)
        shown.update(presence[best])
    place = {label: position for position, label in enumerate(class_order)}
    # Images with old classes alone come first.
    return tuple(sorted(chosen, key=lambda index: (max(place.get(label, -1) for label in presence[index]), index)))


def record_examples(
    segment: SegmentImages,
    run: Path,
    dataset: SegmentationDataset,
    scenario: Scenario,
    step: int,
    view: ViewConfig = UNWRITTEN,
    device: torch.device | str = "cpu",
) -> None:
    """Write what a model, in eval mode, sees in the example images after `step`; draws no random numbers."""
    folder = run / EXAMPLES
    chosen = choose_examples(dataset.presence(), scenario.class_order)
    lookup = scenario.evaluation_lookup(len(scenario.tasks) - 1)
    colours = [dataset.colours[0], *(dataset.colours[label] for label in scenario.class_order)]
    names = ["background" if dataset.has_background else "void"]
    names += [dataset.class_names[label - 1] for label in scenario.class_order]
    if recorded_names(folder) not in ([], [dataset[index].image_id for index in chosen]):
        shutil.rmtree(folder)  # of a base run with another class order: its other pictures cannot be compared
    for part in ("image", "truth", step_folder(step)):
        (folder / part).mkdir(parents=True, exist_ok=True)
    images = []
    for number, index in enumerate(chosen):
        sample = dataset[index]
        pixels = torch.from_numpy(np.array(sample.image)).permute(2, 0, 1)
        (found,) = see(segment, [pixels], view, device)
        size = small_size(sample.image.shape[:2])
        truth = lookup[sample.semantic]  # (H, W)
        picture = folder / "image" / f"{number:02d}.jpg"
        if not picture.exists():
            write_whole(picture, photograph(sample.image, size))
        write_whole(folder / "truth" / f"{number:02d}.png", _label_map(truth, colours, size))
        prediction = found.label_map.cpu().numpy()
        write_whole(folder / step_folder(step) / f"{number:02d}.png", _label_map(prediction, colours, size))
        present = [names[label] for label in np.unique(truth) if 0 < label < len(names)]
        images.append({"name": sample.image_id, "height": size[0], "width": size[1], "classes": present})
    labels = [{"name": name, "colour": list(colour)} for name, colour in zip(names, colours, strict=True)]
    index_file = {"version": _VERSION, "images": images, "labels": labels}
    # Last: what it names is there.
    write_whole(folder / INDEX, json_bytes(index_file))


def recorded_names(folder: Path) -> list[str]:
    """Names of the images in a folder of examples; none where there is no whole one."""
    try:
        return [image["name"] for image in read_json(folder / INDEX)["images"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def adopt_examples(base: Path, run: Path) -> None:
    """Take over the examples of another run's first step, where it has some."""
    if not (base / EXAMPLES / INDEX).is_file():
        return
    (run / EXAMPLES).mkdir(parents=True, exist_ok=True)
    for part in ("image", "truth", step_folder(0)):
        copy_files(base / EXAMPLES / part, run / EXAMPLES / part)
    write_whole(run / EXAMPLES / INDEX, (base / EXAMPLES / INDEX).read_bytes())


def step_folder(step: int) -> str:
    """The folder of the predictions after `step`, below `examples`."""
    return f"{_STEP}{step:02d}"


def recorded_steps(examples: Path) -> list[int]:
    """The steps that have a folder of predictions below `examples`, in order."""
    numbers = [path.name.removeprefix(_STEP) for path in examples.glob(f"{_STEP}*")]
    return sorted(int(number) for number in numbers if number.isdecimal() and len(number) < 5)


def small_size(size: Any) -> tuple[int, int]:
    """Height and width with the longest side limited."""
    factor = min(1.0, LONGEST_SIDE / max(size))
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def photograph(image: np.ndarray, size: tuple[int, int]) -> bytes:
    """The image (H, W, 3) as a JPEG of that height and width."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    if picture.size != size[::-1]:
        picture = picture.resize(size[::-1], Image.Resampling.LANCZOS)
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=88, subsampling=0, optimize=True)
    return content.getvalue()


def _label_map(labels: np.ndarray, colours: Sequence[tuple[int, int, int]], size: tuple[int, int]) -> bytes:
    picture = Image.fromarray(labels.astype(np.uint8))
    if picture.size != size[::-1]:
        picture = picture.resize(size[::-1], Image.Resampling.NEAREST)
    channels = [channel for colour in colours[:IGNORE] for channel in colour]
    channels += [0] * (3 * IGNORE - len(channels)) + [255, 255, 255]  # ignored pixels are white
    picture.putpalette(channels)
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return content.getvalue()
