"""What looks wrong about labelled data without being wrong: told before anybody trains on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from comastre.data.dataset import IGNORE
from comastre.data.names import twin_of
from comastre.text import shortened

DENSE = 0.01
"""Share of unlabelled pixels below which data counts as labelled everywhere."""


def hints(
    class_names: Sequence[str],
    presence: Sequence[Collection[int]],
    pixels: Sequence[int] = (),
    has_background: bool = True,
) -> list[str]:
    """One sentence each; `pixels` of every value 0..255, where they were counted."""
    shown = frozenset().union(*presence) if presence else frozenset()
    absent = [name for label, name in enumerate(class_names, start=1) if label not in shown]
    lines = []
    if _counts_from_zero(len(class_names), shown, absent):
        lines.append(
            f"the masks may count their classes from 0: no mask holds {len(class_names)}, which is {class_names[-1]}; "
            f"if 0 is {class_names[0]} there, every name is shifted by one: add 1 to all ids, or put background first "
            "in the list of classes"
        )
    elif absent and shown:
        lines.append(f"listed, but shown by no image: {shortened(absent)}")
    for place, name in enumerate(class_names):
        twin = twin_of(name, class_names[:place])
        if twin is not None:
            lines.append(f"{name!r} and {twin!r} are two classes whose names hardly differ: is it one?")
    labelled = sum(pixels[:IGNORE])
    if labelled and (share := pixels[0] / labelled) < DENSE:
        what = "void" if not has_background else "background"
        lines.append(
            f"nearly every pixel is labelled ({100 * share:.1f} % are {what}), so there is no background: predict with "
            "--every_pixel true, which gives every pixel to the best class"
        )
    return lines


def _counts_from_zero(num_classes: int, shown: Collection[int], absent: Sequence[str]) -> bool:
    """All classes are shown but the last, as it is where ids are shifted by one."""
    return num_classes > 1 and len(absent) == 1 and num_classes not in shown
