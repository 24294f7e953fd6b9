"""What a model says about one image, as arrays, pictures, files and the formats of other tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from comastre.class_table import ClassTable
from comastre.documents import json_bytes
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.paths import user_path
from comastre.prediction.pictures import draw_overlay, label_picture
from comastre.segmentation import ProposedMasks, Segment, Segmentation

if TYPE_CHECKING:
    import supervision

LABELS, OVERLAY, SEGMENTS = ".labels.png", ".overlay.jpg", ".segments.json"
SUFFIXES = (LABELS, OVERLAY, SEGMENTS)
MADE_BY = "made_by"
"""The field of a list of segments that signs it."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the model sees in one image, at the image's own size (H, W).

    >>> result = model.predict("photo.png")
    >>> result.label_map.shape
    (48, 64)
    >>> sorted({segment.name for segment in result.segments})
    ['disk']
    >>> result.plot().save("overlay.png")
    """

    segmentation: Segmentation = field(repr=False)
    classes: ClassTable = field(repr=False)
    image: np.ndarray = field(repr=False)
    """(H, W, 3) uint8: what was segmented."""
    file: str | None = None
    """Where the image came from, if from a file."""

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

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The recognised regions, each with class, score, box and mask."""
        segments, segment_map = self.segmentation.segments, self.segmentation.segment_map
        if len(segments) < 2**15:  # every segment looks for itself in the map: a small one is searched faster
            segment_map = torch.from_numpy(segment_map.cpu().numpy().astype(np.int16))
        return tuple(replace(each, name=self.class_names[each.label], segment_map=segment_map) for each in segments)

    @property
    def class_scores(self) -> np.ndarray:
        """(N, C) class probabilities of every proposal; zero rows where objectness is at or below alpha."""
        return self._proposed("class_scores").class_scores.cpu().numpy()

    @property
    def objectness(self) -> np.ndarray:
        """(N,) objectness of every proposal."""
        return self._proposed("objectness").objectness.cpu().numpy()

    @property
    def proposals(self) -> np.ndarray:
        """(N, H, W) bool: the mask of every proposal, recognised or not."""
        return self._proposed("proposals").masks().cpu().numpy()

    def _proposed(self, wanted: str) -> ProposedMasks:
        found = self.segmentation.proposals
        if found is None:
            raise UserError(
                f"this model labels pixels and proposes no masks, so a prediction has no {wanted}: "
                "use label_map or segments"
            )
        return found

    def plot(self) -> Image.Image:
        """The image with outlined, numbered segments and a legend of classes and scores; notebooks show it.

        >>> picture = model.predict("photo.png").plot()
        >>> picture.mode
        'RGB'
        """
        entries = [(each.name, each.label, each.score) for each in self.segments]
        return draw_overlay(self.image, self.segment_map, entries)

    def _repr_png_(self) -> bytes:
        """What a notebook shows of it."""
        return _encoded(self.plot(), "PNG")

    def __repr__(self) -> str:
        height, width = self.image.shape[:2]
        found = ", ".join(f"{each.name} {each.score:.2f}" for each in self.segments[:8]) or "nothing"
        more = f" and {len(self.segments) - 8} more" if len(self.segments) > 8 else ""
        return f"Prediction of {self.file or 'an image'} ({width} x {height}): {found}{more}"

    def save(self, path: str | Path, *, overwrite: bool = False, maker: str = "") -> tuple[Path, Path, Path]:
        """Write PATH.labels.png (values are labels), PATH.overlay.jpg and PATH.segments.json; gives their paths.

        The last is signed by `maker`, a name for all that decides a result. It is written first and the label map last,
        so that a label map means that the whole result is there.

        >>> [file.name for file in model.predict("photo.png").save("results/photo")]
        ['photo.labels.png', 'photo.overlay.jpg', 'photo.segments.json']
        """
        labels, overlay, segments = files = result_files(user_path(path, "the name of the results"))
        existing = [file for file in files if file.exists()]
        if existing and not overwrite:
            raise UserError(f"{existing[0]} is already there: choose another name, or ask to overwrite it")
        with ThreadPoolExecutor(1) as beside:  # of a large image the overlay takes as long as the rest
            drawn = beside.submit(lambda: _encoded(self.plot(), "JPEG", quality=92, subsampling=0))
            document = self.as_json()
            contents = {
                segments: json_bytes({**document, MADE_BY: signature(document, maker)} if maker else document),
                overlay: b"",
                labels: _encoded(label_picture(self.label_map, self.classes.colours), "PNG"),
            }
            contents[overlay] = drawn.result()
        try:
            labels.parent.mkdir(parents=True, exist_ok=True)
            labels.unlink(missing_ok=True)  # where others are replaced, it is not of this result until it is written
            for file, content in contents.items():
                write_whole(file, content)
        except OSError as error:
            raise UserError(
                f"results cannot be written to {labels.parent}: {error}; with more space, or where you may write, give "
                "the same command again: finished results are kept"
            ) from error
        return files

    def as_json(self) -> dict[str, Any]:
        """The document of PATH.segments.json: size, names of the labels, and the segments with COCO's run lengths."""
        height, width = self.label_map.shape
        present = np.flatnonzero(np.bincount(self.label_map.ravel()))  # without sorting all pixels
        names = {str(label): self.class_names[label] for label in present.tolist()}
        segments = [each.as_json() for each in self.segments]
        return {"image": self.file, "width": width, "height": height, "labels": names, "segments": segments}

    def to_coco(self, image_id: int | str) -> list[dict[str, Any]]:
        """The segments as COCO results, ready for `COCO.loadRes`; category ids are labels (`Model.coco_categories`).

        >>> entry = model.predict("photo.png").to_coco(image_id=7)[0]
        >>> entry["image_id"], entry["category_id"], sorted(entry["segmentation"])
        (7, 1, ['counts', 'size'])
        """
        fields = ("category_id", "score", "area", "bbox", "segmentation")
        documents = [each.as_json() for each in self.segments]
        return [{"image_id": image_id, **{name: document[name] for name in fields}} for document in documents]

    def to_supervision(self) -> supervision.Detections:
        """The segments as `supervision.Detections`, whose class ids are labels; needs `pip install supervision`."""
        try:
            from supervision import Detections
        except ImportError as error:
            raise UserError(
                "to_supervision needs the package supervision: install it with `pip install supervision`"
            ) from error
        height, width = self.label_map.shape
        corners = [(x, y, x + wide, y + high) for x, y, wide, high in (each.box for each in self.segments)]
        masks = [each.mask for each in self.segments]
        return Detections(
            xyxy=np.array(corners, dtype=np.float32).reshape(-1, 4),
            mask=np.stack(masks) if masks else np.zeros((0, height, width), dtype=bool),
            confidence=np.array([each.score for each in self.segments], dtype=np.float32),
            class_id=np.array([each.label for each in self.segments], dtype=int),
            data={"class_name": np.array([each.name for each in self.segments], dtype=str)},
        )


def signature(document: Mapping[str, Any], maker: str) -> str:
    """A short name for a list of segments and what made it: a changed character of either gives another."""
    content = {name: value for name, value in document.items() if name != MADE_BY}
    return hashlib.sha256(f"{maker}\n{json.dumps(content, sort_keys=True)}".encode()).hexdigest()[:16]


def result_files(path: Path) -> tuple[Path, Path, Path]:
    """Where the label map, the overlay and the segments of a result called `path` go."""
    labels, overlay, segments = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return labels, overlay, segments


def _encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()
