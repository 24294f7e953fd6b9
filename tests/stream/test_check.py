"""`data check` counts every class and step, and lists every bad file."""

import numpy as np
import pytest
from PIL import Image

from comastre.cli import main as cli
from small_data import write_folder, write_image, write_instances, write_mask, write_voc


def check(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", "check", *arguments])
    said = capsys.readouterr()
    return stop.value.code, said.out, said.err


@pytest.fixture
def root(tmp_path):
    write_folder(tmp_path, {"a": (1,), "b": (1, 2), "c": (3,), "d": (1, 2, 3)}, ("cat", "dog", "cow"))
    (tmp_path / "train.txt").write_text("a\nb\nc\n")
    (tmp_path / "val.txt").write_text("d\n")
    return tmp_path


def test_good_data_is_counted_by_class_and_step(capsys, root):
    code, out, err = check(capsys, "folder", "--data.root", str(root), "--continual.setting", "2-1")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["1", "cat", "0", "2", "1", "46.88", "%"] in lines
    assert ["2", "dog", "0", "1", "1", "20.31", "%"] in lines
    assert ["3", "cow", "1", "1", "1", "32.81", "%"] in lines
    assert "setting 2-1, overlapped, images by the protocol's rule:" in out
    assert ["0", "cat,", "dog", "2"] in lines
    assert ["1", "cow", "1"] in lines
    assert "every file is good" in out


def test_every_bad_file_is_listed_with_its_reason(capsys, root):
    write_mask(root / "masks" / "a.png", 1, 9)
    (root / "masks" / "b.png").unlink()
    noise = np.random.default_rng(0).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "images" / "d.jpg")
    content = (root / "images" / "d.jpg").read_bytes()
    (root / "images" / "d.jpg").write_bytes(content[: len(content) - 150])
    code, out, _ = check(capsys, "folder", "--data.root", str(root))
    assert code == 1
    assert "2 bad training images:" in out
    assert "a.png holds the label 9" in out
    assert "b.png does not exist" in out
    assert "1 bad validation image:" in out
    assert "d.jpg cannot be read" in out
    assert "Class 1 (cat) (nor 1 others) is new in step 0" in out


def test_data_is_named_as_for_the_other_commands(capsys, root, tmp_path):
    named = check(capsys, "folder", "--data.root", str(root))
    assert check(capsys, str(root)) == check(capsys, f"folder:{root}") == named
    write_voc(tmp_path / "voc", {"a": (0, 1)}, {"b": (0, 1)})
    _, out, _ = check(capsys, f"voc:{tmp_path / 'voc'}", "--setting", "19-1")
    assert out.startswith("voc: 20 classes, 1 training and 1 validation images")
    assert "setting 19-1" in out


def test_few_images_without_a_validation_split_are_all_read(capsys, tmp_path):
    write_folder(tmp_path, {"a": (1,), "b": (1, 2)})
    code, out, _ = check(capsys, str(tmp_path))
    assert code == 0
    assert out.startswith("folder: 2 classes, 2 images, none of them set apart for validation")
    (tmp_path / "masks" / "b.png").unlink()
    code, out, _ = check(capsys, str(tmp_path))
    assert code == 1
    assert "b.png does not exist" in out


def test_a_setting_that_the_data_cannot_give_is_a_problem(capsys, root):
    code, out, _ = check(capsys, "folder", "--data.root", str(root), "--setting", "5-1")
    assert code == 1
    assert "5-1 on 3 classes: 5 base classes are more than there are" in out


