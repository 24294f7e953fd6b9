"""The Semantic Boundaries Dataset: labels for all VOC images, in MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from comastre.data.files import first_existing, read_names
from comastre.errors import UserError

_PLACES = ("benchmark_RELEASE/dataset", "SBD/dataset", "SBD", "sbd", "dataset", ".")


def find_sbd(*folders: Path) -> Path | None:
    """The folder with SBD's cls/, inst/, train.txt and val.txt in or beside one of the folders."""
    places = [folder / place for folder in folders for place in _PLACES]
    return next((place for place in places if (place / "cls").is_dir() and (place / "train.txt").is_file()), None)


def sbd_names(sbd: Path) -> list[str]:
    """Images of SBD's own train and val lists, which split VOC differently."""
    names = read_names(sbd / "train.txt")
    return names + (read_names(sbd / "val.txt") if first_existing(sbd / "val.txt") else [])


def read_sbd(path: Path) -> np.ndarray:
    """The label map (H, W) uint8 of a file of cls/ (class ids) or inst/ (object numbers)."""
    from scipy.io import loadmat

    key = "GTinst" if path.parent.name == "inst" else "GTcls"
    try:
        values = loadmat(path, squeeze_me=True, struct_as_record=False)[key].Segmentation
    except FileNotFoundError:
        raise UserError(f"The mask {path} does not exist: add it, or take its image away.") from None
    except Exception as error:  # whatever scipy finds in a damaged file
        raise UserError(f"The mask {path} cannot be read as SBD's {key} ({error}): replace it.") from None
    return np.atleast_2d(values).astype(np.uint8)
