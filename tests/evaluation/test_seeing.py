"""Images of any size go to a model in one way, so that one model has one answer, alone or in any batch."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import comastre
from comastre.cli import main as cli
from comastre.config.settings import load_config
from comastre.config.view import UNWRITTEN, ViewConfig
from comastre.data.sources import open_split, parse_source
from comastre.evaluation.seeing import see
from comastre.methods.comastre.config import ModelConfig
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.segmentation import Segmentation, Size
from comastre.stream.scenario import build_scenario
from comastre.training.parts import LearnedStep, Prepared, evaluate_step

SIZES = [(40, 48), (64, 33), (50, 90), (96, 96), (33, 64), (61, 70), (40, 48), (90, 50)]


def smooth_images(seed: int = 0) -> list[Tensor]:
    """Random images (3, H, W) uint8 of different sizes in which there is something to see."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for size in SIZES:
        coarse = torch.rand(1, 3, 6, 6, generator=generator)
        made.append((255 * torch.nn.functional.interpolate(coarse, size=size, mode="bicubic").clamp(0, 1))[0].byte())
    return made


# --- what the model is given -----------------------------------------------------------------------------------------


def test_images_are_resized_and_padded_and_only_one_padded_size_shares_a_batch() -> None:
    images, calls = smooth_images(), []

    def segment(
        batch: Tensor, padding: Tensor | None, sizes: Sequence[Size], original_sizes: Sequence[Size]
    ) -> list[Segmentation]:
        calls.append((batch, padding, list(sizes), list(original_sizes)))
        return [Segmentation.of_labels(torch.full(size, size[0])) for size in original_sizes]

    found = see(segment, images, ViewConfig(short_side=(48,), max_side=80))
    assert [tuple(each.label_map.shape) for each in found] == SIZES  # in their order
    assert [int(each.label_map[0, 0]) for each in found] == [height for height, _ in SIZES]
    assert sum(len(batch) for batch, *_ in calls) == len(images)
    shapes = [tuple(batch.shape[2:]) for batch, *_ in calls]
    assert len(set(shapes)) == len(shapes) < len(images)
    assert all(height % 32 == width % 32 == 0 for height, width in shapes)
    for batch, padding, sizes, _ in calls:
        assert batch.dtype == torch.uint8
        for row, (height, width) in enumerate(sizes):
            assert min(height, width) == 48 or max(height, width) == 80
            outside = torch.ones(batch.shape[2:], dtype=torch.bool)
            outside[:height, :width] = False
            assert outside.any() == (padding is not None and bool(padding[row].any()))
            assert padding is None or torch.equal(padding[row], outside)
            assert not batch[row, :, outside].any()


def test_an_image_that_has_its_size_already_keeps_its_pixels() -> None:
    image = smooth_images()[3]

    def segment(batch: Tensor, padding: Tensor | None, sizes: object, original_sizes: object) -> list[Segmentation]:
        assert torch.equal(batch[0], image) and padding is None
        return [Segmentation.of_labels(torch.zeros(96, 96))]

    for view in (UNWRITTEN, ViewConfig(short_side=(96,)), ViewConfig(short_side="native")):
        see(segment, [image], view)


def test_a_smaller_image_is_smoothed_as_pil_does() -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8))

    def segment(batch: Tensor, *_: object) -> list[Segmentation]:
        expected = np.array(Image.fromarray(image.numpy()).resize((48, 32), Image.Resampling.BILINEAR))
        assert (batch[0, :, :32, :48].permute(1, 2, 0).int() - torch.from_numpy(expected).int()).abs().max() <= 1
        return [Segmentation.of_labels(torch.zeros(64, 96))]

    see(segment, [image.permute(2, 0, 1)], ViewConfig(short_side=(32,)))


def test_a_model_that_labels_pixels_is_shown_several_sizes_too() -> None:
    image = torch.zeros(3, 40, 60, dtype=torch.uint8)
    image[:, :, 20:] = 100
    image[:, :, 40:] = 200
    seen = []

    def label_pixels(
        batch: Tensor, padding: Tensor | None, sizes: Sequence[Size], original_sizes: Sequence[Size]
    ) -> list[Segmentation]:
        """1 for grey, 2 for bright pixels."""
        (height, width), original = sizes[0], original_sizes[0]
        seen.append((height, width))
        at_original = torch.nn.functional.interpolate(batch[:1, :1, :height, :width].float(), size=original)[0, 0]
        # The smaller look overlooks what is grey.
        labels = (at_original > 150) * 2 + (at_original > 50) * (at_original <= 150) * (height > 30)
        return [Segmentation.of_labels(labels, torch.full(original, height / 100))]

    (found,) = see(label_pixels, [image], ViewConfig(short_side=(20, 80)))
    assert seen == [(20, 30), (80, 120)]
    assert found.label_map[0, [5, 30, 55]].tolist() == [0, 1, 2]
    assert [(each.label, each.score) for each in found.segments] == [(2, pytest.approx(0.8)), (1, pytest.approx(0.8))]
    assert found.proposals is None


# --- one answer ------------------------------------------------------------------------------------------------------


