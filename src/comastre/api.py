"""`comastre.load`: a trained model for use in other programs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from comastre import bundle
from comastre.class_table import ClassTable, Colour
from comastre.data.images import read_image
from comastre.errors import UserError
from comastre.model.inference import Segment, Segmentation, segment
from comastre.model.segmenter import Segmenter

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Prediction:
    """What the model sees in one image, at the image's own size (H, W)."""

    segmentation: Segmentation
    classes: ClassTable

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of labels 0..C: background first."""
        return (self.classes.background, *self.classes.names)

    @property
    def label_map(self) -> np.ndarray:
        """(H, W) int64: 0 background, k for class_names[k]."""
        return self.segmentation.label_map.cpu().numpy()

    @property
    def segment_map(self) -> np.ndarray:
        """(H, W) int64: 0 where nobody took the pixel, i + 1 for segments[i]."""
        return self.segmentation.segment_map.cpu().numpy()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Recognised regions; `class_index` counts without background, so its name is classes.names[class_index]."""
        return self.segmentation.segments

    @property
    def class_scores(self) -> np.ndarray:
        """(N, C) class probabilities of every proposal; zero rows where objectness is at or below alpha."""
        return self.segmentation.class_scores.cpu().numpy()

    @property
    def objectness(self) -> np.ndarray:
        """(N,) objectness of every proposal."""
        return self.segmentation.objectness.cpu().numpy()

    @property
    def proposals(self) -> np.ndarray:
        """(N, H, W) bool: the mask of every proposal, recognised or not."""
        return self.segmentation.proposal_masks().cpu().numpy()


class Model:
    """A segmenter with the names and colours of its classes."""

    def __init__(self, segmenter: Segmenter, classes: ClassTable) -> None:
        self.segmenter = segmenter.eval()
        self.classes = classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of labels 0..C: background first."""
        return (self.classes.background, *self.classes.names)

    @property
    def colours(self) -> tuple[Colour, ...]:
        """Colours of labels 0..C."""
        return self.classes.colours

    def to(self, device: str | torch.device) -> Model:
        """Move the model to a device."""
        try:
            self.segmenter.to(device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"device {str(device)!r} cannot be used ({reason}): `comastre doctor` lists the devices"
            ) from error
        return self

    def predict(self, image: Image.Image | np.ndarray | str | Path) -> Prediction:
        """Segment a PIL image, an array (H, W, 3) (uint8, or float in 0..1) or an image file."""
        pixels = to_pixels(image)
        device = next(self.segmenter.parameters()).device
        self.segmenter.eval()
        (segmentation,) = segment(self.segmenter, pixels[None].to(device))
        return Prediction(segmentation, self.classes)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model as a bundle."""
        return bundle.save(self.segmenter, self.classes, path, overwrite=overwrite)


def load(path_or_hub_id: str | Path) -> Model:
    """The model of a bundle's folder, or of a model id on the hub."""
    loaded = bundle.load(locate(path_or_hub_id))
    return Model(loaded.model, loaded.classes)


def locate(path_or_hub_id: str | Path) -> Path:
    """The local folder of a bundle, fetched from the hub where it is not a path but an id `owner/name`."""
    path = Path(path_or_hub_id).expanduser()
    if path.exists() or isinstance(path_or_hub_id, Path) or not _HUB_ID.fullmatch(path_or_hub_id):
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path_or_hub_id, allow_patterns=list(bundle.FILES)))
    except Exception as error:  # each version of the hub's client has its own network errors
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"there is no folder {path_or_hub_id}, and the hub gave no model of that id "
            f"({type(error).__name__}: {reason}): check the name"
        ) from error


def to_pixels(image: Any) -> Tensor:
    """An image as float32 (3, H, W) in 0..1: a file turned as viewers and training do, others as given."""
    if isinstance(image, str | Path):
        image = _read(Path(image))
    if isinstance(image, Image.Image):
        array = np.asarray(image.convert("RGB"))
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
        array = array.astype(np.float32) / 255
    elif not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"an image array must be uint8 or float in 0..1, not {array.dtype}")
    elif not (array.min() >= 0 and array.max() <= 1):  # also refuses NaN
        raise UserError(f"a float image must be in 0..1, but runs from {array.min():g} to {array.max():g}")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).permute(2, 0, 1)


def _read(path: Path) -> np.ndarray:
    if not path.exists():  # training's sentence speaks of lists of images, which nobody has here
        raise UserError(f"there is no image {path}: check the name")
    return read_image(path)[0]
