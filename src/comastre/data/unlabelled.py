"""Images without labels, as a dataset: whoever teaches with them says itself what they show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from comastre.class_table import Colour
from comastre.data.files import FileDataset, Labels, Record
from comastre.data.images import image_size


def unlabelled(images: Sequence[Path], class_names: Sequence[str], colours: Sequence[Colour]) -> FileDataset:
    """These files, named by their paths; the classes are those that they may show."""
    records = [Record(str(image), image, image) for image in images]
    return FileDataset("images", "whole", class_names, colours, records, _nothing)


def _nothing(index: int, record: Record, size: tuple[int, int] | None) -> Labels:
    """No pixel is labelled."""
    return Labels(np.zeros(size or image_size(record.image), dtype=np.uint8))
