"""Files, folders and names as they should not be: each is read, or one sentence names it; nothing waits for ever."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import comastre
from comastre.cli import main as cli
from comastre.config.settings import load_config
from comastre.data.files import files_below
from comastre.data.images import read_image
from comastre.data.sources import open_split, parse_source
from comastre.documents import json_bytes, parse_json
from comastre.errors import UserError
from comastre.prediction.image_files import find_images
from comastre.prediction.model import to_pixels
from comastre.prediction.run import predict_files
from comastre.text import visible
from small_data import write_folder, write_image

pytestmark = pytest.mark.timeout(60)
pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
bytes_as_names = pytest.mark.skipif(sys.platform != "linux", reason="needs a system where names are any bytes")

BAD_NAMES = ["", " ", "\t", "\x1b[31mred\x1b[0m", "a\x07b", "x" * 1_000_000, "\ud800"]


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_class_of_a_coco_file_has_a_name(tmp_path: Path, name: str) -> None:
    write_image(tmp_path / "a.png")
    content = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "categories": [{"id": 1, "name": name}],
        "annotations": [],
    }
    (tmp_path / "all.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"all\.json: the category .* (is empty|holds a control|has 1,000,000)"):
        open_split(parse_source(tmp_path / "all.json"), "all")


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("form", ["list", "by number", "objects"])
def test_a_class_of_a_folder_has_a_name(tmp_path: Path, name: str, form: str) -> None:
    root = write_folder(tmp_path, {"a": (1, 2)})
    (root / "classes.txt").unlink()
    names = ["cat", name]
    content = {
        "list": names,
        "by number": {"1": "cat", "2": name},
        "objects": [{"id": 1, "name": "cat"}, {"id": 2, "name": name}],
    }[form]
    (root / "classes.json").write_text(json.dumps(content))
    with pytest.raises(
        UserError, match=r"classes\.json: the name of class 2 .* (is empty|holds a control|has 1,000,000)"
    ):
        open_split(parse_source(root), "all")


def test_control_characters_in_a_list_of_classes(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"a": (1, 2)}, classes=("cat", "do\x1b[31mg"))
    with pytest.raises(UserError, match=r"the name of class 2 .* holds a control character"):
        open_split(parse_source(root), "all")


@pytest.mark.parametrize("file", ["classes.txt", "classes.json"])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path, file: str) -> None:
    root = write_folder(tmp_path, {"a": (1, 2)})
    (root / "classes.txt").unlink()
    text = "cat\ndog\n" if file == "classes.txt" else '["cat", "dog"]'
    (root / file).write_text(text, encoding="utf-8-sig")
    assert open_split(parse_source(root), "all").class_names == ("cat", "dog")


@bytes_as_names
def test_images_whose_names_are_no_utf8(tiny_bundle: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    root = write_folder(tmp_path / "data", {name: (1, 2), "b": (1,)})
    dataset = open_split(parse_source(root), "all")
    assert [sorted(classes) for classes in dataset.presence()] == [[1], [1, 2]]
    outcome = predict_files(str(tiny_bundle), [root / "images"], tmp_path / "out")
    assert not outcome.failed
    document = parse_json((tmp_path / "out" / f"{name}.segments.json").read_text())
    assert document["image"] == str(root / "images" / f"{name}.jpg")


def test_half_characters_survive_a_file() -> None:
    text = "caf\udce9 \N{SNOWMAN}"
    assert "\N{SNOWMAN}".encode() in json_bytes([text])
    assert parse_json(json_bytes([text]).decode()) == [text]


def test_a_very_long_name_still_has_results(tiny_bundle: Path, tmp_path: Path) -> None:
    images = [write_image(tmp_path / "in" / f"{'x' * 240}{end}.jpg", size=(32, 32)) for end in "ab"]
    outcome = predict_files(str(tiny_bundle), images, tmp_path / "out")
    assert len(set(outcome.written)) == 2
    assert not outcome.failed


@pytest.mark.parametrize("name", ["~photo.jpg", "~no-such-user"])
def test_a_tilde_that_is_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"no image or folder {name}"):
        find_images([name])
    with pytest.raises(UserError, match=f"no model at {name}"):
        comastre.load(name)
    with pytest.raises(UserError, match=name):
        parse_source(name)
    with pytest.raises(UserError, match=name):
        load_config(name)
    write_image(tmp_path / "~photo.jpg")
    assert find_images(["~photo.jpg"])[0].path == Path("~photo.jpg")


@pytest.mark.parametrize("name", ["x" * 300, "x" * 1_000_000, "a\0b", "y/" * 5000])
def test_what_cannot_be_a_name_is_said_to_be_none(name: str, tmp_path: Path) -> None:
    for use in (comastre.load, parse_source, load_config, to_pixels, lambda name: find_images([name])):
        with pytest.raises(UserError, match=r"cannot be a file's name|that no file's name can have") as caught:
            use(name)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("command", [["train", "demo", "--out"], ["report"], ["predict", "m", "i", "--out"], ["eval"]])
def test_no_command_calls_a_long_name_its_own_fault(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [*command, "x" * 5000, *(["--data", "shapes"] if command == ["eval"] else [])]
    with pytest.raises(SystemExit) as stop:
        cli.main(given)
    said = capsys.readouterr().err
    assert stop.value.code == 1
    assert said.count("\n") == 1
    assert "should not happen" not in said


def test_terminals_are_not_steered() -> None:
    assert visible("\x1b[31mred\x07\ud800\u2028\n\t\N{SNOWMAN}") == "\\x1b[31mred\\x07\\ud800\\u2028\n\t\N{SNOWMAN}"


# --- folders ---------------------------------------------------------------------------------------------------------


def test_links_that_lead_back_up_end(tmp_path: Path) -> None:
    for name in ("a.jpg", "sub/b.jpg"):
        write_image(tmp_path / "photos" / name)
    for name in ("one", "two", "sub/three"):
        (tmp_path / "photos" / name).symlink_to(tmp_path / "photos", target_is_directory=True)
    (tmp_path / "photos" / "first").symlink_to("sub", target_is_directory=True)
    expected = [tmp_path / "photos" / name for name in ("a.jpg", "sub/b.jpg")]
    assert files_below(tmp_path / "photos", (".jpg",)) == expected


def test_links_to_elsewhere_are_followed(tmp_path: Path) -> None:
    write_image(tmp_path / "elsewhere" / "a.jpg")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert files_below(tmp_path / "photos", (".jpg",)) == [tmp_path / "photos" / "link" / "a.jpg"]


def test_results_stay_below_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> None:
    for name in ("photos/a.jpg", "work/here/b.jpg", "work/c.jpg"):
        write_image(tmp_path / "home" / name, size=(32, 32))
    monkeypatch.chdir(tmp_path / "home" / "work" / "here")
    (tmp_path / "home" / "work" / "here" / "link").symlink_to(tmp_path / "home" / "photos", target_is_directory=True)
    sources = ["../../photos", "..", "link/../photos/a.jpg", "../*/../c.jpg"]
    names = {image.name.as_posix() for image in find_images(sources)}
    assert names == {"photos/a", "work/here/b", "work/c", "work/here/link/a"}
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    predict_files(str(tiny_bundle), sources, Path("results"))
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert new
    assert all(path.is_relative_to(tmp_path / "home" / "work" / "here" / "results") for path in new)


@pipes
def test_named_pipes_are_not_waited_for(tmp_path: Path, tiny_bundle: Path) -> None:
    root = write_folder(tmp_path / "data", {"a": (1, 2)})
    os.mkfifo(root / "images" / "b.jpg")
    outcome = predict_files(str(tiny_bundle), [root / "images", root / "images" / "b.jpg"], tmp_path / "out")
    assert len(outcome.written) == 1
    assert "b.jpg cannot be read (it is a named pipe, not a file)" in outcome.failed[0]
    (root / "classes.txt").unlink()
    os.mkfifo(root / "classes.txt")
    with pytest.raises(UserError, match=r"classes\.txt cannot be read: it is a named pipe"):
        open_split(parse_source(root), "all")
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(UserError, match=r"pipe\.yaml cannot be read as text: it is a named pipe"):
        load_config(tmp_path / "pipe.yaml")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs devices")
def test_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="it is a device or socket, not a file"):
        read_image(tmp_path / "x.jpg")


# --- images ----------------------------------------------------------------------------------------------------------


def test_a_program_is_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a program was started")

    for name in ("Popen", "run", "check_call", "check_output"):
        monkeypatch.setattr(subprocess, name, refuse)
    Image.new("RGB", (8, 8)).save(tmp_path / "x.eps", "EPS")
    (tmp_path / "x.eps").rename(tmp_path / "x.jpg")
    with pytest.raises(UserError, match=r"x\.jpg is not an image that can be read"):
        read_image(tmp_path / "x.jpg")


def test_sixteen_bits_are_the_same_from_a_file_and_from_python(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 12 * 16).astype(np.uint16).reshape(12, 16)
    image = Image.fromarray(values)
    for name in ("a.png", "a.tif", "a.pgm"):
        image.save(tmp_path / name)
        pixels = read_image(tmp_path / name)[0]
        np.testing.assert_array_equal(pixels[..., 0], values >> 8)
        with Image.open(tmp_path / name) as opened:
            for given in (opened, tmp_path / name):
                np.testing.assert_array_equal(to_pixels(given), pixels)


def test_float_values_are_those_of_0_to_1(tmp_path: Path) -> None:
    values = np.linspace(0, 1, 12 * 16).astype(np.float32).reshape(12, 16)
    Image.fromarray(values).save(tmp_path / "a.tif")
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif")[0][..., 0], (values * 255).round())
    for wrong in (values * 255, values - 1, np.full_like(values, np.nan)):
        Image.fromarray(wrong).save(tmp_path / "b.tif")
        with pytest.raises(UserError, match=r"b\.tif holds float values from .* but they must be in 0\.\.1"):
            read_image(tmp_path / "b.tif")
        with pytest.raises(UserError, match="float values"):
            to_pixels(Image.fromarray(wrong))


def test_32_bits_have_no_known_range(tmp_path: Path) -> None:
    Image.fromarray(np.arange(192, dtype=np.int32).reshape(12, 16)).save(tmp_path / "a.tif")
    with pytest.raises(UserError, match=r"a\.tif holds numbers of 32 bits"):
        read_image(tmp_path / "a.tif")


# --- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [None, "8", 2.5, True, [1]])
def test_a_number_is_asked_for_at_the_door(tiny_bundle: Path, number: object, tmp_path: Path) -> None:
    model = comastre.load(tiny_bundle)
    image = np.zeros((32, 32, 3), np.uint8)
    with pytest.raises(UserError, match=r"batch_size is .* but must be a whole number"):
        list(model.predict_many([image], batch_size=number))  # type: ignore[arg-type]
    if number is not None:
        with pytest.raises(UserError, match=r"max_side is .* but must be a whole number"):
            model.predict(image, max_side=number)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"--iterations is .* but must be a whole number"):
            comastre.learn(model, tmp_path, out=tmp_path / "out", iterations=number)  # type: ignore[arg-type]
    for path in (None, 5):
        with pytest.raises(UserError, match="must be a path"):
            comastre.load(path)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="must be a path"):
            comastre.learn(model, path, out=tmp_path / "out")  # type: ignore[arg-type]
        with pytest.raises(UserError, match="must be a path"):
            comastre.learn(model, tmp_path, out=path)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="must be a path"):
            model.save(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", [None, 2.5, "nowhere", 10**30, True, -5])
def test_a_device_is_one(tiny_bundle: Path, device: object) -> None:
    with pytest.raises(UserError, match=r"a device is a text|cannot be used"):
        comastre.load(tiny_bundle).to(device)  # type: ignore[arg-type]


@pytest.mark.parametrize("images", [None, 5, "photo.jpg", Path("photo.jpg")])
def test_several_images_are_a_list(tiny_bundle: Path, images: object) -> None:
    with pytest.raises(UserError, match="predict_many takes a list of images, not"):
        list(comastre.load(tiny_bundle).predict_many(images))  # type: ignore[arg-type]


@pytest.mark.parametrize("minutes", ["5", float("nan"), float("inf"), 0, [1], True])
def test_minutes_are_a_number(tiny_bundle: Path, tmp_path: Path, minutes: object) -> None:
    with pytest.raises(UserError, match=r"--minutes is .* but must be"):
        comastre.learn(tiny_bundle, tmp_path, out=tmp_path / "out", minutes=minutes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("training.iterations", 10**30), ("training.batch_size", 100_000), ("data.crop", 10**6), ("data.workers", 10**6)],
)
def test_numbers_that_nobody_can_mean(field: str, value: int) -> None:
    section, name = field.split(".")
    with pytest.raises(UserError, match=rf"{field} is {value} but must be less than or equal to"):
        load_config("demo", {section: {name: value}})


def test_a_lesson_of_no_end(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--iterations is 10+, which cannot be meant"):
        comastre.learn(tiny_bundle, tmp_path, out=tmp_path / "out", iterations=10**30)
