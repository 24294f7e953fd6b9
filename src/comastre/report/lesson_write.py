"""The page of a lesson, `lesson.html` in the new model: what changed, to look at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image

from comastre import __version__
from comastre.class_table import Colour, palette
from comastre.documents import read_json
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.learning.comparing import SHOWN_FOLDER, read_labels
from comastre.learning.final_words import choice_lines, guarantee_line, kept_sentence, last_lines, verdict_lines
from comastre.learning.gate import ClassChange
from comastre.learning.learned import Learned
from comastre.report.page import template_file
from comastre.report.pictures import css, data_uri, label_overlay, mask_overlay
from comastre.text import complain

LESSON = "lesson.html"
NOTHING = (138, 143, 152)
"""Colour of background in a bar."""
LOST, GAINED, RENAMED = (214, 40, 40), (42, 157, 78), (233, 163, 25)
"""Colours of pixels that lost an old class, that have one now, and that have another one."""


@dataclass(frozen=True)
class Shown:
    """An image before and after."""

    name: str
    differs: float
    size: tuple[int, int]
    image: str
    before: str
    after: str
    changed: str
    words: str
    """What became what, in a few words."""


def page_after(learned: Learned) -> Path | None:
    """Write the page of a lesson; whatever goes wrong costs a sentence, not the lesson."""
    try:
        page = learned.path / LESSON
        write_whole(page, render(learned).encode(errors="replace"))
        return page
    except Exception as error:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        complain(f"the lesson is finished, but not its page {LESSON} ({reason})")
        return None


def render(learned: Learned) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_file), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.undefined = jinja2.StrictUndefined
    names = (learned.classes.background, *learned.classes.names)
    colours = palette(len(names))
    old = [change for change in learned.changes if not change.new]
    # Models are shared: what the page says has names of this machine's folders, but no paths to them.
    words = verdict_lines(learned.verdicts, learned.changes, learned.decision, advise=False)
    words += choice_lines(learned.chosen, learned.why)
    if learned.largest_change is not None:
        words.append(guarantee_line(learned.largest_change, learned.compared))
    place = Path(learned.path.name)
    out = Path(place.name.removesuffix("-refused")) if learned.refused else place
    words += last_lines(
        place,
        out,
        len(names) - 1,
        learned.verdicts,
        learned.decision,
        bool(learned.old_after),
        not learned.new_classes,
        learned.trained,
    )
    return environment.get_template("lesson.html.jinja").render(
        title=_title(learned),
        words=words,
        refused=learned.refused,
        kept=kept_sentence(learned.decision) if old else "",
        changes=learned.changes,
        places=[place for place in dict.fromkeys(change.where for change in learned.changes) if place],
        compared=learned.compared,
        two_models=bool(old),
        became=_became(old, dict(zip(names[1:], colours[1:], strict=True))),
        labels=[
            {"name": name, "colour": css(colour), "new": name in learned.new_classes}
            for name, colour in zip(names[1:], colours[1:], strict=True)
        ],
        shown=_shown(learned.work / SHOWN_FOLDER, names),
        lost=css(LOST),
        gained=css(GAINED),
        renamed=css(RENAMED),
        style=Markup(template_file("style.css")),
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _title(learned: Learned) -> str:
    good = [verdict.name for verdict in learned.verdicts if verdict.learned]
    if learned.refused:
        return "This lesson forgot too much"
    return f"What learning {', '.join(good)} changed" if good else "What this lesson changed"


def _became(old: list[ClassChange], colours: dict[str, Colour]) -> list[dict[str, Any]]:
    """For each old class that was seen, shares of what its pixels are called now."""
    rows = []
    for change in old:
        found = change.agreement
        if found is None or not found.pixels:
            continue
        parts = [(change.name, found.kept_pixels), *found.became]
        rows.append(
            {
                "name": change.name,
                "images": found.images,
                "kept": found.kept_share,
                "gained": 100 * found.gained / found.pixels,
                "parts": [
                    {
                        "name": name,
                        "share": 100 * pixels / found.pixels,
                        "colour": css(colours.get(name, NOTHING)),
                        "same": name == change.name,
                    }
                    for name, pixels in parts
                    if pixels
                ],
            }
        )
    return sorted(rows, key=lambda row: row["kept"])


def _shown(folder: Path, names: tuple[str, ...]) -> list[Shown]:
    try:
        entries = read_json(folder / "index.json")
    except FileNotFoundError:
        return []
    found = []
    for number, entry in enumerate(entries):
        before, after = (folder / f"{number:02d}-{kind}.png" for kind in ("before", "after"))
        was, now = read_labels(before), read_labels(after)
        image = data_uri((folder / f"{number:02d}.jpg").read_bytes(), "image/jpeg")
        size = (int(entry["size"][0]), int(entry["size"][1]))
        overlays = (label_overlay(before), label_overlay(after), mask_overlay(_changed(was, now)))
        found.append(Shown(entry["name"], 100 * entry["differs"], size, image, *overlays, _words(was, now, names)))
    return found


def _changed(was: np.ndarray, now: np.ndarray) -> Image.Image:
    """(H, W) RGBA: where an old class was lost, where one came, and where one became another."""
    picture = np.zeros((*was.shape, 4), dtype=np.uint8)
    differs = was != now
    for colour, where in (
        (LOST, differs & (now == 0)),
        (GAINED, differs & (was == 0)),
        (RENAMED, differs & (was > 0) & (now > 0)),
    ):
        picture[where] = (*colour, 255)
    return Image.fromarray(picture)


def _words(was: np.ndarray, now: np.ndarray, names: tuple[str, ...], most: int = 3) -> str:
    size = len(names)
    pairs = np.bincount((was.astype(np.int64) * size + now)[was != now], minlength=size * size)
    largest = np.argsort(-pairs, kind="stable")[:most]
    return ", ".join(f"{names[pair // size]} to {names[pair % size]}" for pair in largest if pairs[pair])
