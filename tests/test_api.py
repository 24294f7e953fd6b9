"""`comastre.load(...)` and what a model does: predict, move, be kept and be shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import huggingface_hub
import numpy as np
import pytest
from PIL import Image

import comastre
from comastre.bundle import store
from comastre.errors import UserError
from comastre.prediction.model import to_pixels


@pytest.fixture(scope="module")
def saved(tiny_bundle: Path) -> Path:
    return tiny_bundle


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
    assert prediction.segments
    for number, segment in enumerate(prediction.segments, start=1):
        mine = prediction.segment_map == number
        assert mine.sum() == segment.area
        assert set(prediction.label_map[mine]) <= {segment.class_index + 1}


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (64, 64)])
def test_any_size_works(saved: Path, size: tuple[int, int]) -> None:
    assert comastre.load(saved).predict(np.zeros((*size, 3), np.uint8)).label_map.shape == size


def test_grey_and_transparent_images_are_taken(saved: Path, pixels: np.ndarray) -> None:
    grey = pixels[..., 0]
    expected = to_pixels(np.stack([grey] * 3, axis=-1))
    assert np.array_equal(to_pixels(grey), expected)
    assert np.array_equal(to_pixels(Image.fromarray(grey)), expected)
    with_alpha = np.concatenate([pixels, pixels[..., :1]], axis=2)
    assert np.array_equal(to_pixels(with_alpha), to_pixels(pixels))


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
        to_pixels(image)


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(UserError, match=r"text\.png is not an image that can be read"):
        to_pixels(tmp_path / "text.png")


def test_a_file_is_turned_as_its_camera_says(pixels: np.ndarray, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise by 90 degrees
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(to_pixels(tmp_path / "turned.png"), to_pixels(np.rot90(pixels, k=-1)))


def test_a_hub_id_fetches_only_the_bundles_files(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = create_autospec(huggingface_hub.snapshot_download, return_value=str(saved))
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert comastre.load("someone/shapes").classes.names == ("disk", "star", "ring")
    assert snapshot.call_args.args == ("someone/shapes",)
    assert snapshot.call_args.kwargs["allow_patterns"] == [*store.FILES, "statistics.safetensors"]
    comastre.Model.from_pretrained("someone/shapes", revision="v2", token="secret", local_files_only=True)
    wanted = {"revision": "v2", "token": "secret", "local_files_only": True}
    assert wanted.items() <= snapshot.call_args.kwargs.items()


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


def test_many_images_are_what_each_is_alone(saved: Path) -> None:
    model = comastre.load(saved)
    random = np.random.default_rng(1)
    sizes = [(40, 40), (40, 40), (40, 40), (37, 53), (64, 48), (64, 48), (40, 40)]
    images = [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    together = list(model.predict_many(images, batch_size=2))
    assert [result.label_map.shape for result in together] == sizes
    for image, result in zip(images, together, strict=True):
        alone = model.predict(image)
        np.testing.assert_allclose(result.class_scores, alone.class_scores, atol=1e-5)
        np.testing.assert_allclose(result.objectness, alone.objectness, atol=1e-5)
        assert (result.label_map == alone.label_map).mean() > 0.999
        assert np.array_equal(result.image, image)


def test_a_large_image_is_seen_smaller_but_its_result_is_not(saved: Path) -> None:
    model = comastre.load(saved)
    random = np.random.default_rng(2)
    large = random.integers(0, 256, (96, 128, 3), dtype=np.uint8)
    seen = model.predict(large, max_side=64)
    assert seen.label_map.shape == seen.proposals.shape[1:] == (96, 128)
    assert seen.image.shape == (96, 128, 3)
    assert not np.allclose(seen.objectness, model.predict(large).objectness)
    small = large[:40, :50]
    alone = model.predict(small, short_side="native")
    assert np.array_equal(model.predict(small, short_side="native", max_side=64).label_map, alone.label_map)
    assert not np.allclose(model.predict(small).objectness, alone.objectness)  # the model was trained on crops of 96


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"max_side": 0}])
def test_numbers_below_one_are_refused(saved: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="must be 1 or more"):
        list(comastre.load(saved).predict_many([], **wrong))


def test_pretrained_in_the_manner_of_hugging_face(saved: Path, pixels: np.ndarray, tmp_path: Path) -> None:
    model = comastre.load(saved)
    written = model.save_pretrained(tmp_path / "copy")
    copy = comastre.Model.from_pretrained(written)
    assert np.array_equal(copy.predict(pixels).label_map, model.predict(pixels).label_map)
    with pytest.raises(UserError, match="already holds a model"):
        model.save_pretrained(written)
    model.save_pretrained(written, overwrite=True)


def test_push_uploads_one_bundle_whose_card_names_its_place(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = create_autospec(huggingface_hub.HfApi, instance=True)
    seen: dict[str, Any] = {}

    def upload(*, repo_id: str, folder_path: Path, **options: Any) -> Any:
        seen.update(options, repo_id=repo_id, files={file.name: file.read_bytes() for file in folder_path.iterdir()})
        return create_autospec(huggingface_hub.CommitInfo, commit_url="https://hub/commit/1")

    hub.upload_folder.side_effect = upload
    model = comastre.load(saved)  # imports whatever it needs before the hub is another one
    opened: list[Any] = []
    monkeypatch.setattr("huggingface_hub.HfApi", lambda **options: opened.append(options) or hub)
    url = model.push_to_hub("someone/shapes", private=True, token="secret", create_pr=True)
    assert url == "https://hub/commit/1"
    assert opened == [{"token": "secret"}]
    hub.create_repo.assert_called_once_with("someone/shapes", private=True, exist_ok=True)
    assert (seen["repo_id"], seen["create_pr"], seen["commit_message"]) == (
        "someone/shapes",
        True,
        "Model with 3 classes",
    )
    assert seen["files"].keys() == set(store.FILES)
    assert b'comastre.load("someone/shapes")' in seen["files"]["README.md"]
    assert seen["files"]["model.safetensors"] == (saved / "model.safetensors").read_bytes()


def test_a_push_that_is_refused_is_one_sentence(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = create_autospec(huggingface_hub.HfApi, instance=True)
    hub.create_repo.side_effect = PermissionError("401 who are you\nmore")
    model = comastre.load(saved)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda **options: hub)
    with pytest.raises(
        UserError, match=r"not be uploaded to a/b \(PermissionError: 401 who are you\): .*hf auth login"
    ):
        model.push_to_hub("a/b")
    hub.upload_folder.assert_not_called()