@pytest.fixture(
    scope="module", params=[{}, {"pixel_decoder": {"layers": 0, "top_down": True}}], ids=["layers", "top_down"]
)
def model(request: pytest.FixtureRequest) -> Segmenter:
    """A random tiny model with many segments."""
    torch.manual_seed(0)
    inference = {"alpha": 0.0, "overlap": 0.0}
    built = build_segmenter(
        ModelConfig.model_validate({"size": "tiny", "inference": inference, **request.param}), [3, 2]
    )
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name.startswith(("mask_decoder", "class_decoder")) and parameter.dim() > 1:
                parameter.mul_(1.5)
    return built.eval()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("view", [UNWRITTEN, ViewConfig(short_side=(64,)), ViewConfig(short_side=(48, 80))], ids=str)
def test_alone_and_in_any_batch_an_image_has_the_same_labels(
    model: Segmenter, view: ViewConfig, dtype: torch.dtype
) -> None:
    model, images = copy.deepcopy(model).to(dtype), smooth_images()
    alone = [see(model.segment, [image], view)[0] for image in images]
    assert sum(len(each.segments) for each in alone) > len(images)
    # Products of matrices round by their size, on some CPUs: in single precision a pixel between two segments may fall
    # to either.
    moved = 0 if dtype == torch.float64 else 1
    for order in (range(8), (7, 3, 0, 6, 5, 1, 2, 4)):
        together = see(model.segment, [images[index] for index in order], view)
        for index, found in zip(order, together, strict=True):
            assert (found.label_map != alone[index].label_map).sum() <= moved
            assert (found.segment_map != alone[index].segment_map).sum() <= moved
            scores = [each.score for each in alone[index].segments]
            assert [each.score for each in found.segments] == pytest.approx(scores, abs=1e-5)


def test_what_lies_in_the_padding_changes_nothing(model: Segmenter) -> None:
    image = smooth_images()[1]
    batch, padding = torch.zeros(2, 3, 64, 64, dtype=torch.uint8), torch.ones(2, 64, 64, dtype=torch.bool)
    batch[1] = 255
    batch[:, :, :, :33], padding[:, :, :33] = image, False
    first, second = model.segment(batch, padding, [(64, 33)] * 2)
    assert torch.equal(first.label_map, second.label_map)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled images of different sizes."""
    root = tmp_path_factory.mktemp("data")
    for kind in ("images", "masks"):
        (root / kind).mkdir()
    for number, image in enumerate(smooth_images(3)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / "images" / f"{number}.png")
        mask = np.arange(image.shape[2], dtype=np.uint8)[None].repeat(image.shape[1], axis=0) * 4 // image.shape[2]
        Image.fromarray(mask).save(root / "masks" / f"{number}.png")
    (root / "classes.txt").write_text("disk\nstar\nring\n")
    return root


@pytest.mark.parametrize("short_side", [None, "48", "48,80", "native"])
def test_one_model_has_one_score_in_every_command(
    tiny_bundle: Path, data: Path, tmp_path: Path, short_side: str | None
) -> None:
    model = comastre.load(tiny_bundle)
    assert model.view == ViewConfig(short_side=(64,), max_side=2048)
    view = [] if short_side is None else ["--short-side", short_side]

    # The run's own evaluation, in batches of 3.
    settings: dict[str, object] = {"evaluation": {"batch_size": 3}}
    settings |= {} if short_side is None else {"view": {"short_side": short_side}}
    dataset = open_split(parse_source(data), "all")
    scenario = build_scenario(dataset.presence(), 3, "2-1", "overlapped")
    prepared = Prepared(dataset, dataset, scenario)
    config = load_config("shapes-6-2", settings)
    result = evaluate_step(LearnedStep(model.segmenter, scenario.tasks[1], prepared, config, torch.device("cpu")))

    # `comastre eval`, one by one and in batches.
    for batch_size in ("1", "8"):
        arguments = ["--batch-size", batch_size, "--out", str(tmp_path / f"{batch_size}.json"), *view]
        assert cli.dispatch(["eval", str(tiny_bundle), "--data", str(data), *arguments]) == 0
        scores = json.loads((tmp_path / f"{batch_size}.json").read_text())
        assert scores["per_class"] == result.per_class
        assert scores["recall"] == {"all": result.recall.all, "confident": result.recall.confident}

    # The files of `comastre predict`, scored by hand.
    assert (
        cli.dispatch(["predict", str(tiny_bundle), str(data / "images"), "--out", str(tmp_path / "found"), *view]) == 0
    )
    confusion = np.zeros((4, 4))
    for number in range(len(SIZES)):
        with (
            Image.open(data / "masks" / f"{number}.png") as truth,
            Image.open(tmp_path / "found" / f"{number}.labels.png") as found,
        ):
            np.add.at(confusion, (np.asarray(truth), np.asarray(found)), 1)
    ious = 100 * confusion.diagonal() / (confusion.sum(0) + confusion.sum(1) - confusion.diagonal())
    assert list(result.per_class.values()) == pytest.approx(ious.tolist())
    assert 0 < ious.mean() < 100
