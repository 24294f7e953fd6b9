"""The colours that pictures use."""

from comastre.class_table import class_table, palette


def test_palette_is_distinct_and_starts_with_black():
    colours = palette(151)
    assert len(set(colours)) == 151
    assert colours[0] == (0, 0, 0)


def test_neighbours_in_the_palette_are_far_apart():
    colours = palette(21)
    for first in range(len(colours)):
        for second in range(first):
            distance = sum(abs(a - b) for a, b in zip(colours[first], colours[second], strict=True))
            assert distance >= 60, (first, second)


def test_a_longer_palette_keeps_the_colours_of_the_shorter():
    assert palette(30)[:11] == palette(11)


def test_a_table_without_colours_takes_those_of_the_palette():
    assert class_table(["disk", "star"], [1, 1]).colours == palette(3)


def test_the_colours_of_models_and_reports_stay_what_they_are():
    assert palette(4) == ((0, 0, 0), (242, 82, 61), (61, 92, 242), (145, 242, 61))
