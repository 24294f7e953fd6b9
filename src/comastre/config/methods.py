"""Which methods there are: found by entry point, without torch, so that help and errors stay instant.

A package adds a method by an entry point of the group `comastre.methods` that names a `MethodSpec`; ours use the same
door (`pyproject.toml`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from comastre.config.entry_points import OURS, Found, find_specs
from comastre.config.sections import MethodConfig

GROUP = "comastre.methods"
DEFAULT = "comastre"
PROBLEMS = ("semantic", "panoptic", "instance")
GIVES = ("labels", "segments", "proposals")
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


@dataclass(frozen=True)
class MethodSpec:
    """What can be known of a method without running it."""

    name: str
    """As in `--method`."""
    title: str
    """As papers and reports write it."""
    about: str
    """One line for `comastre methods`."""
    config: type[MethodConfig]
    """Its own section of a run's configuration; the defaults are its paper's."""
    implementation: str
    """`module:name` of what builds it from a `methods.protocol.Setup`; imported when it runs."""
    section: str = ""
    """Name of its section; variants of one method share one. By default the method's own name."""
    problems: frozenset[str] = frozenset({"semantic"})
    """Which kinds of segmentation it learns."""
    gives: frozenset[str] = frozenset({"labels"})
    """What its models say of an image: labels, segments, proposals."""
    all_at_once: bool = False
    """Whether it learns all classes in one step, whatever the setting is."""
    learns_on_as: str | None = None
    """The method that teaches its models more classes; by default itself."""
    teaches: frozenset[str] = frozenset()
    """Other methods whose models it can teach more classes, where a user asks for it."""
    taught_at_once_by: str | None = None
    """The method that teaches its models more classes by one look at the images, if one does."""
    presets: str | tuple[str, ...] | None = None
    """Package with its part of presets: NAME.yaml is laid over the preset NAME. Several are laid one over the other."""
    needs_values: bool = False
    """Whether a preset without its part is refused: its defaults, such as rates of SGD, suit few settings."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"'{self.name}' is no name for a method: use small letters, digits and hyphens")
        if not (isinstance(self.config, type) and issubclass(self.config, MethodConfig)):
            raise TypeError(f"{self.name}: its config must be a subclass of MethodConfig")
        if not re.fullmatch(r"[\w.]+:\w+", self.implementation):
            raise ValueError(f"{self.name}: '{self.implementation}' must be written module:name")
        unknown = sorted((self.problems - set(PROBLEMS)) | (self.gives - set(GIVES)))
        if unknown:
            raise ValueError(f"{self.name}: {unknown[0]} is none of {', '.join((*PROBLEMS, *GIVES))}")

    @property
    def preset_packages(self) -> tuple[str, ...]:
        """Packages with its part of presets, what a family of methods shares first."""
        return (self.presets,) if isinstance(self.presets, str) else self.presets or ()

    @property
    def section_name(self) -> str:
        return self.section or self.name.replace("-", "_")


@cache
def installed() -> Found[MethodSpec]:
    """All methods of the installed packages and what is wrong with others; looked up once per process."""
    return find_specs(GROUP, MethodSpec)


def methods() -> Mapping[str, MethodSpec]:
    """All methods by name, ours first."""
    found = installed()
    in_order = sorted(found.specs, key=lambda name: (found.packages[name] != OURS, name))
    return {name: found.specs[name] for name in in_order}


def find(name: str) -> MethodSpec:
    """The method of that name, or one sentence with the names that it may have meant."""
    return installed().find(name, "method", _near_names)


def _near_names(name: str) -> str:
    near = difflib.get_close_matches(name, methods(), n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "`comastre methods` lists those that are installed"


def title_of(name: str) -> str:
    """How a method is called in reports; its name where it is not installed here."""
    known = methods()
    return known[name].title if name in known else name
