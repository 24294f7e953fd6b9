"""Fields of a run as study files write them: dotted or nested, leading sections left out where that is unique."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from comastre.config.overrides import find_field
from comastre.errors import UserError


def fields_of(given: Mapping[str, Any], method: str, origin: str) -> dict[str, Any]:
    """Fields of a study file, dotted or nested, leading sections left out where that is unique, as a nested dict."""
    found: dict[str, Any] = {}
    for name, value in _leaves(given, method):
        try:
            field = find_field(name, method)
        except UserError as error:
            raise UserError(f"{origin}: {error}") from None
        *sections, leaf = field.name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return found


def as_written(value: Any) -> str:
    """A value as a file has it, by which two are compared: a list read back is the tuple that was written."""
    return json.dumps(value, default=str)


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the fields in which two differ, those that only one has among them."""
    return [name for name in dict.fromkeys([*other, *one]) if as_written(one.get(name)) != as_written(other.get(name))]


def _leaves(given: Mapping[str, Any], method: str, prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names with values; a value that is a mapping stays one where the name is that of a field."""
    leaves: list[tuple[str, Any]] = []
    for name, value in given.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping) and dotted != "data.options":
            leaves += _leaves(value, method, f"{dotted}.")
        else:
            leaves.append((dotted, value))
    return leaves
