"""Reading image and mask files: raster formats become RGB or class ids, or one sentence that names the file.

A file's content decides what it is, not its name, and some formats that PIL knows are programs (EPS starts
Ghostscript) or lead to other files: only those of `FORMATS` are decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from comastre.data.dataset import IGNORE
from comastre.documents import require_regular
from comastre.errors import UserError
from comastre.noise import quiet_errors_of_c, without_warnings
from comastre.text import shortened

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".jp2", ".ppm", ".pgm")
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "TIFF", "WEBP", "GIF", "JPEG2000", "PPM")
"""PIL's names of what is decoded: pixels and nothing else."""
_ORIENTATION = 0x0112  # the EXIF tag
# What the last bytes of a whole file hold: the end marker of a JPEG, the last chunk of a PNG.
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")


def read_image(path: Path, short_side: int | None = None) -> tuple[np.ndarray, tuple[int, int]]:
    """The image (h, w, 3) uint8 as a viewer shows it, and its full size (H, W).

    With `short_side` a JPEG may come at 1/2, 1/4 or 1/8 of its size, as long as its short side stays that long.
    """
    with _opened(path, "image") as opened:
        width, height = opened.size
        if short_side is not None and opened.format == "JPEG":
            factor = min(1.0, short_side / min(width, height))
            # The decoder then leaves out the high frequencies, which is much faster than decoding and shrinking.
            opened.draft(None, (max(1, int(width * factor)), max(1, int(height * factor))))
        with without_warnings():  # of broken EXIF blocks and palettes with transparency: pixels are fine
            orientation = opened.getexif().get(_ORIENTATION, 1)
            image = to_rgb(opened if orientation == 1 else ImageOps.exif_transpose(opened), path)
        pixels = np.array(image)  # writable, as torch wants it: without another copy
    return pixels, (width, height) if orientation in (5, 6, 7, 8) else (height, width)


@contextmanager
def _opened(path: Path, what: Literal["image", "mask"]) -> Iterator[Image.Image]:
    """The file opened by PIL; whatever goes wrong while it is read becomes a sentence that names it."""
    missing = "restore it, or take it off the list" if what == "image" else "add it, or take its image away"
    fix = "replace or remove it" if what == "image" else "replace it"
    name = path if what == "image" else f"The mask {path}"
    try:
        require_regular(path)
        with Image.open(path, formats=FORMATS) as opened, quiet_errors_of_c(opened.format == "TIFF"):
            yield opened
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"The {what} {path} does not exist: {missing}.") from None
    except UnidentifiedImageError:
        raise UserError(f"{name} is not an image that can be read: {fix}.") from None
    except Exception as error:  # what a damaged file raises depends on where the damage is
        reason = str(error) or type(error).__name__
        raise UserError(f"The {what} {path} cannot be read ({reason}): {fix}.") from None


def open_picture(path: Path) -> AbstractContextManager[Image.Image]:
    """The image file opened by PIL, for those who need more of it than its pixels."""
    return _opened(path, "image")


def open_mask(path: Path) -> AbstractContextManager[Image.Image]:
    """The same of a mask."""
    return _opened(path, "mask")


def to_rgb(image: Image.Image, name: Path | str = "it") -> Image.Image:
    """An image of any mode in 8 bits per channel; of 16 bits the upper 8, of float values those of 0..1.

    Whole numbers of 32 bits, and float values beyond 0..1, have no range that could be known, and cutting them off
    would make a white picture: they are refused with `name`.
    """
    # PIL has no mode of 16 bits for some files of these formats, whose values it gives in 32.
    sixteen_in_more = image.mode == "I" and image.format in ("PNG", "PPM")
    if image.mode in _SIXTEEN_BITS or sixteen_in_more:
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        values = np.asarray(image)
        if not (values.min() >= 0 and values.max() <= 1):  # also refuses NaN
            raise UserError(
                f"The image {name} holds float values from {values.min():g} to {values.max():g}, but they must be in "
                "0..1: scale them, or save it with 8 or 16 bits."
            )
        return Image.fromarray((values * 255).round().astype(np.uint8)).convert("RGB")
    if image.mode == "I":
        raise UserError(f"The image {name} holds numbers of 32 bits, whose range is not known: save it with 8 or 16.")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # the colours of transparent entries stay as they are
    return image if image.mode == "RGB" else image.convert("RGB")


