"""How mean IoU is averaged: the conventions in use, with what each means in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

ConventionName = Literal["paper", "no_background_in_base", "future_ignored", "no_background"]


@dataclass(frozen=True)
class Convention:
    """How one group of papers averages."""

    background_in_base: bool
    background_in_all: bool
    ignore_future: bool
    """Leave out pixels of classes not learned yet, instead of counting them as background."""
    of_a_model: str
    """In a few words, for the scores of one model on data."""
    of_a_run: str
    """In a sentence, for a stream of steps."""


PAPER: ConventionName = "paper"
_RULES: dict[ConventionName, Convention] = {
    # The paper's continual rows fit only this one: (101 base + 50 inc) / 151 = all on ADE20K. Of its joint rows there,
    # CoMasTRe's and CoMFormer's fit only `no_background`: (100 base + 50 inc) / 150 = all.
    "paper": Convention(
        background_in_base=True,
        background_in_all=True,
        ignore_future=False,
        of_a_model="background counts in base and all",
        of_a_run="base and all include background; classes not learned yet count as background (the paper's way)",
    ),
    # MiB, CoMFormer.
    "no_background_in_base": Convention(
        background_in_base=False,
        background_in_all=True,
        ignore_future=False,
        of_a_model="background counts in all only",
        of_a_run="base without background, all with it; classes not learned yet count as background",
    ),
    "future_ignored": Convention(
        background_in_base=True,
        background_in_all=True,
        ignore_future=True,
        of_a_model="as paper, but pixels of classes that the model does not know are left out",
        of_a_run="base and all include background; pixels of classes not learned yet are left out",
    ),
    "no_background": Convention(
        background_in_base=False,
        background_in_all=False,
        ignore_future=False,
        of_a_model="classes only",
        of_a_run="without background; classes not learned yet count as background",
    ),
}
CONVENTIONS: Mapping[str, Convention] = {name: _RULES[name] for name in get_args(ConventionName)}
"""All conventions by name, in the order in which they are shown."""
