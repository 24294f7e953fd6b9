"""Names that differ only in what does not count, and names that are nearly the same."""

from comastre.data.names import looks_like, nearest, twin_of


def test_case_spaces_and_hyphens_do_not_count() -> None:
    assert looks_like("Traffic-Light") == looks_like("traffic_ light")
    assert looks_like("cat") != looks_like("cats")


def test_a_twin_is_another_name_for_the_same() -> None:
    assert twin_of("Dog", ("cat", "dog", "DOG")) == "dog"
    assert twin_of("dog", ("cat", "dog")) is None  # that is the name itself
    assert twin_of("dogs", ("cat", "dog")) is None


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert nearest("Trafic Light", ("disk", "traffic light")) == "traffic light"
    assert nearest("zebra", ("disk", "traffic light")) is None
