"""One segmentation from several looks at an image, whatever the model's method: a vote of the looks on every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from comastre.segmentation import Segment, Segmentation

NOTHING = 0.6
"""What the vote of a look counts that finds nothing at a pixel; that of a segment counts its score."""
SAME = 0.5
"""A segment of which an earlier look's segment of the same class covers this share is the same object."""


def combined(looks: Sequence[Segmentation]) -> Segmentation:
    """Each pixel gets the label with most votes, of equals that of the earliest look.

    An object that several looks find is one segment, as sure as the surest of them. Proposals are those of the first
    look; of the others nothing is kept that refers to theirs.
    """
    labels = torch.stack([look.label_map for look in looks])  # (L, H, W)
    votes = torch.stack([_votes(look) for look in looks])  # (L, H, W)
    support = (votes[None] * (labels[None] == labels[:, None])).sum(dim=1)  # (L, H, W): of each look's own label
    chosen = support.argmax(dim=0, keepdim=True)  # (1, H, W)
    label_map = labels.gather(0, chosen)[0]
    objects, tables = _objects(looks)
    maps = torch.stack([table[look.segment_map] for table, look in zip(tables, looks, strict=True)])
    places = torch.where(label_map > 0, maps.gather(0, chosen)[0], 0)  # (H, W): 1 + place of the object, 0 for none

    areas = torch.bincount(places.flatten(), minlength=len(objects) + 1)[1:]
    numbers = torch.cat([areas.new_zeros(1), torch.where(areas > 0, (areas > 0).cumsum(0), 0)])
    segment_map = numbers[places]
    segments = [
        replace(each, area=area, number=int(number), segment_map=segment_map)
        for each, area, number in zip(objects, areas.tolist(), numbers[1:].tolist(), strict=True)
        if area
    ]
    return Segmentation(label_map, segment_map, tuple(segments), looks[0].proposals)


def _votes(look: Segmentation) -> Tensor:
    """(H, W): what the look's vote counts at each pixel."""
    scores = [NOTHING, *(segment.score for segment in look.segments)]
    return torch.tensor(scores, dtype=torch.float32, device=look.label_map.device)[look.segment_map]


def _objects(looks: Sequence[Segmentation]) -> tuple[list[Segment], list[Tensor]]:
    """What all looks found, each object once, and for every look the object (from 1) of each of its segments."""
    objects: list[Segment] = []
    tables = []
    for number, look in enumerate(looks):
        table = [0]
        earlier = list(objects)  # segments of one look are different objects
        for segment in look.segments:
            mine = segment.segment_map == segment.number
            shares = [
                int((mine & (each.segment_map == each.number)).sum()) if each.label == segment.label else 0
                for each in earlier
            ]
            best = max(range(len(shares)), key=shares.__getitem__, default=None)
            if best is not None and shares[best] > 0 and shares[best] >= SAME * segment.area:
                objects[best] = replace(objects[best], score=max(objects[best].score, segment.score))
                table.append(best + 1)
            else:
                objects.append(segment if number == 0 else replace(segment, query=None))
                table.append(len(objects))
        tables.append(torch.tensor(table, device=look.label_map.device))
    return objects, tables
