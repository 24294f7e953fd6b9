"""What looks wrong about labelled data without being wrong: told before anybody trains on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from comastre.data.dataset import IGNORE, SegmentationDataset
from comastre.data.files import FileDataset, MaskReader
from comastre.data.label_counts import LabelCounts
from comastre.data.names import twin_of
from comastre.text import shortened

DENSE = 0.01
"""Share of unlabelled pixels below which data counts as labelled everywhere."""
# What the label 0 is like in masks that count from 0 (docs/specification.md, Files of others).
LEAST_OF_A_CLASS = 0.02
"""Share of the pixels: less may be what nobody labelled."""
MOST_OF_BORDERS = 1 / 3
"""Share of the borders between labels: a background, which lies around objects, takes part in nearly all of them."""
MOST_SCATTERED = 1.5
"""Borders per pixel, as a multiple of what classes have: what nobody labelled lies in shreds between them."""


def hints_of(dataset: SegmentationDataset, presence: Sequence[Collection[int]], counts: LabelCounts) -> list[str]:
    """What looks wrong about a dataset of which these images were looked at and these labels counted."""
    return hints(
        dataset.class_names,
        presence,
        counts.pixels,
        dataset.has_background,
        counts.borders,
        _may_count_from_zero(dataset),
    )


def hints(
    class_names: Sequence[str],
    presence: Sequence[Collection[int]],
    pixels: Sequence[int] = (),
    has_background: bool = True,
    borders: Sequence[int] = (),
    of_ids: bool = True,
) -> list[str]:
    """One sentence each; `pixels` and `borders` of every value 0..255, where they were counted.

    Only of masks `of_ids` without a word on what 0 is can somebody have counted otherwise.
    """
    shown = frozenset().union(*presence) if presence else frozenset()
    absent = [name for label, name in enumerate(class_names, start=1) if label not in shown]
    lines = []
    listed = f"listed, but shown by no image: {shortened(absent)}"
    if of_ids and _counts_from_zero(len(class_names), shown, absent, pixels, borders):
        lines.append(
            f"{listed}; the masks may count their classes from 0: no mask holds {len(class_names)}, which is "
            f"{class_names[-1]}; if 0 is {class_names[0]} there, every name is shifted by one: add 1 to all ids, or "
            "put background first in the list of classes"
        )
    elif absent and shown:
        lines.append(listed)
    for place, name in enumerate(class_names):
        twin = twin_of(name, class_names[:place])
        if twin is not None:
            lines.append(f"{name!r} and {twin!r} are two classes whose names hardly differ: is it one?")
    dense = _dense(pixels, has_background)
    return [*lines, dense] if dense is not None else lines


def _dense(pixels: Sequence[int], has_background: bool) -> str | None:
    """That there is no background, where the data says so or nearly every pixel has a class."""
    labelled = sum(pixels[:IGNORE])
    share = pixels[0] / labelled if labelled else None
    what = "background" if has_background else "void"
    if share is not None and share < DENSE:
        why = f"nearly every pixel is labelled ({100 * share:.1f} % are {what}), so there is no background"
    elif not has_background:
        counted = f" ({100 * share:.1f} % of the pixels)" if share is not None else ""
        why = f"the data has no background: what is not labelled is void{counted}"
    else:
        return None
    return f"{why}: predict with --every_pixel true, which gives every pixel to the best class"


def _may_count_from_zero(dataset: SegmentationDataset) -> bool:
    """Whether it is masks of ids and nobody says what 0 is; objects and colours have names of their own."""
    return (
        isinstance(dataset, FileDataset)
        and isinstance(dataset.read_labels, MaskReader)
        and not dataset.read_labels.names_zero
    )


def _counts_from_zero(
    num_classes: int,
    shown: Collection[int],
    absent: Sequence[str],
    pixels: Sequence[int],
    borders: Sequence[int],
) -> bool:
    """The last class is not shown, as it is where ids are shifted by one, and 0 looks like a class.

    Where nobody has counted, all other classes must be shown.
    """
    if num_classes < 2 or not shown or num_classes in shown:
        return False
    return _is_like_a_class(pixels, borders) if pixels and borders else len(absent) == 1


def _is_like_a_class(pixels: Sequence[int], borders: Sequence[int]) -> bool:
    """Whether 0 lies among labels as they do among each other: neither around all of them nor in shreds between."""
    own, others = pixels[0], sum(pixels[1:IGNORE])
    if own < LEAST_OF_A_CLASS * (own + others) or not others:
        return False
    between_labels = sum(borders) / 2  # each was counted for both
    among = borders[0] <= MOST_OF_BORDERS * between_labels
    return among and borders[0] / own <= MOST_SCATTERED * sum(borders[1:]) / others
