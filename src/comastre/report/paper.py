"""The paper's own numbers, for a look beside ours; `paper.json` holds every number of its tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from comastre.report.gather import Run
from comastre.report.groups import dataset_of

METHOD = "CoMasTRe"
PROTOCOL = "overlapped"
WHERE = f"CVPR 2024, ResNet-101, {PROTOCOL}"
_DATASETS = ("voc", "ade20k")
# Their numbers fit (100 base + 50 inc) / 150 = all, those of every other row (101 base + 50 inc) / 151.
WITHOUT_BACKGROUND = {"ade20k": ("Joint (CoMFormer)", "Joint (CoMasTRe)")}


@dataclass(frozen=True)
class PaperRow:
    """One method of the paper's tables after the last step; None where the paper has no number."""

    method: str
    base: float | None
    inc: float | None
    all: float | None
    avg: float | None
    convention: str
    """How its means treat background, which its own numbers tell (docs/specification.md, Scores)."""


@dataclass(frozen=True)
class Reference:
    """What the paper says about one setting."""

    rows: tuple[PaperRow, ...]
    per_class: dict[str, float]
    """IoU after the last step, of the paper's method; empty where the paper does not give it."""

    def under(self, convention: str) -> Reference | None:
        """With the rows that can stand beside scores under this convention; None where there are none."""
        rows = tuple(row for row in self.rows if row.convention == convention)
        return Reference(rows, self.per_class) if rows else None

    def elsewhere(self, convention: str) -> dict[str, list[str]]:
        """The methods of the other rows, by their convention."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if row.convention != convention:
                found.setdefault(row.convention, []).append(row.method)
        return found

    @property
    def ours(self) -> PaperRow | None:
        """The row of the paper's own method."""
        return next((row for row in self.rows if row.method == METHOD), None)


def reference(run: Run) -> Reference | None:
    """The paper's numbers for the data and setting of a run; None where it has none."""
    if run.results is None or run.results.protocol != PROTOCOL or run.setting("continual", "class_order"):
        return None
    dataset, setting = dataset_of(run), run.results.setting
    table = tables()[dataset] if dataset in _DATASETS else {}
    plain = WITHOUT_BACKGROUND.get(dataset, ())
    rows = tuple(
        PaperRow(method, **found[setting], convention="no_background" if method in plain else "paper")
        for method, found in table.items()
        if setting in found
    )
    rows = tuple(row for row in rows if (row.base, row.inc, row.all, row.avg) != (None, None, None, None))
    if not rows:
        return None
    per_class = tables()["voc_per_class"].get(setting, {}) if dataset == "voc" else {}
    return Reference(rows, per_class)


@lru_cache(maxsize=1)
def tables() -> dict[str, Any]:
    """Every number of the paper's tables, as `paper.json` has them."""
    text = resources.files("comastre.report").joinpath("paper.json").read_text(encoding="utf-8")
    return json.loads(text)
