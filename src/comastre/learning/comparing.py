"""The old and the new model on the same images: what one calls otherwise than the other, outside the new objects.

No label of an old class is needed for it, so it can always be measured. The old model looks before the lesson trains,
and its label maps wait in the training folder; the new one looks afterwards.
"""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pydantic import TypeAdapter
from torch import Tensor

from comastre.config.run import RunConfig
from comastre.data.dataset import IGNORE, SegmentationDataset
from comastre.data.images import read_image
from comastre.data.shown import shown
from comastre.documents import json_bytes, read_json
from comastre.errors import UserError
from comastre.evaluation.disagreement import Disagreement, misnamed
from comastre.evaluation.examples import photograph, small_size
from comastre.evaluation.image_progress import ImageProgress
from comastre.evaluation.seeing import see
from comastre.files import write_whole
from comastre.learning.images import image_names, in_order_of_names, training_part
from comastre.learning.lesson import Lesson
from comastre.prediction.image_files import find_images

FOLDER = "seen"
_INDEX = "index.json"
MOST_OF_DATA, MOST_UNLABELLED = 100, 300
"""Images that are looked at, at most."""
FEWEST = 8
"""However little time there is."""
SHOWN = 12
"""Images on which the models differ most, which are kept for the page."""
SHOWN_FOLDER = "shown"

_Look = tuple[float, "Sight", np.ndarray, np.ndarray, np.ndarray]
"""How much it differs, the image's name and pixels, and the label maps before and after."""


@dataclass(frozen=True)
class Sight:
    """An image on which both models look."""

    name: str
    index: int = -1
    """In the lesson's data; -1 for a file without labels."""
    file: str = ""
    differs: float = 0.0
    """Share of its pixels on which the two disagree."""


def choose_sights(lesson: Lesson, unlabelled: str | Path | None) -> tuple[Sight, ...]:
    """Images of the lesson and of the folder `unlabelled`; their names decide which, where there are very many."""
    if lesson.known is None:
        return ()
    names = image_names(training_part(lesson.source))
    wanted = {*lesson.images, *lesson.held_out}
    own = [index for index in in_order_of_names(names) if index in wanted]
    sights = [Sight(names[index], index) for index in own[:MOST_OF_DATA]]
    if unlabelled is not None:
        files = find_images([unlabelled])
        order = in_order_of_names([each.name.as_posix() for each in files])[:MOST_UNLABELLED]
        sights += [Sight(files[place].name.as_posix(), file=str(files[place].path.absolute())) for place in order]
    return tuple(sights)


