"""Pictures for the report: which images are chosen, what is written, and that nothing else changes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from comastre.config.view import ViewConfig
from comastre.data.dataset import Sample
from comastre.evaluation.examples import adopt_examples, choose_examples, record_examples
from comastre.methods.comastre.config import ModelConfig
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.segmentation import Segmentation, Size
from comastre.stream.scenario import Scenario, build_scenario


def presence(*images: str) -> list[frozenset[int]]:
    return [frozenset(map(int, classes)) for classes in images]


def test_both_ends_of_the_class_order_come_first() -> None:
    images = presence("1", "2", "3", "4", "5", "6")
    assert choose_examples(images, (1, 2, 3, 4, 5, 6), count=2) == (0, 5)
    # Old classes are shown first, whatever place they have in the dataset.
    assert choose_examples(images, (6, 5, 4, 3, 2, 1), count=4) == (5, 4, 1, 0)


def test_every_class_is_shown_before_one_is_shown_twice() -> None:
    images = presence("1", "1", "1", "2", "12", "3", "")
    chosen = choose_examples(images, (1, 2, 3), count=2)
    assert set().union(*(images[index] for index in chosen)) == {1, 2, 3}


def test_images_are_distinct_and_no_more_than_there_are() -> None:
    images = presence("1", "1", "", "12")
    assert sorted(choose_examples(images, (1, 2, 3), count=12)) == [0, 1, 3]
    assert choose_examples([], (1,), count=3) == ()


def test_the_choice_does_not_depend_on_the_setting() -> None:
    random = np.random.default_rng(0)
    images = [frozenset(random.choice(20, size=2, replace=False) + 1) for _ in range(300)]
    chosen = choose_examples(images, range(1, 21))
    assert len(set(chosen)) == 12
    assert set(range(1, 7)) | set(range(15, 21)) <= set().union(*(images[index] for index in chosen))


class Bars:
    """Two images of 400 x 500 px: class 1 on the left of the first, class 2 on the right of the second."""

    name, class_names, has_background = "bars", ("left", "right"), True
    colours = ((0, 0, 0), (200, 10, 10), (10, 200, 10))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Sample:
        semantic = np.zeros((400, 500), np.uint8)
        semantic[:, slice(0, 250) if index == 0 else slice(250, 500)] = index + 1
        semantic[:40] = 255
        return Sample(np.full((400, 500, 3), 90, np.uint8), semantic, None, f"bar-{index}")

    def presence(self) -> list[frozenset[int]]:
        return presence("1", "2")


@pytest.fixture(scope="module")
def model() -> Segmenter:
    torch.manual_seed(0)
    return build_segmenter(ModelConfig.model_validate({"size": "tiny"}), (1, 1)).eval()


@pytest.fixture
def scenario() -> Scenario:
    return build_scenario(presence("1", "2"), 2, "1-1", "overlapped", class_order=(2, 1))


def test_what_is_recorded(tmp_path: Path, model: Segmenter, scenario: Scenario) -> None:
    data: Any = Bars()
    before = torch.random.get_rng_state()
    record_examples(model.segment, tmp_path, data, scenario, 1)
    assert torch.equal(torch.random.get_rng_state(), before)
    folder = tmp_path / "examples"
    index = json.loads((folder / "index.json").read_text())
    # In learning order: class 2 was learned first.
    assert [(label["name"], label["colour"]) for label in index["labels"]] == [
        ("background", [0, 0, 0]),
        ("right", [10, 200, 10]),
        ("left", [200, 10, 10]),
    ]
    assert [(image["name"], image["classes"]) for image in index["images"]] == [
        ("bar-1", ["right"]),
        ("bar-0", ["left"]),
    ]
    for file in ("image/00.jpg", "truth/00.png", "step-01/00.png"):
        with Image.open(folder / file) as picture:
            assert picture.size == (320, 256)
    with Image.open(folder / "truth" / "01.png") as truth:
        labels = np.array(truth)
        assert (labels[5, 5], labels[200, 10], labels[200, 310]) == (255, 2, 0)
        assert truth.convert("RGB").getpixel((10, 200)) == (200, 10, 10)
    assert not list(folder.rglob("*.partial"))


def test_predictions_are_the_models(tmp_path: Path, scenario: Scenario) -> None:
    found = torch.zeros(400, 500, dtype=torch.long)
    found[:, :250] = 1

    def segment(
        images: Tensor, padding: Tensor | None, sizes: Sequence[Size], original_sizes: Sequence[Size]
    ) -> list[Segmentation]:
        assert images.shape == (1, 3, 224, 256) and sizes == [(200, 250)] and original_sizes == [(400, 500)]
        return [Segmentation.of_labels(found)]

    data: Any = Bars()
    record_examples(segment, tmp_path, data, scenario, 0, ViewConfig(short_side=(200,)))
    with Image.open(tmp_path / "examples" / "step-00" / "00.png") as picture:
        assert np.array(picture)[:, :160].min() == 1 and np.array(picture)[:, 160:].max() == 0


def test_examples_of_a_base_run_stay_only_if_they_show_the_same_images(
    tmp_path: Path, model: Segmenter, scenario: Scenario
) -> None:
    data: Any = Bars()
    record_examples(model.segment, tmp_path / "base", data, scenario, 0)
    record_examples(model.segment, tmp_path / "base", data, scenario, 1)
    adopt_examples(tmp_path / "base", tmp_path / "new")
    adopt_examples(tmp_path / "nothing", tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
    assert sorted(path.name for path in (tmp_path / "new" / "examples").iterdir()) == [
        "image",
        "index.json",
        "step-00",
        "truth",
    ]
    record_examples(model.segment, tmp_path / "new", data, scenario, 1)
    assert (tmp_path / "new" / "examples" / "step-00").is_dir()
    other = build_scenario(presence("1", "2"), 2, "1-1", "overlapped", class_order=(1, 2))
    record_examples(model.segment, tmp_path / "new", data, other, 1)
    assert not (tmp_path / "new" / "examples" / "step-00").exists()
