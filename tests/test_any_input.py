"""Whatever a file holds, reading it ends in success or in one sentence, and soon: inputs that nobody thought of.

`pytest --hypothesis-profile long tests/test_any_input.py` looks for longer.
"""

from __future__ import annotations

import json
import shutil
import warnings
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from any_values import ANYTHING, LARGE, LIMIT, few, places_in, replaced, write_json
from comastre.bundle import store
from comastre.config.settings import load_config
from comastre.data.build import build_dataset
from comastre.data.files import FileDataset
from comastre.data.images import checked_size, read_image, read_mask
from comastre.data.sources import parse_source
from comastre.errors import UserError
from small_data import write_image

pytestmark = LIMIT

# --- bundles ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("any") / "model")


@pytest.mark.parametrize("name", [store.CONFIG, store.CLASSES])
def test_any_json_in_a_bundle(name: str, bundle: Path) -> None:
    original = (bundle / name).read_bytes()
    content = json.loads(original)
    places = places_in(content)

    @few(25)
    @given(st.sampled_from(places), ANYTHING)
    @example(("size",), "huge")
    @example(("settings", "mask_decoder", "layers"), LARGE)
    @example(("settings", "pixel_decoder", "dim"), 2**40)
    @example(("settings", "pixel_decoder", "layers"), 10**400)
    @example(("backbone", "name"), "hf-hub:someone/model")
    @example(("backbone", "std"), [0, 0, 0])
    @example(("tasks",), [LARGE])
    @example(("classes",), [])
    @example(("classes", 0, "task"), 10**10)
    @example(("classes", 0, "colour"), [999, 0, 0])
    def check(place: tuple[Any, ...], value: Any) -> None:
        if place not in places:
            return  # an example of the other file
        write_json(bundle / name, replaced(content, place, value))
        with suppress(UserError):
            store.load(bundle)

    try:
        check()
    finally:
        (bundle / name).write_bytes(original)


@few(10)
@given(st.integers(0, 4000), st.binary(min_size=1, max_size=40))
def test_any_bytes_in_a_bundles_weights(bundle: Path, place: int, content: bytes) -> None:
    file = bundle / store.WEIGHTS
    original = file.read_bytes()
    try:
        file.write_bytes(original[:place] + content + original[place + len(content) :])
        with suppress(UserError):
            store.load(bundle)
    finally:
        file.write_bytes(original)


# --- COCO ------------------------------------------------------------------------------------------------------------

COCO: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
    "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog", "isthing": 0}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "segmentation": [[1, 1, 9, 1, 9, 9, 1, 9]]},
        {"id": 2, "image_id": 1, "category_id": 2, "segmentation": {"size": [12, 16], "counts": [100, 20, 72]}},
        {"id": 3, "image_id": 2, "category_id": 2, "iscrowd": 1, "segmentation": {"size": [12, 16], "counts": "d0`5"}},
    ],
}


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco")
    for name in ("a.png", "b.png"):
        write_image(folder / name)
    return folder


def read_everything(file: Path) -> None:
    """What `data check` and `learn` read of an annotation file; each image may be bad for itself."""
    from comastre.config.run import DataConfig

    with suppress(UserError):
        dataset = build_dataset(DataConfig.model_validate(parse_source(file).settings()), "all")
        assert isinstance(dataset, FileDataset)
        with suppress(UserError):
            dataset.require_files()
        with suppress(UserError):
            dataset.fingerprint()
        for index in range(len(dataset)):
            with suppress(UserError):
                _ = dataset[index]


@few(150)
@given(st.sampled_from(places_in(COCO)), ANYTHING)
@example(("annotations", 0, "segmentation"), [[1e18, 1, 9, 1, 9, 9]])
@example(("annotations", 0, "segmentation"), [[float("nan"), 1, 9, 1, 9, 9]])
@example(("annotations", 0, "segmentation"), [[float("inf"), 1, 9, 1, 9, 9]])
@example(("annotations", 0, "segmentation"), [[1e9, 1, 9, 1, 9, 9]])
@example(("annotations", 0, "segmentation"), [[-16, -12, 32, 24] * 50_000])
@example(("annotations", 0, "segmentation"), [["1", 1, 9, 1, 9, 9]])
@example(("annotations", 1, "segmentation", "counts"), [LARGE, -LARGE, 192])
@example(("annotations", 1, "segmentation", "counts"), [2**32, 192])
@example(("annotations", 1, "segmentation", "size"), 5)
@example(("annotations", 1, "segmentation", "size"), [LARGE, LARGE])
@example(("annotations", 2, "segmentation", "counts"), "o" * 1000)
@example(("annotations", 0, "category_id"), [1])
@example(("annotations", 0), 5)
@example(("images", 0, "id"), {})
@example(("images", 0, "file_name"), "\ud800")
@example(("images", 0, "file_name"), "x" * 1_000_000)
def test_any_json_as_a_coco_file(coco: Path, place: tuple[Any, ...], value: Any) -> None:
    write_json(coco / "any.json", replaced(COCO, place, value))
    read_everything(coco / "any.json")


