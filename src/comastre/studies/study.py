"""What a study is: rows (a method with some fields) times seeds times class orders times settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Metric = Literal["all", "recall", "confident_recall", "later_recall", "base_recall"]
"""What a study looks at first: mIoU on all classes, or average recall of proposals."""


@dataclass(frozen=True)
class Row:
    """One line of the table: what is trained once for every seed, order and setting."""

    name: str
    method: str | None = None
    """None: the one that the preset names."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the preset, nested as in a YAML file of a run."""
    seeds: tuple[int, ...] | None = None
    """Where this row has fewer seeds than the study."""
    paper: tuple[str, ...] = ()
    """Where the paper's numbers of this row are."""
    found: str = ""
    """What the paper says of it, in a sentence."""


@dataclass(frozen=True)
class Setting:
    """A stream on some data: its name in tables, and the preset or file that describes it."""

    label: str
    source: str
    setting: str | None = None
    """'B-I', where it is not that of the source."""


@dataclass(frozen=True)
class Order:
    """In which order classes are learned."""

    number: int = 0
    """0: that of the settings; 1, 2, ...: drawn, or as given."""
    classes: tuple[int, ...] | None = None

    @property
    def label(self) -> str:
        return f"order {self.number}" if self.number else "own order"


@dataclass(frozen=True)
class Study:
    """Many runs as one."""

    name: str
    rows: tuple[Row, ...]
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...] = (0,)
    orders: tuple[Order, ...] = (Order(),)
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the presets of all rows."""
    title: str = ""
    about: str = ""
    scale: str = ""
    metric: Metric = "all"
    paper_setting: Mapping[str, str] = field(default_factory=dict)
    """By label: under which name the paper has a setting."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Fields that the command line must give, each with what for."""
    all_rows: tuple[str, ...] = ()
    """Names of its rows in their order, also where only some of them are chosen."""
    all_settings: tuple[str, ...] = ()
