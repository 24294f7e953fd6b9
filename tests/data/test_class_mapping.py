"""Which class of the data is which class of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comastre.class_table import class_table
from comastre.data.class_mapping import map_classes, read_map
from comastre.errors import UserError

MODEL = class_table(["disk", "star", "traffic light"], [2, 1])


def test_equal_names_go_together_and_the_rest_is_said() -> None:
    mapping = map_classes(["star", "sheep", "disk"], MODEL)
    assert mapping.labels == (2, 4, 1)  # one more than the model has: not known to it
    assert mapping.same == {"star": "star", "disk": "disk"}
    assert (mapping.unknown, mapping.left_out, mapping.missing) == (("sheep",), (), ("traffic light",))
    assert mapping.unscored(MODEL.names) == {3}


def test_a_map_renames_merges_hides_and_ignores() -> None:
    given = {"round": "disk", "circle": "disk", "star": None, "sky": "background", "edge": "ignore"}
    mapping = map_classes(["round", "circle", "star", "sky", "edge", "sheep"], MODEL, given)
    assert mapping.labels == (1, 1, 4, 0, 255, 4)
    assert mapping.unknown == ("star", "sheep")
    assert mapping.left_out == ("edge",)
    assert mapping.missing == ("star", "traffic light")


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (["disk", "Traffic_Light"], {}, "'Traffic_Light' looks like the model's 'traffic light'.*--map FILE"),
        (["disk"], {"dsk": "disk"}, "names 'dsk', which is not a class of the data: did you mean disk?"),
        (["disk"], {"disk": "dissk"}, "'dissk' is not a class of the model: did you mean disk?"),
        (
            ["disk"],
            {"disk": "zebra"},
            r"'zebra' is not a class of the model: it has disk, star, traffic light \(or back",
        ),
        (["zebra", "stars"], {}, "none of the data's classes .*such as `stars: star`"),
        (["disk"], {"disk": None}, "none of the data's classes"),
    ],
)
def test_names_that_do_not_fit_give_one_sentence(names: list[str], given: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        map_classes(names, MODEL, given)


def test_a_name_that_only_looks_alike_can_be_said_to_be_another() -> None:
    assert map_classes(["disk", "Star"], MODEL, {"Star": None}).labels == (1, 4)


def test_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text('no: disk\n7: star\nsky: null\nsea: ~\nedge: ignore\n"a: b": disk\n')
    expected = {"no": "disk", "7": "star", "sky": None, "sea": None, "edge": "ignore", "a: b": "disk"}
    assert read_map(tmp_path / "map.yaml") == expected
    (tmp_path / "map.json").write_text(json.dumps(expected))
    assert read_map(tmp_path / "map.json") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b\na: c\n", "line 2: a is given twice"),
        ("- a\n- b\n", "must hold lines such as"),
        ("a: [b]\n", "must hold lines such as"),
        ("", "must hold lines such as"),
        ("a: {b", "neither YAML nor JSON"),
    ],
)
def test_files_that_are_no_map_give_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        read_map(tmp_path / "map.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        read_map(tmp_path / "none.yaml")
