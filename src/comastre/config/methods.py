"""Which methods there are: found by entry point, without torch, so that help and errors stay instant.

A package adds a method by an entry point of the group `comastre.methods` that names a `MethodSpec`; ours use the same
door (`pyproject.toml`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata

from comastre.config.sections import MethodConfig
from comastre.errors import UserError

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
    presets: str | None = None
    """Package with its part of presets: NAME.yaml is laid over the preset NAME."""

    @property
    def section_name(self) -> str:
        return self.section or self.name.replace("-", "_")


def find(name: str) -> MethodSpec:
    """The method of that name, or one sentence with the names that it may have meant."""
    known = methods()
    if name in known:
        return known[name]
    broken = next((each for each in broken_methods() if each.startswith(f"{name} ")), None)
    if broken is not None:
        raise UserError(f"the method {broken}")
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`comastre methods` lists those that are installed"
    raise UserError(f"there is no method {name!r}: {hint}")


def title_of(name: str) -> str:
    """How a method is called in reports; its name where it is not installed here."""
    known = methods()
    return known[name].title if name in known else name


def methods() -> Mapping[str, MethodSpec]:
    """All installed methods by name, ours first."""
    return _found()[0]


def broken_methods() -> tuple[str, ...]:
    """One sentence for each entry point that gives no method, with the package to blame."""
    return _found()[1]


@lru_cache(maxsize=1)
def _found() -> tuple[Mapping[str, MethodSpec], tuple[str, ...]]:
    specs: dict[str, MethodSpec] = {}
    problems: list[str] = []
    entries = sorted(metadata.entry_points(group=GROUP), key=lambda entry: (_package(entry) != "comastre", entry.name))
    for entry in entries:
        try:
            spec = entry.load()
        except Exception as error:  # whatever a stranger's module raises must not break the others
            problems.append(f"{entry.name} of the package {_package(entry)} cannot be loaded: {error!r}")
            continue
        reason = _unfit(spec, entry.name)
        if reason is None and spec.name in specs and specs[spec.name] != spec:
            reason = "there is another method of that name"
        if reason is not None:
            problems.append(f"{entry.name} of the package {_package(entry)} is refused: {reason}")
            continue
        specs.setdefault(spec.name, spec)
    return specs, tuple(problems)


def _unfit(spec: object, name: str) -> str | None:
    """Why an entry point's object is no method; None where it is one."""
    if not isinstance(spec, MethodSpec):
        return f"{spec!r} is no MethodSpec"
    if spec.name != name:
        return f"its spec is called {spec.name}"
    if not _NAME.fullmatch(name):
        return "a name has small letters, digits and hyphens"
    if not (isinstance(spec.config, type) and issubclass(spec.config, MethodConfig)):
        return "its config is no subclass of MethodConfig"
    unknown = sorted((spec.problems - set(PROBLEMS)) | (spec.gives - set(GIVES)))
    return f"{unknown[0]} is none of {', '.join((*PROBLEMS, *GIVES))}" if unknown else None


def _package(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "?"