@dataclass(frozen=True)
class Comparison:
    """Looks with one model after the other."""

    work: Path
    lesson: Lesson
    config: RunConfig
    device: torch.device

    def look_before(self, model: Any, sights: Sequence[Sight], until: float | None = None) -> tuple[str, ...]:
        """Keep what the old model sees, no longer than `until` (of `time.monotonic`).

        Files without labels that cannot be read are left out; gives a sentence on each.
        """
        folder = self.work / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        dataset = self._dataset()
        done: list[Sight] = []
        failed: list[str] = []
        with ImageProgress("the old model looks", len(sights)) as progress:
            for number, sight in enumerate(sights):
                if until is not None and number >= FEWEST and time.monotonic() > until:
                    break
                try:
                    image, _, _ = self._read(dataset, sight)
                except UserError as error:
                    if sight.index >= 0:  # of the lesson itself, which needs it
                        raise
                    failed.append(str(error))
                    continue
                write_whole(folder / f"{len(done):04d}.png", _png(self._labels(model, image)))
                done.append(sight)
                progress.advance()
        if failed and not any(sight.index < 0 for sight in done):
            raise UserError(f"none of the images of --unlabelled can be read: {failed[0]}")
        write_whole(folder / _INDEX, json_bytes([asdict(sight) for sight in done]))  # last: what it names is there
        return tuple(failed)

    def look_after(
        self, model: Any, until: float | None = None, pictures: Path | None = None
    ) -> tuple[Disagreement, tuple[Sight, ...]]:
        """What the new model sees otherwise, and the images with how much; those that time allows.

        Pictures of those that differ most are kept in the folder `pictures`, by default beside what was seen.
        """
        folder = self.work / FOLDER
        sights = seen(self.work)
        counts = Disagreement((self.lesson.background, *self.lesson.stream_names))
        dataset, done = self._dataset(), []
        most: tuple[_Look, ...] = ()
        with ImageProgress("the new model looks", len(sights)) as progress:
            for number, sight in enumerate(sights):
                if until is not None and number >= FEWEST and time.monotonic() > until:
                    break
                read = self._read_again(dataset, sight)
                if read is None:
                    continue
                image, counted, truth = read
                before, after = read_labels(folder / f"{number:04d}.png"), self._labels(model, image)
                if truth is not None and counted is not None:
                    # What is left of a name that the old model gave to a new object is no old object either.
                    counted &= ~misnamed(before, truth > len(self.lesson.roles.old), truth != IGNORE)
                    # What the data labels as an old class, the new model may correct.
                    before = np.where((truth > 0) & (truth == after), after, before)
                differs = counts.add(before, after, counted)
                done.append(Sight(sight.name, sight.index, sight.file, differs))
                progress.advance()
                most = _most_different(most, (differs, sight, image, before, after))
        _keep_shown(pictures or self.work / SHOWN_FOLDER, most)
        return counts, tuple(done)

    def _dataset(self) -> SegmentationDataset:
        return self.lesson.relabelled(training_part(self.lesson.source), self.lesson.roles.labels)

    def _read(
        self, dataset: SegmentationDataset, sight: Sight
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """The image (H, W, 3), where it counts (H, W), and its labels (H, W); None where it has none."""
        if sight.index < 0:
            return read_image(Path(sight.file))[0], None, None
        sample = dataset[sight.index]
        labels = sample.semantic
        return sample.image, (labels <= len(self.lesson.roles.old)) & (labels != IGNORE), labels

    def _read_again(
        self, dataset: SegmentationDataset, sight: Sight
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None] | None:
        """The same after the training; None of a file without labels that is gone by then, which must not cost it."""
        try:
            return self._read(dataset, sight)
        except UserError:
            if sight.index >= 0:
                raise
            return None

    def shown_to_models(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Every image that was seen, (1, 3, h, w), and its padding as a model is shown it, at each size of the view."""
        dataset, view = self._dataset(), self.config.view.at(self.config.data.crop)
        for sight in seen(self.work):
            read = self._read_again(dataset, sight)
            if read is None:
                continue
            pixels = torch.from_numpy(np.array(read[0])).permute(2, 0, 1)
            for size in view.seen_sizes(pixels.shape[-2], pixels.shape[-1]):
                each, padding = shown([pixels], [size])
                yield each.to(self.device), padding if padding is None else padding.to(self.device)

    def _labels(self, model: Any, image: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        (found,) = see(model.segment, [pixels], self.config.view.at(self.config.data.crop), self.device)
        return found.label_map.cpu().numpy().astype(np.uint8)


def _keep_shown(folder: Path, looks: Sequence[_Look]) -> None:
    """Small pictures of the images that differ most, for the page."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    entries = []
    for number, (differs, sight, image, before, after) in enumerate(looks):
        size = small_size(image.shape[:2])
        write_whole(folder / f"{number:02d}.jpg", photograph(image, size))
        for kind, labels in (("before", before), ("after", after)):
            picture = Image.fromarray(labels.astype(np.uint8)).resize(size[::-1], Image.Resampling.NEAREST)
            write_whole(folder / f"{number:02d}-{kind}.png", _png(np.asarray(picture)))
        entries.append({"name": sight.name, "differs": differs, "size": list(size)})
    write_whole(folder / _INDEX, json_bytes(entries))


def _most_different(looks: tuple[_Look, ...], look: _Look) -> tuple[_Look, ...]:
    """The looks that differ most, with one more where it differs at all; of equals the earlier ones."""
    if look[0] <= 0:
        return looks
    return tuple(sorted((*looks, look), key=lambda each: -each[0])[:SHOWN])


def seen(work: Path) -> tuple[Sight, ...]:
    """The images that the old model has looked at; none where it has not."""
    try:
        return TypeAdapter(tuple[Sight, ...]).validate_python(read_json(work / FOLDER / _INDEX))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise UserError(f"{work / FOLDER / _INDEX} cannot be read ({error}): start over with --fresh") from None


def read_labels(file: Path) -> np.ndarray:
    """A label map (H, W) that a model's look left."""
    try:
        with Image.open(file) as picture:
            return np.asarray(picture)
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error}): start over with --fresh") from None


def _png(labels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(labels).save(content, "PNG")
    return content.getvalue()
