"""What a model says about one image, whatever its method: labels of pixels, segments, and proposals where it has some.

Every method's model gives it, and evaluation, prediction and report read nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.noise import without_warnings

Size = tuple[int, int]
"""Height and width."""
Box = tuple[int, int, int, int]
"""x, y, width and height in pixels, as COCO counts them."""


@dataclass(frozen=True, eq=False)
class Segment:
    """One recognised object or region of an image."""

    label: int
    """Value of its class in the label map; COCO's category id."""
    score: float
    """How sure the model is of it, 0..1."""
    area: int
    """Pixels."""
    number: int
    """Its value in the segment map."""
    segment_map: Tensor = field(repr=False)
    """(H, W): that of the image."""
    query: int | None = None
    """Which proposal it comes from; None of a model that proposes no masks."""
    name: str = ""
    """Name of its class; empty until somebody who knows the names puts it in."""

    @property
    def class_index(self) -> int:
        """Class in learning order, 0-based without background."""
        return self.label - 1

    @cached_property
    def mask(self) -> np.ndarray:
        """(H, W) bool."""
        return self._find()

    def _find(self) -> np.ndarray:
        """The mask, not kept: of a large image's segments all masks together would fill the memory."""
        # By numpy, whose loops start no threads: results may be written beside a model that uses all processors.
        return self.segment_map.cpu().numpy() == self.number

    @cached_property
    def box(self) -> Box:
        """x, y, width and height in pixels, as COCO counts them."""
        return box_of(self._find())

    @property
    def rle(self) -> dict[str, Any]:
        """The mask as COCO's compressed run lengths: {"size": [H, W], "counts": text}."""
        from pycocotools import mask as run_length

        left, top, width, height = self.box
        inside = np.s_[top : top + height, left : left + width]
        mask = np.zeros(self.segment_map.shape, dtype=np.uint8, order="F")  # pycocotools goes by columns
        mask[inside] = self._find()[inside]
        with without_warnings():  # of what is between pycocotools and numpy
            runs = run_length.encode(mask)
        return {"size": [int(side) for side in runs["size"]], "counts": runs["counts"].decode("ascii")}

    def as_json(self) -> dict[str, Any]:
        """Class and score, and area, box and mask under COCO's names."""
        return {
            "class": self.name,
            "category_id": self.label,
            "score": round(self.score, 6),
            "area": self.area,
            "bbox": list(self.box),
            "segmentation": self.rle,
        }


@dataclass(frozen=True)
class Frame:
    """Where the masks of an image lie: on an input of size `padded`, whose top left `content` holds the image."""

    padded: Size
    content: Size


@dataclass(frozen=True, eq=False)
class ProposedMasks:
    """The class-agnostic masks that a model proposes for one image, recognised or not."""

    objectness: Tensor
    """(N,) in 0..1."""
    class_scores: Tensor
    """(N, C) class probabilities; zero rows for proposals that are not recognised."""
    confident: float
    """Objectness above which a proposal is recognised: the paper's alpha."""
    logits: Tensor
    """(N, h, w), padding included."""
    size: Size
    """Of the image."""
    threshold: float = 0.5
    """Probability from which on a pixel is in the mask."""
    frame: Frame | None = None
    """Which part of the logits is the image; None: all of it."""
    softmax: bool = False
    """Whether masks are a softmax over the proposals, which share each pixel, in place of a sigmoid."""
    named: Tensor | None = None
    """(N,) index of the class that each proposal is recognised as, where that is not its largest score."""

    def masks(self) -> Tensor:
        """(N, H, W) bool, at the image's size."""
        return mask_probabilities(self.logits, self.size, self.frame, self.softmax) >= self.threshold

    @property
    def classes(self) -> Tensor:
        """(N,) index of the class that each proposal is recognised as, -1 for those that were not looked at."""
        if self.class_scores.shape[1] == 0:
            return torch.full_like(self.objectness, -1, dtype=torch.long)
        named = self.class_scores.argmax(dim=1) if self.named is None else self.named
        return torch.where(self.objectness > self.confident, named, -1)

    def to(self, device: torch.device | str) -> ProposedMasks:
        """The same on another device."""
        return replace(
            self,
            objectness=self.objectness.to(device),
            class_scores=self.class_scores.to(device),
            logits=self.logits.to(device),
            named=None if self.named is None else self.named.to(device),
        )


