"""Reading YAML: as values or as text, and never a name twice."""

import pytest

from comastre.config.yaml_text import NotYaml, parse_yaml


def test_values_and_texts() -> None:
    assert parse_yaml("a: no\nb: 7\nc:\n") == {"a": False, "b": 7, "c": None}
    assert parse_yaml("a: no\nb: 7\nc:\n", as_text=True) == {"a": "no", "b": "7", "c": ""}
    assert parse_yaml("") is None


@pytest.mark.parametrize("as_text", [False, True])
def test_a_name_given_twice_is_refused_at_any_depth(as_text: bool) -> None:
    with pytest.raises(NotYaml, match=r"^ in line 3: b is given twice$"):
        parse_yaml("a:\n  b: 1\n  b: 2\n", as_text)


@pytest.mark.parametrize("as_text", [False, True])
def test_broken_text_names_the_line(as_text: bool) -> None:
    with pytest.raises(NotYaml, match=r"^ in line 2: "):
        parse_yaml("a: [1\nb: 2\n", as_text)


def test_objects_are_never_made() -> None:
    with pytest.raises(NotYaml, match="in line 1"):
        parse_yaml("a: !!python/object/apply:os.getcwd []\n")
