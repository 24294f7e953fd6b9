"""Query methods learn eight images by heart: model, matching, losses and inference agree with each other."""

import pytest
import torch
from torch.optim import AdamW

from comastre.config.run import RunConfig
from comastre.data.sets.shapes import Shapes
from comastre.data.targets import Targets
from comastre.data.transforms import semantic_targets
from comastre.evaluation.confusion import ConfusionMatrix
from comastre.evaluation.scores import iou_per_label
from comastre.losses.points import PointSource
from comastre.methods.build import build_method, setup_of
from comastre.methods.mask2former.objective import supervise

IMAGES = 8
ITERATIONS = 200
LEARNING_RATE = 2e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "masks_of", "at_least"),
    [
        ("mask2former", {}, 90),
        ("comformer", {"softmax_masks": False}, 90),
        ("comformer", {}, 65),  # docs/experiments.md, Query methods
    ],
)
def test_a_tiny_model_overfits_eight_images(method: str, masks_of: dict[str, bool], at_least: int) -> None:
    torch.manual_seed(0)
    dataset = Shapes("train", num_images=IMAGES)
    samples = [dataset[index] for index in range(IMAGES)]
    images = torch.stack([torch.from_numpy(sample.image).permute(2, 0, 1) for sample in samples])
    truth = torch.stack([torch.from_numpy(sample.semantic) for sample in samples]).int()
    masks, labels = zip(*(semantic_targets(label_map) for label_map in truth), strict=True)
    targets = Targets.stack(masks, labels, [sample.image_id for sample in samples])
    num_labels = len(dataset.class_names) + 1

    own = {
        "pixel_decoder": {"layers": 0, "top_down": True},
        "mask_decoder": masks_of,
        "matching": {"points": 256},
        "masks": {"points": 256},
    }
    config = RunConfig.model_validate({"method": method, "size": "tiny", method: own})
    learner = build_method(method, setup_of(config))
    model = learner.build([num_labels - 1]).train()
    settings = config.method_settings
    optimiser = AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.05)
    for iteration in range(ITERATIONS):
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (iteration + 1) / 20) * (1 - iteration / ITERATIONS) ** 0.9
        points = PointSource(0, iteration, slice(None), IMAGES, "cpu")
        softmax = settings.mask_decoder.softmax_masks  # type: ignore[attr-defined]
        terms = supervise(model(images), targets, points, settings, softmax)  # type: ignore[arg-type]
        optimiser.zero_grad()
        learner.total(terms).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    confusion = ConfusionMatrix(num_labels)
    for found, label_map in zip(model.eval().segment(images), truth, strict=True):  # type: ignore[operator]
        confusion.update(found.label_map, label_map)
    score = torch.nanmean(iou_per_label(confusion.reduce())).item()
    print(f"{method}: training mIoU {score:.1f} after {ITERATIONS} iterations")  # noqa: T201
    assert score > at_least
