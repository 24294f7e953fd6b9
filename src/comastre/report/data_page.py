"""The page of `comastre data check --preview`: samples with their labels drawn, and what each class has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image

from comastre import __version__
from comastre.class_table import palette
from comastre.data.dataset import IGNORE
from comastre.errors import UserError
from comastre.evaluation.examples import choose_examples, photograph, small_size
from comastre.files import write_whole
from comastre.report.page import template_file
from comastre.report.pictures import css, data_uri, mask_overlay
from comastre.report.write import refuse_foreign
from comastre.stream.check import DataReport

SAMPLES = 24


@dataclass(frozen=True)
class Sample:
    """One image with its labels."""

    name: str
    size: tuple[int, int]
    image: str
    labels: str
    """A picture of the labels, transparent where there is none."""
    words: str


def write_page(report: DataReport, page: Path, title: str) -> Path:
    """Write the page."""
    refuse_foreign(page, "--preview")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_whole(page, render(report, title).encode(errors="replace"))
    except OSError as error:
        raise UserError(f"the preview cannot be written to {page} ({error}): choose another file") from error
    return page


def render(report: DataReport, title: str) -> str:
    """The page as text."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_file), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.undefined = jinja2.StrictUndefined
    colours = palette(len(report.class_names) + 1)
    images = [split.images_of for split in (report.training, report.validation)]
    rows = [
        {
            "label": label,
            "name": name,
            "colour": css(colours[label]),
            "training": images[0][label],
            "validation": images[1][label],
            "share": report.share(label),
        }
        for label, name in enumerate(report.class_names, start=1)
    ]
    return environment.get_template("data.html.jinja").render(
        title=title,
        dataset=report.dataset,
        rows=rows,
        largest=max((row["share"] or 0.0 for row in rows), default=0.0),
        unlabelled=report.share(0),
        background="background" if report.training_set.has_background else "void",
        total=len(report.training.presence) + len(report.validation.presence),
        hints=report.hints,
        problems=report.problems[:50],
        samples=_samples(report),
        style=Markup(template_file("style.css")),
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _samples(report: DataReport) -> list[Sample]:
    presence = report.training.presence
    order = tuple(range(1, len(report.class_names) + 1))
    chosen = choose_examples(presence, order, SAMPLES) or tuple(range(min(SAMPLES, len(presence))))
    samples = []
    for index in chosen:
        try:
            sample = report.training_set[index]
        except UserError:
            continue  # told in the list of bad images
        size = small_size(sample.image.shape[:2])
        names = [report.class_names[label - 1] for label in sorted(presence[index])]
        drawn = mask_overlay(_drawn(sample.semantic, size))
        image = data_uri(photograph(sample.image, size), "image/jpeg")
        samples.append(Sample(sample.image_id, size, image, drawn, ", ".join(names) or "nothing labelled"))
    return samples


def _drawn(semantic: np.ndarray, size: tuple[int, int]) -> Image.Image:
    """The labels as RGBA: each class in its colour, ignored pixels white and half transparent."""
    small = np.asarray(Image.fromarray(semantic).resize(size[::-1], Image.Resampling.NEAREST))
    table = np.zeros((256, 4), dtype=np.uint8)
    for label, colour in enumerate(palette(IGNORE)):
        table[label] = (*colour, 0 if label == 0 else 255)
    table[IGNORE] = (255, 255, 255, 140)
    return Image.fromarray(table[small])
