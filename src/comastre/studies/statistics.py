"""Means, spreads and paired differences over the runs of a study (docs/specification.md, Studies)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

CONFIDENCE = 0.95
Verdict = Literal["beyond", "within", "unknown"]


@dataclass(frozen=True)
class Summary:
    """Some numbers in short."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return math.fsum(self.values) / len(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Of a sample (n - 1); None of fewer than two numbers."""
        if len(self.values) < 2 or self.mean is None:
            return None
        return math.sqrt(math.fsum((value - self.mean) ** 2 for value in self.values) / (len(self.values) - 1))


def summary(values: Sequence[float | None]) -> Summary:
    """Of the known ones."""
    return Summary(tuple(value for value in values if value is not None and math.isfinite(value)))


@dataclass(frozen=True)
class PairedDifference:
    """One row minus another, over the seeds and orders that both have."""

    differences: Summary

    @property
    def pairs(self) -> int:
        return len(self.differences.values)

    @property
    def half_width(self) -> float | None:
        """Of the interval in which the mean difference lies with a probability of 95 % (Student's t); None of one."""
        deviation = self.differences.deviation
        return None if deviation is None else student(self.pairs - 1) * deviation / math.sqrt(self.pairs)

    @property
    def verdict(self) -> Verdict:
        """Beyond the spread where that interval leaves out 0."""
        mean, width = self.differences.mean, self.half_width
        if mean is None or width is None:
            return "unknown"
        return "beyond" if abs(mean) > width else "within"


Key = TypeVar("Key", bound=Hashable)


def paired(one: Mapping[Key, float | None], other: Mapping[Key, float | None]) -> PairedDifference:
    """`one` minus `other`, by seed and order; what only one of them has is left out."""
    found = []
    for key, value in one.items():
        against = other.get(key)
        found.append(None if value is None or against is None else value - against)
    return PairedDifference(summary(found))


def student(freedom: int) -> float:
    """How many standard errors are on either side of a mean at 95 %."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