@dataclass(frozen=True, eq=False)
class Segmentation:
    """The result for one image, at its original size (H, W)."""

    label_map: Tensor
    """(H, W) long: 0 background, k + 1 for class k."""
    segment_map: Tensor
    """(H, W) long: 0 where nobody took the pixel, i + 1 for segments[i]."""
    segments: tuple[Segment, ...]
    proposals: ProposedMasks | None = None
    """What the segments were chosen from; None of a model that proposes no masks."""

    @classmethod
    def of_labels(cls, label_map: Tensor, confidence: Tensor | None = None) -> Segmentation:
        """The result of a model that labels pixels (H, W) and proposes no masks: one segment per class.

        A segment's score is the mean of `confidence` (H, W) over its pixels, 1 where none is given.
        """
        label_map = label_map.long()
        present = [label for label in torch.unique(label_map).tolist() if label > 0]
        segment_map = torch.zeros_like(label_map)
        segments = []
        for number, label in enumerate(present, start=1):
            mine = label_map == label
            segment_map[mine] = number
            score = 1.0 if confidence is None else float(confidence[mine].double().mean())
            segments.append(Segment(label, score, int(mine.sum()), number, segment_map))
        return cls(label_map, segment_map, tuple(segments))

    def to(self, device: torch.device | str) -> Segmentation:
        """The same on another device."""
        segment_map = self.segment_map.to(device)
        return Segmentation(
            self.label_map.to(device),
            segment_map,
            tuple(replace(each, segment_map=segment_map) for each in self.segments),
            None if self.proposals is None else self.proposals.to(device),
        )

    def cpu(self) -> Segmentation:
        """The same on the host."""
        return self.to("cpu")


class SegmentImages(Protocol):
    """Anything that segments a batch, such as a model's method `segment`."""

    def __call__(
        self,
        images: Tensor,
        padding: Tensor | None,
        sizes: Sequence[Size],
        original_sizes: Sequence[Size],
    ) -> Sequence[Segmentation]:
        """Images (B, 3, H, W), padding (B, H, W) or None, the size of what holds pixels, and of each result."""
        ...


def frames_of(
    images: Tensor, sizes: Sequence[Size] | None = None, original_sizes: Sequence[Size] | None = None
) -> list[tuple[Frame, Size]]:
    """Where each image of a batch (B, 3, H, W) lies, and the size of its result.

    Without `sizes` an image fills its place, and without `original_sizes` a result has the size of the image there.
    """
    padded = (images.shape[-2], images.shape[-1])
    contents = list(sizes or [padded] * len(images))
    return [(Frame(padded, content), size) for content, size in zip(contents, original_sizes or contents, strict=True)]


def enlarge(logits: Tensor, size: Size, frame: Frame | None = None) -> Tensor:
    """(N, H, W) at `size`: as Mask2Former does, up to the padded input, cut to the image, then to the original size."""
    if frame is not None:
        height, width = frame.content
        logits = _resize(logits, frame.padded)[..., :height, :width]
    return _resize(logits, size)


def mask_probabilities(logits: Tensor, size: Size, frame: Frame | None = None, softmax: bool = False) -> Tensor:
    """(N, H, W) at `size`; with `softmax` the N masks share each pixel."""
    logits = enlarge(logits, size, frame)
    return logits.softmax(0) if softmax else logits.sigmoid()


def _resize(masks: Tensor, size: Size) -> Tensor:
    if tuple(masks.shape[-2:]) == size:
        return masks
    return F.interpolate(masks[None], size=size, mode="bilinear", align_corners=False)[0]


def box_of(mask: np.ndarray) -> Box:
    """x, y, width and height of the pixels of a mask (H, W); zeros where it is empty."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return 0, 0, 0, 0
    return (
        int(columns[0]),
        int(rows[0]),
        int(columns[-1] - columns[0]) + 1,
        int(rows[-1] - rows[0]) + 1,
    )
