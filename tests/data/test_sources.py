"""Data named by one word: what it is taken for, and which images it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from comastre.config.run import DataConfig
from comastre.data.sources import DataSource, has_own_validation, open_split, parse_source, split_for_scoring
from comastre.errors import UserError
from small_data import write_folder, write_image, write_instances, write_voc

BOX = {"category_id": 3, "segmentation": [[0, 0, 8, 0, 8, 8, 0, 8]]}


def names(dataset: object) -> set[str]:
    return {dataset[index].image_id for index in range(len(dataset))}  # type: ignore[arg-type, index]


def test_what_a_word_is_taken_for(tmp_path: Path) -> None:
    own = write_folder(tmp_path / "own", {"a": (0, 1)})
    coco = write_instances(tmp_path / "coco" / "annotations" / "train.json", [BOX])
    assert parse_source("shapes") == DataSource("shapes")
    assert parse_source(f"voc:{tmp_path}") == DataSource("voc", tmp_path)
    assert parse_source(own) == parse_source(f"folder:{own}") == DataSource("folder", own)
    assert parse_source(tmp_path / "coco") == DataSource("coco_json", tmp_path / "coco")
    assert parse_source(str(coco)) == parse_source(f"coco_json:{coco}")
    assert parse_source(str(coco)) == DataSource("coco_json", tmp_path / "coco", coco)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("voc", "voc needs the folder that holds it: write voc:FOLDER"),
        ("voc:", "names no folder: write voc:FOLDER"),
        ("nothing", "there is no data nothing"),
        ("none.json", "there is no annotation file none.json"),
        ("empty", "empty is no dataset yet: it needs images/"),
        ("half", r"half is no dataset yet: add classes\.txt"),
        ("VOCdevkit", "looks like voc: write voc:VOCdevkit"),
    ],
)
def test_what_is_no_data_gives_one_sentence(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    write_image(Path("half/images/a.jpg"))
    write_voc(tmp_path, {"a": (0, 1)}, {"b": (0, 1)})
    with pytest.raises(UserError, match=message):
        parse_source(text)


def test_a_folder_without_a_split_gives_all_images_or_its_held_out_share(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {f"image{number}": (0, 1) for number in range(40)})
    source = parse_source(root)
    assert not has_own_validation(source)
    everything = names(open_split(source, "all"))
    training, validation = names(open_split(source, "train")), names(open_split(source, "val"))
    assert len(everything) == 40
    assert validation
    assert training.isdisjoint(validation)
    assert training | validation == everything


def test_a_folder_with_lists_has_its_own_validation(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"a": (0, 1), "b": (0, 2), "c": (0, 1)})
    (root / "train.txt").write_text("a\nc\n")
    (root / "val.txt").write_text("b\n")
    source = parse_source(root)
    assert has_own_validation(source)
    assert names(open_split(source, "val")) == {"b"}
    both = open_split(source, "all")
    assert [both[index].image_id for index in range(len(both))] == ["a", "c", "b"]
    assert both.presence() == [frozenset({1}), frozenset({1}), frozenset({2})]
    with pytest.raises(IndexError, match="image 3 of 3"):
        both[3]


def test_a_named_annotation_file_gives_its_own_images_alone(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_image(tmp_path / "images" / split / f"{split}.jpg")
        write_instances(tmp_path / "annotations" / f"{split}.json", [BOX], (f"{split}.jpg",))
    validation = parse_source(tmp_path / "annotations" / "val.json")
    assert names(open_split(validation, "all")) == {"val"}
    assert not has_own_validation(validation)  # or training with it would be scored on what it was trained with
    training = parse_source(tmp_path / "annotations" / "train.json")
    assert has_own_validation(training)
    assert names(open_split(training, "val")) == {"val"}
    assert names(open_split(parse_source(tmp_path), "all")) == {"train", "val"}
    assert split_for_scoring(training) == "all"  # the file that was named, whatever lies beside it
    assert split_for_scoring(parse_source(tmp_path)) == "val"


def test_settings_name_the_same_data_in_a_configuration(tmp_path: Path) -> None:
    coco = write_instances(tmp_path / "train.json", [BOX])
    settings = parse_source(coco).settings()
    assert settings == {"dataset": "coco_json", "root": str(tmp_path), "train_json": str(coco)}
    assert DataConfig.model_validate(settings).train_json == str(coco)
    assert parse_source("shapes").settings() == {"dataset": "shapes"}


def test_missing_files_are_named_at_once(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"a": (0, 1), "b": (0, 2)})
    (root / "masks" / "b.png").unlink()
    with pytest.raises(UserError, match=r"b\.png, which does not exist"):
        open_split(parse_source(root), "all")
