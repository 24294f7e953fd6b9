"""`comastre.load(...)`, `.predict(...)` and the command `comastre predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import comastre
from comastre import api, bundle, cli
from comastre.class_table import class_table
from comastre.config import ModelConfig
from comastre.errors import UserError
from comastre.model.segmenter import build_segmenter


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    # Thresholds at 0 so that even random weights recognise something.
    given = {"size": "tiny", "inference": {"alpha": 0.0, "overlap": 0.0}}
    model = build_segmenter(ModelConfig.model_validate(given), [2, 1])
    classes = class_table(["disk", "star", "ring"], [2, 1], [(0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255)])
    return bundle.save(model, classes, tmp_path_factory.mktemp("bundles") / "model")


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)


def test_predict_gives_the_same_for_every_kind_of_image(saved: Path, pixels: np.ndarray, tmp_path: Path) -> None:
    model = comastre.load(saved)
    picture = Image.fromarray(pixels)
    picture.save(tmp_path / "image.png")
    expected = model.predict(pixels)
    assert expected.label_map.shape == (37, 53)
    assert expected.segments
    for image in (picture, tmp_path / "image.png", str(tmp_path / "image.png"), pixels.astype(np.float32) / 255):
        found = model.predict(image)
        assert np.array_equal(found.label_map, expected.label_map)
        assert np.array_equal(found.class_scores, expected.class_scores)


def test_a_prediction_holds_everything_for_analysis(saved: Path, pixels: np.ndarray) -> None:
    prediction = comastre.load(str(saved)).predict(pixels)
    queries = prediction.objectness.shape[0]
    assert prediction.class_names == ("background", "disk", "star", "ring")
    assert prediction.class_scores.shape == (queries, 3)
    assert prediction.proposals.shape == (queries, 37, 53)
    assert prediction.proposals.dtype == bool
    for number, segment in enumerate(prediction.segments, start=1):
        mine = prediction.segment_map == number
        assert mine.sum() == segment.area
        assert set(prediction.label_map[mine]) <= {segment.class_index + 1}


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (64, 64)])
def test_any_size_works(saved: Path, size: tuple[int, int]) -> None:
    assert comastre.load(saved).predict(np.zeros((*size, 3), np.uint8)).label_map.shape == size


def test_grey_and_transparent_images_are_taken(saved: Path, pixels: np.ndarray) -> None:
    grey = pixels[..., 0]
    expected = api.to_pixels(np.stack([grey] * 3, axis=-1))
    assert torch.equal(api.to_pixels(grey), expected)
    assert torch.equal(api.to_pixels(Image.fromarray(grey)), expected)
    with_alpha = np.concatenate([pixels, pixels[..., :1]], axis=2)
    assert torch.equal(api.to_pixels(with_alpha), api.to_pixels(pixels))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((3, 8, 8, 3), np.uint8), r"shape \(height, width, 3\), not \(3, 8, 8, 3\)"),
        (np.zeros((0, 8, 3), np.uint8), r"shape \(height, width, 3\)"),
        (np.zeros((8, 8, 3), np.int64), "uint8 or float in 0..1, not int64"),
        (np.full((8, 8, 3), 200.0), "must be in 0..1, but runs from 200 to 200"),
        (np.full((8, 8, 3), np.nan), "must be in 0..1"),
        ("nowhere.png", "there is no image nowhere.png"),
        (3, "takes a PIL image, a numpy array or a path, not int"),
    ],
)
def test_bad_images_give_one_sentence(image: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        api.to_pixels(image)


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(UserError, match=r"text\.png is not an image that can be read"):
        api.to_pixels(tmp_path / "text.png")


def test_a_file_is_turned_as_its_camera_says(pixels: np.ndarray, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise by 90 degrees
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    assert torch.equal(api.to_pixels(tmp_path / "turned.png"), api.to_pixels(np.rot90(pixels, k=-1)))


def test_a_hub_id_fetches_only_the_bundles_files(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def snapshot(repository: str, allow_patterns: list[str]) -> str:
        calls.append((repository, allow_patterns))
        return str(saved)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert comastre.load("someone/shapes").classes.names == ("disk", "star", "ring")
    assert calls == [("someone/shapes", list(bundle.FILES))]


def test_a_hub_that_does_not_answer_gives_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host\nmore")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(UserError, match=r"no folder someone/shapes, and the hub .*no route to host\)"):
        comastre.load("someone/shapes")


def test_a_path_is_never_taken_for_a_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    for path in (Path("runs/model"), "./runs/model", "/runs/model", "runs", "a/b/c"):
        with pytest.raises(UserError, match="there is no model at"):
            comastre.load(path)


def test_an_unknown_device_is_one_sentence(saved: Path) -> None:
    with pytest.raises(UserError, match="device 'toaster' cannot be used"):
        comastre.load(saved).to("toaster")


def test_unknown_names_of_the_package_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        comastre.lod  # noqa: B018


def predict(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(["predict", *map(str, arguments)])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_the_command_writes_label_maps_and_segments(
    saved: Path, pixels: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.png", "a.bmp", "b.PNG"):
        Image.fromarray(pixels).save(tmp_path / "images" / name)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    Image.fromarray(pixels).save(tmp_path / "c.png")
    assert predict(saved, tmp_path / "images", tmp_path / "c.png", "--out", tmp_path / "out") == 0, capsys.readouterr()
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {f"{stem}.{suffix}" for stem in ("a-png", "a-bmp", "b", "c") for suffix in ("png", "json")}
    expected = comastre.load(saved).predict(pixels)
    with Image.open(tmp_path / "out" / "c.png") as written:
        assert np.array_equal(np.asarray(written), expected.label_map)
        assert (written.getpalette() or [])[3:6] == [255, 0, 0]
    content = json.loads((tmp_path / "out" / "c.json").read_text())
    assert content["image"] == "c.png"
    assert [each["pixels"] for each in content["segments"]] == [segment.area for segment in expected.segments]
    assert "4 label maps" in capsys.readouterr().out


def test_the_command_names_what_is_missing(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    cases = [
        ((saved, tmp_path / "empty"), "holds no images"),
        ((saved, tmp_path / "none.png"), "there is no image or folder"),
        ((saved,), "no images given"),
    ]
    for arguments, message in cases:
        assert predict(*arguments, "--out", tmp_path / "out") == 1
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
