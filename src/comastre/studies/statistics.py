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


@dataclass(frozen=True)
class Groups:
    """Numbers in groups, such as a row's runs by class order: do groups differ by more than what is in one of them?"""

    groups: tuple[Summary, ...]

    @property
    def between(self) -> float | None:
        """Standard deviation of the groups' means; None of fewer than two groups."""
        return summary([each.mean for each in self.groups]).deviation

    @property
    def within(self) -> float | None:
        """Standard deviation of numbers around the mean of their group; None where every group is one number."""
        return math.sqrt(self._squares_within / self._freedom_within) if self._freedom_within else None

    @property
    def verdict(self) -> Verdict:
        """Beyond where an analysis of variance (Fisher's F) gives groups of one mean a chance below 5 %."""
        filled = [each for each in self.groups if each.values]
        if len(filled) < 2 or not self._freedom_within:
            return "unknown"
        everything = summary([value for each in filled for value in each.values]).mean or 0.0
        squares = math.fsum(len(each.values) * ((each.mean or 0.0) - everything) ** 2 for each in filled)
        if not self._squares_within:
            return "beyond" if squares else "within"
        from scipy.special import fdtrc

        freedom = len(filled) - 1
        ratio = (squares / freedom) / (self._squares_within / self._freedom_within)
        return "beyond" if fdtrc(freedom, self._freedom_within, ratio) < 1 - CONFIDENCE else "within"

    @property
    def _squares_within(self) -> float:
        return math.fsum((value - (each.mean or 0.0)) ** 2 for each in self.groups for value in each.values)

    @property
    def _freedom_within(self) -> int:
        return sum(max(len(each.values) - 1, 0) for each in self.groups)


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