def test_presets_and_processes(capsys, tmp_path):
    small = ["--data.train_images", "300", "--data.val_images", "2"]
    code, out, _ = check(capsys, "shapes-6-1", "--processes", "2", *small)
    assert code == 0
    assert "shapes: 10 classes, 300 training and 2 validation images" in out
    assert "setting 6-1, overlapped" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["check", "voc"], 1, "voc needs --data.root FOLDER"),
        (
            ["check", "nothing"],
            1,
            "nothing is neither a dataset nor a preset nor a file: the datasets are shapes",
        ),
        (["check", "vco:here"], 1, "there is no dataset vco: did you mean voc:here?"),
        (["check", "shapes:here"], 1, "shapes needs no folder: write shapes"),
        (["check", "vov"], 1, "vov is neither a dataset nor a preset nor a file: did you mean voc?"),
        (
            ["check", "folder", "--data.root", "nowhere"],
            1,
            "nowhere is not a folder: give the folder that holds",
        ),
        (["check", "shapes", "--processes", "0"], 1, "--processes is 0"),
        (["check", "shapes", "--rot", "x"], 2, "there is no field --rot"),
        (["check"], 2, "DATASET_OR_PRESET"),
        (["chek"], 2, "no command 'data chek': did you mean check"),
        (["prepare", "voc"], 2, "--root"),
        (["prepare", "mnist", "--root", "x"], 2, "mnist"),
    ],
)
def test_errors_are_one_line(capsys, arguments, code, message):
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", *arguments])
    said = capsys.readouterr()
    assert stop.value.code == code
    assert message in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("verb", ["list", "prepare", "check"])
def test_help_of_the_verbs(capsys, verb):
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", verb, "--help"])
    assert not stop.value.code
    assert f"usage: comastre data {verb}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", "--help"])
    assert not stop.value.code
    assert f"  {verb} " in capsys.readouterr().out


def test_nested_images_of_another_size_are_found(capsys, root):
    write_image(root / "images" / "c.jpg", (10, 10))
    code, out, _ = check(capsys, "folder", "--data.root", str(root))
    assert code == 1
    assert "c.png is 16 x 12 but its image c.jpg is 10 x 10" in out


def test_a_class_of_a_step_without_image_is_named(capsys, root):
    write_mask(root / "masks" / "c.png", 1)
    code, out, _ = check(capsys, "folder", "--data.root", str(root), "--setting", "1-1")
    assert code == 1
    assert "Step 2 of setting 1-1 (overlapped) has no training image with class 3 (cow)" in out
    assert out.endswith("\n1 problem\n")


def test_fields_count_for_data_without_a_validation_split_too(capsys, tmp_path):
    car, dog = [[0, 0, 8, 0, 8, 8, 0, 8]], [[8, 0, 16, 0, 16, 8, 8, 8]]
    objects = [{"category_id": 3, "segmentation": car}, {"category_id": 7, "segmentation": dog}]
    file = write_instances(tmp_path / "train.json", objects)
    write_image(tmp_path / "one.jpg")
    code, out, _ = check(capsys, str(file))
    assert (code, out.splitlines()[0]) == (
        0,
        "coco_json: 2 classes, 1 images, none of them set apart for validation",
    )
    code, out, _ = check(capsys, str(file), "--data.without", "dog")
    assert (code, out.splitlines()[0]) == (
        0,
        "coco_json-without-1-classes: 1 classes, 1 images, none of them set apart for validation",
    )


def test_a_class_that_is_listed_but_not_shown_is_no_problem_of_data_without_a_setting(capsys, tmp_path):
    masks = {"a": (0, 1), "b": (0, 3), "c": (0, 1, 3), "d": (0, 3)}
    write_folder(tmp_path, masks, ("cat", "sky", "dog"))
    code, out, _ = check(capsys, str(tmp_path))
    assert code == 0 and out.endswith("\nevery file is good\n")
    assert "warning: listed, but shown by no image: sky" in out and "another setting" not in out
    code, out, _ = check(capsys, str(tmp_path), "--setting", "joint")  # who names a setting wants to train it
    assert code == 1
    assert "Class 2 (sky) is new in step 0 of setting joint" in out


def test_a_class_that_only_validation_images_show_is_warned_of(capsys, root):
    write_mask(root / "masks" / "c.png", 1)
    code, out, _ = check(capsys, str(root))
    assert code == 0
    assert "warning: shown by validation images, but by none for training: cow" in out


def test_data_that_labels_nothing_is_a_problem(capsys, tmp_path):
    code, out, _ = check(capsys, str(write_folder(tmp_path, {"a": (0,), "b": (0,)})))
    assert code == 1
    assert "has no training image with any of the classes 1 (cat), 2 (dog)" in out
