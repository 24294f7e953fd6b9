"""Values that files of others may hold, and documents in which one value is such: for tests of any input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONG = settings().max_examples > 100
"""Whether the profile `long` was asked for."""
LIMIT = pytest.mark.timeout(7200 if LONG else 120)
"""Seconds of a test: what waits for ever is ended."""
LARGE = 10**30
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10),
    st.sampled_from([LARGE, -LARGE, 10**10, 10**400, 2**31, 2**63]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.sampled_from(["", " ", "\x1b[31m", "\ud800", "a" * 300, "2024-99-99", "../..", "\0", "hf-hub:a/b", "9" * 5000]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def few(number: int) -> Callable[[Any], Any]:
    """So many examples in the default run; the profile `long` has its own number."""
    return settings(
        max_examples=settings().max_examples if LONG else number,
        derandomize=not LONG,  # the default run is the same every time
        database=None,
        deadline=60_000,  # milliseconds of one example, on a machine that has other things to do
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def places_in(content: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a document."""
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [above, *(place for key, value in inside for place in places_in(value, (*above, key)))]


def replaced(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The document with another value there."""
    if not place:
        return value
    copy = json.loads(json.dumps(content))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return copy


def write_json(file: Path, content: Any) -> None:
    """As JSON, with what JSON of others has: halves of characters, NaN and numbers without end."""
    file.write_bytes(json.dumps(content).encode())
