"""One segmentation from several looks at an image, whatever the model's method: its segments, the surest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from comastre.segmentation import Segment, Segmentation

SHARE = 0.5
"""Of a segment, this much must still be free: less is a second view of what a surer segment shows."""


def combined(looks: Sequence[Segmentation]) -> Segmentation:
    """Segments of all looks in order of their score, each with the pixels that no surer one has.

    Proposals are those of the first look; of the others nothing is kept that refers to theirs.
    """
    first = looks[0]
    found = [(segment, number) for number, look in enumerate(looks) for segment in look.segments]
    found.sort(key=lambda pair: -pair[0].score)  # stable: of equal ones the first look's come first
    label_map, segment_map = torch.zeros_like(first.label_map), torch.zeros_like(first.segment_map)
    segments: list[Segment] = []
    for segment, look in found:
        mine = (segment.segment_map == segment.number) & (segment_map == 0)  # (H, W)
        area = int(mine.sum())
        if area == 0 or area < SHARE * segment.area:
            continue
        number = len(segments) + 1
        segment_map[mine], label_map[mine] = number, segment.label
        query = segment.query if look == 0 else None
        segments.append(replace(segment, area=area, number=number, segment_map=segment_map, query=query))
    return Segmentation(label_map, segment_map, tuple(segments), first.proposals)
