"""How the program writes lists and times."""

from comastre.text import readable_time, shortened


def test_readable_time() -> None:
    assert [readable_time(seconds) for seconds in (0.4, 65, 3725)] == ["0:00", "1:05", "1:02:05"]


def test_long_lists_are_shortened() -> None:
    assert shortened(()) == "none"
    assert shortened(["cat", "dog"]) == "cat, dog"
    assert shortened(["cat", "dog", "cow"], most=3) == "cat, dog, cow"
    assert shortened(["cat", "dog", "cow"], most=1) == "cat and 2 more"
