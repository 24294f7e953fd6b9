"""A trained model for use in other programs: `comastre.load` gives one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from comastre.allocator import keeping_freed_memory
from comastre.arguments import whole_number
from comastre.bundle import hub, store
from comastre.class_table import ClassTable, Colour
from comastre.config.methods import title_of
from comastre.config.view import ViewConfig, padded_sizes
from comastre.data.images import read_image, to_rgb
from comastre.errors import UserError
from comastre.evaluation.seeing import see
from comastre.nets.precision import predicting_in
from comastre.paths import user_path
from comastre.prediction.adjust import adjusted
from comastre.prediction.result import Prediction
from comastre.segmentation import Size
from comastre.text import brief, shortened

MOST_KEPT = 2_000_000
"""Pixels that a model sees of an image, up to which freed memory is kept on a CPU: time for memory."""

ImageLike = Image.Image | np.ndarray | str | Path
ShortSide = int | str | Sequence[int]
PRECISIONS = ("32-true", "bf16-mixed")
"""What a model can predict in, the usual one first."""


@dataclass(frozen=True)
class Source:
    """An image that has been read, to be segmented as it is."""

    pixels: np.ndarray
    """(H, W, 3) uint8."""
    file: str | None

    @classmethod
    def of(cls, image: ImageLike | Source) -> Source:
        if isinstance(image, Source):
            return image
        return cls(to_pixels(image), str(image) if isinstance(image, str | Path) else None)


class Model:
    """A segmenter with the names and colours of its classes.

    >>> import comastre
    >>> model = comastre.load("model")
    >>> model.class_names
    ('background', 'disk', 'star', 'ring')
    >>> result = model.predict("photo.png")
    """

    def __init__(self, bundle: store.Bundle) -> None:
        self.bundle = bundle
        self.segmenter: Any = bundle.model.eval()
        self.precision = PRECISIONS[0]
        self.classes: ClassTable = bundle.classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of labels 0..C: background first."""
        return (self.classes.background, *self.classes.names)

    @property
    def colours(self) -> tuple[Colour, ...]:
        """Colours of labels 0..C."""
        return self.classes.colours

    @property
    def coco_categories(self) -> list[dict[str, Any]]:
        """The list `categories` of a COCO file whose annotations come from `Prediction.to_coco`.

        >>> model.coco_categories[0]
        {'id': 1, 'name': 'disk'}
        """
        return [{"id": label, "name": name} for label, name in enumerate(self.classes.names, start=1)]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.segmenter.parameters()).device

    def to(self, device: str | torch.device, precision: str | None = None) -> Model:
        """Move the model to a device, such as "cuda"; gives the model itself.

        With `precision` "bf16-mixed" it predicts in bfloat16, faster where the processor has it, "32-true" in float32.

        >>> model.to("cpu").device
        device(type='cpu')
        """
        if isinstance(device, bool) or not isinstance(
            device, str | int | torch.device
        ):  # torch takes None and 2.5, too
            raise UserError(f"a device is a text such as 'cpu' or 'cuda', not {brief(device)}")
        try:
            self.segmenter.to(device)
        except (RuntimeError, AssertionError, TypeError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"device {str(device)!r} cannot be used ({reason}): `comastre doctor` lists the devices"
            ) from error
        if precision is not None:
            if precision not in PRECISIONS:
                raise UserError(f"precision is {brief(precision)} but must be {' or '.join(map(repr, PRECISIONS))}")
            self.precision = precision
        return self

    def adjusted(self, **fields: Any) -> Model:
        """The same weights with other thresholds, such as `alpha`: any field that the model's method has for that.

        >>> model.adjusted(alpha=0.9).predict("photo.png").segments
        ()
        """
        model = Model(adjusted(self.bundle, fields))
        model.precision = self.precision
        return model

    @property
    def view(self) -> ViewConfig:
        """The size at which the model sees an image, unless a call asks for another."""
        return self.bundle.description.view

    def predict(
        self, image: ImageLike, *, short_side: ShortSide | None = None, max_side: int | None = None
    ) -> Prediction:
        """Segment a PIL image, an array (H, W, 3) (uint8, or float in 0..1) or an image file.

        The model sees the image at the size that it was trained for (`view`), or with this short side, such as 512,
        "native" for the image's own, or [224, 320] for a look at each; with `max_side` reduced to that long side where
        it is longer. The result has the image's own size.

        >>> result = model.predict("photo.png")
        >>> result.label_map.shape, result.label_map.dtype
        ((48, 64), dtype('int64'))
        """
        (prediction,) = self.predict_many([image], short_side=short_side, max_side=max_side)
        return prediction

    def predict_many(
        self,
        images: Iterable[ImageLike | Source],
        *,
        batch_size: int = 8,
        short_side: ShortSide | None = None,
        max_side: int | None = None,
    ) -> Iterator[Prediction]:
        """Segment images one after the other, in order; neighbours of one size share a batch.

        Which images share a batch changes nothing: a result is what `predict` gives.

        >>> pictures = [np.zeros((32, 32, 3), np.uint8), np.zeros((32, 32, 3), np.uint8)]
        >>> [result.label_map.shape for result in model.predict_many(pictures, batch_size=2)]
        [(32, 32), (32, 32)]
        """
        whole_number("batch_size", batch_size)
        if isinstance(images, str | Path) or not isinstance(images, Iterable):
            raise UserError(f"predict_many takes a list of images, not {type(images).__name__}: `predict` takes one")
        view = self.view.changed(short_side, max_side)

        def seen(source: Source) -> tuple[Size, ...]:
            return padded_sizes(view, *source.pixels.shape[:2])

        for _, same_size in groupby(map(Source.of, images), key=seen):
            for batch in _chunks(same_size, batch_size):
                yield from self._predict_batch(batch, view)

    def _predict_batch(self, batch: Sequence[Source], view: ViewConfig) -> list[Prediction]:
        """Predictions of images of which the model sees one size."""
        self.segmenter.eval()
        images = [torch.from_numpy(source.pixels).permute(2, 0, 1) for source in batch]  # (3, H, W) each
        # Of a huge one, memory that is kept would be half a gigabyte more.
        height, width = max(padded_sizes(view, *batch[0].pixels.shape[:2]))
        kept = keeping_freed_memory(self.device.type) if height * width <= MOST_KEPT else nullcontext()
        with kept, predicting_in(self.precision, self.segmenter):
            found = see(self.segmenter.segment, images, view, self.device)
        # Results wait on the host: kept in a list, they would fill a GPU.
        return [
            Prediction(each.cpu(), self.classes, source.pixels, source.file)
            for each, source in zip(found, batch, strict=True)
        ]

    def __repr__(self) -> str:
        steps = [
            f"step {step + 1}: {shortened([each.name for each in self.classes.classes if each.task == step])}"
            for step in range(len(self.classes.tasks))
        ]
        what = self.bundle.description
        weights = sum(each.numel() for each in self.segmenter.parameters())
        title = f"{title_of(what.method)}, size {what.size}, {weights:,} weights, on {self.device}"
        return "\n".join([f"Model ({title}), {len(self.classes.names)} classes", *steps])

    # --- keeping and sharing -----------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model as a bundle."""
        return store.save(self.bundle, path, overwrite=overwrite)

    def save_pretrained(self, save_directory: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model as a bundle: `save` under the name that Hugging Face's libraries have for it.

        >>> model.save_pretrained("copy").name
        'copy'
        """
        return self.save(save_directory, overwrite=overwrite)

    @classmethod
    def from_pretrained(
        cls,
        path_or_hub_id: str | Path,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
    ) -> Model:
        """The model of a bundle's folder, or of a model id on the hub: branch, tag or commit `revision`.

        >>> comastre.Model.from_pretrained("model").classes.names
        ('disk', 'star', 'ring')
        """
        source = hub.HubOptions(revision, token, cache_dir, local_files_only)
        return cls(store.load(hub.locate(path_or_hub_id, source)))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Upload the bundle to the hub as `repo_id` ("owner/name"), which is created where it is missing; gives a URL.

        Without `token` the one of `hf auth login` is used.
        """
        return hub.push(
            self.bundle,
            repo_id,
            private=private,
            token=token,
            revision=revision,
            commit_message=commit_message or f"Model with {len(self.classes.names)} classes",
            create_pr=create_pr,
        )


def load(path_or_hub_id: str | Path) -> Model:
    """The model of a bundle's folder, or of a model id on the hub.

    >>> comastre.load("model").classes.tasks
    (2, 1)
    """
    return Model.from_pretrained(path_or_hub_id)


def to_pixels(image: Any) -> np.ndarray:
    """An image as (H, W, 3) uint8: a file turned as viewers and training do, others as given."""
    if isinstance(image, str | Path):
        return _read(user_path(image, "the image"))
    if isinstance(image, Image.Image):
        array = np.asarray(to_rgb(image, "given"))
    elif isinstance(image, np.ndarray):
        array = image
    else:
        raise UserError(f"predict takes a PIL image, a numpy array or a path, not {type(image).__name__}")
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=2)
    if array.ndim != 3 or array.shape[2] not in (3, 4) or 0 in array.shape:
        raise UserError(f"an image array must have shape (height, width, 3), not {array.shape}")
    array = array[..., :3]
    if array.dtype == np.uint8:
        return np.array(array)
    if not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"an image array must be uint8 or float in 0..1, not {array.dtype}")
    if not (array.min() >= 0 and array.max() <= 1):  # also refuses NaN
        raise UserError(f"a float image must be in 0..1, but runs from {array.min():g} to {array.max():g}")
    return (array * 255).round().astype(np.uint8)


def _chunks(items: Iterable[Source], size: int) -> Iterator[list[Source]]:
    chunk: list[Source] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _read(path: Path) -> np.ndarray:
    if not path.exists():  # the message of `read_image` is about lists of training images
        raise UserError(f"there is no image {path}: check the name")
    return read_image(path)[0]