def read_mask(path: Path) -> np.ndarray:
    """The values (H, W) uint8 of a one-channel, 8-bit (or palette) mask."""
    with _opened(path, "mask") as opened:
        mode, values = opened.mode, np.array(opened)
    if mode in ("L", "P", "1"):
        return values.astype(np.uint8, copy=False)
    if values.ndim == 3:
        raise UserError(f"The mask {path} holds {mode} colours but must hold class ids: {_conversion(values)}.")
    raise UserError(
        f"The mask {path} has more than 8 bits per pixel (mode {mode}): save its class ids in 8 bits, as in "
        "Image.fromarray(np.array(mask).astype('uint8')).save(path)."
    )


def _conversion(values: np.ndarray) -> str:
    colours = values[..., : 1 if values.shape[2] == 2 else 3]
    if np.all(colours == colours[..., :1]):
        return "its channels are equal, so keep one, as in Image.open(path).getchannel(0).save(path)"
    return (
        "replace every colour by its id, as in ids[np.all(np.array(mask)[..., :3] == colour, axis=-1)] = id, and save "
        "Image.fromarray(ids.astype('uint8')) as PNG"
    )


def check_mask(path: Path, values: np.ndarray, num_classes: int, size: tuple[int, int], image: Path) -> None:
    """Refuse a mask of another size than its image, or with ids that are no class."""
    if values.shape != size:
        turned = (
            " (the image is turned by its EXIF orientation; turn the mask, too)" if values.shape == size[::-1] else ""
        )
        raise UserError(
            f"The mask {path} is {values.shape[1]} x {values.shape[0]} but its image {image.name} is "
            f"{size[1]} x {size[0]}{turned}: make them the same size."
        )
    check_ids(path, values, num_classes)


def check_ids(path: Path, values: np.ndarray, num_classes: int) -> None:
    """Refuse ids other than 0..num_classes and 255."""
    # The largest value is found ten times faster than all that occur, and mostly says enough.
    largest = int(values.max(initial=0))
    if largest == IGNORE:
        largest = int(np.where(values == IGNORE, 0, values).max())
    if largest > num_classes:
        wrong = [int(label) for label in np.unique(values) if num_classes < label < IGNORE]
        shown = shortened(list(map(str, wrong)), most=5)
        raise UserError(
            f"The mask {path} holds the label {shown} but there are only the classes 1..{num_classes} "
            f"(0 background or void, {IGNORE} ignored): correct the mask or the list of classes."
        )


def image_size(path: Path) -> tuple[int, int]:
    """(H, W) as a viewer shows it, from the file's header alone."""
    return _header(path)[0]


def checked_size(path: Path) -> tuple[int, int]:
    """(H, W) of an image whose file is whole; only a file that does not end as its format does is read in full.

    Copies and downloads break off at the end: looking there costs a tenth of decoding everything.
    """
    size, kind = _header(path)
    end = _ENDS.get(kind)
    if end is None or end not in _last_bytes(path):
        return read_image(path)[1]
    return size


def _header(path: Path) -> tuple[tuple[int, int], str]:
    """(H, W) as a viewer shows it, and the format."""
    with _opened(path, "image") as opened, without_warnings():  # of broken EXIF blocks
        width, height = opened.size
        turned = opened.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
        kind = opened.format or ""
    return ((width, height) if turned else (height, width)), kind


def _last_bytes(path: Path, count: int = 12) -> bytes:
    with path.open("rb") as file:
        file.seek(-min(count, path.stat().st_size), os.SEEK_END)
        return file.read()
