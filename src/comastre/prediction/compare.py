"""`comastre diff`: two models on the same images, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from comastre.errors import UserError
from comastre.evaluation.disagreement import Disagreement
from comastre.evaluation.image_progress import ImageProgress
from comastre.prediction.image_files import find_images
from comastre.prediction.model import Model, load
from comastre.text import shortened, table

_SHOWN = 10
"""Images that differ most, by name."""


@dataclass(frozen=True)
class Compared:
    """What two models said of the same images."""

    before: str
    after: str
    lost: tuple[str, ...]
    """Classes that only the first knows."""
    new: tuple[str, ...]
    """Classes that only the second knows."""
    counts: Disagreement
    images: tuple[tuple[str, float], ...]
    """Names with the share of pixels that differ, the most first."""
    failed: tuple[str, ...]
    """One sentence per image that could not be read."""


def compare(before: str, after: str, images: str | Path, device: str = "cpu") -> Compared:
    """Let both models look at every image."""
    one, other = load(before).to(device), load(after).to(device)
    names, of_one, of_other = shared_labels(one, other)
    counts, shares, failed = Disagreement(names), [], []
    files = find_images([images])
    with ImageProgress("looking", len(files)) as progress:
        for file in files:
            try:
                was, now = (model.predict(file.path).label_map for model in (one, other))
            except UserError as error:
                failed.append(str(error))
                continue
            shares.append((file.name.as_posix(), counts.add(of_one[was], of_other[now])))
            progress.advance()
    if not shares:
        raise UserError(f"none of the images of {images} can be read: {failed[0]}")
    known, learned = one.classes.names, other.classes.names
    return Compared(
        before,
        after,
        tuple(name for name in known if name not in learned),
        tuple(name for name in learned if name not in known),
        counts,
        tuple(sorted(shares, key=lambda pair: (-pair[1], pair[0]))),
        tuple(failed),
    )


def shared_labels(one: Model, other: Model) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Names of labels that hold the classes of both, background first, and each model's labels among them."""
    names = tuple(dict.fromkeys((*one.classes.names, *other.classes.names)))
    place = {name: label for label, name in enumerate(names, start=1)}
    first, second = (np.array([0, *(place[name] for name in model.classes.names)]) for model in (one, other))
    return (one.classes.background, *names), first, second


def render(found: Compared) -> str:
    """The comparison as text."""
    counts = found.counts
    lines = [f"{found.before} -> {found.after}: {counts.images} images, {counts.share:.1f} % of the pixels differ"]
    lines += [f"only in {found.before}: {shortened(found.lost, 30)}"] if found.lost else []
    lines += [f"only in {found.after}: {shortened(found.new, 30)}"] if found.new else []
    rows = [["class", "seen in", "same place", "same pixels", "gained", "now called"]]
    for label in range(1, len(counts.names)):
        each = counts.of(label)
        if not each.pixels and not each.gained:
            continue
        share = "-" if each.kept_share is None else f"{each.kept_share:.0f} %"
        gained = f"+{100 * each.gained / each.pixels:.0f} %" if each.pixels else f"{each.gained:,} pixels"
        others = [f"{name} {100 * pixels / each.pixels:.0f} %" for name, pixels in each.became[:2]]
        rows.append([each.name, f"{each.images}", f"{each.kept_images}", share, gained, ", ".join(others)])
    if len(rows) == 1:
        lines.append("neither model sees any of its classes there")
    else:
        lines += ["", table(_aligned(rows))]
    differing = [f"{name} {100 * share:.0f} %" for name, share in found.images if share > 0]
    lines += ["", f"most different: {shortened(differing, _SHOWN)}"] if differing else []
    return "\n".join([*lines, *found.failed])


def _aligned(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        [cell if place in (0, len(row) - 1) else f"{cell:>{widths[place]}}" for place, cell in enumerate(row)]
        for row in rows
    ]
