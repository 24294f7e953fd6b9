"""Means and paired differences, against scipy's own test and by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from comastre.studies.statistics import Groups, paired, student, summary


def test_mean_and_deviation_by_hand() -> None:
    found = summary([2.0, None, 4.0, math.nan, 6.0])
    assert found.values == (2.0, 4.0, 6.0)
    assert (found.mean, found.deviation) == (4.0, 2.0)
    assert summary([3.0]).deviation is None
    assert summary([]).mean is None


def test_a_difference_is_paired_by_seed_and_what_one_row_lacks_is_left_out() -> None:
    found = paired({0: 10.0, 1: 20.0, 2: 33.0, 3: 7.0}, {0: 9.0, 1: 19.0, 2: 30.0, 4: 50.0, 3: None})
    assert found.differences.values == (1.0, 1.0, 3.0)
    # mean 5/3, sd sqrt(4/3), t of 2 degrees of freedom 4.3027: 4.3027 * 1.1547 / sqrt(3) = 2.868 > 1.667
    assert found.half_width == pytest.approx(2.868, abs=1e-3)
    assert found.verdict == "within"
    assert paired({0: 5.0, 1: 5.1, 2: 5.2}, {0: 1.0, 1: 1.0, 2: 1.0}).verdict == "beyond"


def test_one_pair_says_nothing_and_equal_rows_are_within() -> None:
    assert paired({0: 5.0}, {0: 1.0}).verdict == "unknown"
    assert paired({0: 5.0, 1: 6.0}, {0: 5.0, 1: 6.0}).verdict == "within"
    assert paired({}, {}).verdict == "unknown"


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), min_size=3, max_size=8))
def test_beyond_the_spread_is_what_a_paired_t_test_rejects(pairs: list[tuple[int, int]]) -> None:
    one = {place: float(pair[0]) for place, pair in enumerate(pairs)}
    two = {place: float(pair[1]) for place, pair in enumerate(pairs)}
    differences = [one[place] - two[place] for place in one]
    found = paired(one, two)
    if len(set(differences)) == 1:
        assert found.verdict == ("beyond" if differences[0] else "within")
        return
    chance = stats.ttest_rel(list(one.values()), list(two.values())).pvalue
    if abs(chance - 0.05) > 1e-9:
        assert found.verdict == ("beyond" if chance < 0.05 else "within")


def test_student_is_that_of_tables() -> None:
    assert student(1) == pytest.approx(12.706, abs=1e-3)
    assert student(2) == pytest.approx(4.303, abs=1e-3)


def test_spread_between_groups_and_within_them_by_hand() -> None:
    found = Groups((summary([1.0, 3.0]), summary([5.0, 7.0]), summary([])))
    # means 2 and 6; four numbers, each 1 away from the mean of its group, two degrees of freedom
    assert found.between == pytest.approx(math.sqrt(8))
    assert found.within == pytest.approx(math.sqrt(2))
    assert Groups((summary([1.0]), summary([9.0]))).within is None


def test_groups_of_one_number_say_nothing_and_groups_without_spread_all() -> None:
    assert Groups((summary([1.0]), summary([9.0]))).verdict == "unknown"
    assert Groups((summary([1.0, 2.0]),)).verdict == "unknown"
    assert Groups((summary([1.0, 1.0]), summary([2.0, 2.0]))).verdict == "beyond"
    assert Groups((summary([1.0, 1.0]), summary([1.0, 1.0]))).verdict == "within"


@given(st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=5), min_size=2, max_size=4))
def test_groups_differ_where_an_analysis_of_variance_says_so(groups: list[list[int]]) -> None:
    if all(len(set(group)) == 1 for group in groups):
        return  # scipy has no answer without a spread
    chance = stats.f_oneway(*groups).pvalue
    if abs(chance - 0.05) > 1e-9:
        found = Groups(tuple(summary([float(number) for number in group]) for group in groups))
        assert found.verdict == ("beyond" if chance < 0.05 else "within")