@few(100)
@given(ANYTHING | st.lists(ANYTHING, max_size=3))
def test_any_segmentation(value: Any) -> None:
    from comastre.data.sets.outlines import BadOutline, draw

    with suppress(BadOutline):
        assert draw(value, 12, 16).shape == (12, 16)


@few(100)
@given(st.lists(st.floats(-15, 30), min_size=6, max_size=40).filter(lambda polygon: len(polygon) % 2 == 0))
def test_a_polygon_near_the_image_is_drawn_as_pycocotools_does(polygon: list[float]) -> None:
    from pycocotools import mask as run_length

    from comastre.data.sets.outlines import BadOutline, draw

    corners = [min(max(number, -12.0), 24.0) for number in polygon]
    try:
        drawn = draw([corners], 12, 16)
    except BadOutline as error:
        assert "an outline of" in str(error)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # between pycocotools and numpy
        expected = run_length.decode(run_length.merge(run_length.frPyObjects([corners], 12, 16)))
    np.testing.assert_array_equal(drawn, expected.astype(bool))


@few(100)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32), st.floats(0, 1))
def test_run_lengths_are_unpacked_as_pycocotools_packs_them(height: int, width: int, seed: int, share: float) -> None:
    from pycocotools import mask as run_length

    from comastre.data.sets.outlines import draw

    mask = np.random.default_rng(seed).random((height, width)) < share
    packed = run_length.encode(np.asfortranarray(mask, dtype=np.uint8))["counts"].decode()
    np.testing.assert_array_equal(draw({"size": [height, width], "counts": packed}, height, width), mask)


# --- images ----------------------------------------------------------------------------------------------------------


def encoded(kind: str) -> bytes:
    from io import BytesIO

    pixels = np.random.default_rng(0).integers(0, 255, (24, 16, 3), dtype=np.uint8)
    content = BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


IMAGES = {kind: encoded(kind) for kind in ("JPEG", "PNG", "TIFF", "BMP", "GIF", "WEBP", "PPM")}


@few(120)
@given(st.sampled_from(sorted(IMAGES)), st.integers(0, 3000), st.binary(max_size=30), st.booleans())
@example("PNG", 0, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", True)
@example("PNG", 0, b"", True)
def test_any_bytes_in_an_image(tmp_path: Path, kind: str, place: int, content: bytes, cut: bool) -> None:
    whole = IMAGES[kind]
    damaged = whole[:place] + content + (b"" if cut else whole[place + len(content) :])
    file = tmp_path / "x.jpg"
    file.write_bytes(damaged)
    for read in (read_image, read_mask, checked_size):
        with suppress(UserError):
            read(file)


# --- YAML ------------------------------------------------------------------------------------------------------------

KNOWN = yaml.safe_load(
    "method: comastre\nsize: tiny\nseed: 1\nbackbone: {name: test_resnet, weights: none, std: [1, 1, 1]}\n"
    "comastre: {mask_decoder: {layers: 2}, optimiser: {learning_rate: 0.1}}\n"
    "data: {dataset: shapes, crop: 64, scale: [0.5, 2], root: null, without: [a], options: {a: 1}}\n"
    "continual: {setting: 6-2, class_order: [1, 2]}\ntraining: {iterations: 5, batch_size: 2}\nbase: null\n"
)


@few(100)
@given(st.sampled_from(places_in(KNOWN)), ANYTHING)
@example(("training", "iterations"), LARGE)
@example(("training", "batch_size"), 100_000)
@example(("data", "root"), "~nobody")
def test_any_value_in_a_configuration(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    write_json(tmp_path / "any.yaml", replaced(KNOWN, place, value))
    with suppress(UserError):
        load_config(tmp_path / "any.yaml")


@few(100)
@given(
    st.text(st.sampled_from(list("ab: -[]{}&*!|>?,'\"\n\t#%@01.<=~")), max_size=60) | st.text(max_size=30) | st.binary()
)
@example("a: &a [*a]")
@example("a: 2024-99-99")
@example("? [a]\n: b")
@example("? {a: 1}\n: b\n")
@example("a: " + "9" * 5000)
@example("[" * 100_000)
@example("a: " * 90)
@example("- " * 100_000)
@example(
    "a: &a [x,x,x,x,x,x,x,x]\n"
    + "\n".join(f"{b}: &{b} [{','.join([f'*{a}'] * 8)}]" for a, b in pairwise("abcdefghijk"))
)
@example("\N{BYTE ORDER MARK}training: {iterations: 5}")
@example("a: !!python/object:os.system {}")
@example("x" * 1_000_000)
def test_any_text_as_a_configuration(tmp_path: Path, text: str | bytes) -> None:
    content = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    (tmp_path / "any.yaml").write_bytes(content)
    with suppress(UserError):
        load_config(tmp_path / "any.yaml")
