"""What installed packages add to this one: values found through a group of entry points, our own among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Generic, Protocol, TypeVar

from comastre.errors import UserError

OURS = "comastre"


class Named(Protocol):
    """Something that is asked for by name."""

    @property
    def name(self) -> str: ...


Spec = TypeVar("Spec", bound=Named)


@dataclass(frozen=True)
class Found(Generic[Spec]):
    """The values of a group, and what is wrong with those that cannot be used."""

    specs: Mapping[str, Spec]
    """By name, ours and others' alike."""
    packages: Mapping[str, str]
    """Which package brings each."""
    problems: Mapping[str, str]
    """One sentence per name that some package gives but that cannot be used."""

    def find(self, name: str, kind: str, hint: Callable[[str], str]) -> Spec:
        """The value of that name, or one sentence that ends with the caller's `hint` at what may have been meant."""
        if name in self.specs:
            return self.specs[name]
        if name in self.problems:
            raise UserError(f"the {kind} {self.problems[name]}")
        if not self.specs:
            raise UserError(f"no {kind} is known, not even our own: install this package (pip install .), or again")
        raise UserError(f"there is no {kind} {name!r}: {hint(name)}")


def find_specs(group: str, kind: type[Spec]) -> Found[Spec]:
    """All values of type `kind` that installed packages name in `group`; a broken one costs nobody else anything.

    A name that two packages give stays ours where it is ours, and is nobody's otherwise: guessing would surprise.
    """
    claims: dict[str, list[tuple[str, Spec]]] = {}
    problems: dict[str, str] = {}
    for entry in sorted(metadata.entry_points(group=group), key=lambda entry: entry.name):
        package = entry.dist.name if entry.dist is not None else entry.value
        try:
            spec = entry.load()
            if not isinstance(spec, kind):
                raise TypeError(f"it is {type(spec).__name__}, not {kind.__name__}")
            if spec.name != entry.name:
                raise ValueError(f"it calls itself {spec.name}")
        except Exception as error:  # whatever the import of somebody else's package raises
            problems[entry.name] = (
                f"{entry.name} of the package {package} cannot be used ({entry.value}: {error}): "
                "update or uninstall that package"
            )
            continue
        claims.setdefault(entry.name, []).append((package, spec))
    chosen: dict[str, tuple[str, Spec]] = {}
    for name, claimed in claims.items():
        ours = [each for each in claimed if each[0] == OURS]
        if ours or len(claimed) == 1:
            chosen[name] = (ours or claimed)[0]
        if len(claimed) > 1:
            packages = " and ".join(sorted(package for package, _ in claimed))
            problems[name] = f"{name} is given by the packages {packages}: uninstall all but one of them"
    return Found(
        specs={name: spec for name, (_, spec) in chosen.items()},
        packages={name: package for name, (package, _) in chosen.items()},
        problems=problems,
    )
