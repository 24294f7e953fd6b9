"""The tiny model learns eight images by heart: model, matching, losses and inference agree with each other."""

import time

import pytest
import torch
from torch.optim import AdamW

from comastre.data.sets.shapes import Shapes
from comastre.data.targets import Targets
from comastre.data.transforms import semantic_targets
from comastre.evaluation.confusion import ConfusionMatrix
from comastre.evaluation.scores import iou_per_label
from comastre.losses.points import PointSource
from comastre.methods.comastre.config import LossConfig, ModelConfig
from comastre.methods.comastre.inference import segment
from comastre.methods.comastre.objective import compute_terms
from comastre.methods.comastre.segmenter import build_segmenter
from comastre.methods.comastre.step import StepInputs
from comastre.methods.comastre.terms import total_loss

IMAGES = 8
ITERATIONS = 200
LEARNING_RATE = 2e-3


def mean_iou_of(model, images, truth, num_labels):
    """Percent, over the labels that occur."""
    confusion = ConfusionMatrix(num_labels)
    for found, label_map in zip(segment(model.eval(), images), truth, strict=True):
        confusion.update(found.label_map, label_map)
    model.train()
    return torch.nanmean(iou_per_label(confusion.reduce())).item()


@pytest.mark.slow
def test_the_tiny_model_overfits_eight_images_in_three_cpu_minutes():
    torch.manual_seed(0)
    dataset = Shapes("train", num_images=IMAGES)
    samples = [dataset[index] for index in range(IMAGES)]
    images = torch.stack([torch.from_numpy(sample.image).permute(2, 0, 1) for sample in samples])
    truth = torch.stack([torch.from_numpy(sample.semantic) for sample in samples]).int()
    masks, labels = zip(*(semantic_targets(label_map) for label_map in truth), strict=True)
    targets = Targets.stack(masks, labels, [sample.image_id for sample in samples])

    num_labels = len(dataset.class_names) + 1
    model = build_segmenter(ModelConfig(size="tiny"), [len(dataset.class_names)]).train()
    assert mean_iou_of(model, images, truth, num_labels) < 20
    config = LossConfig(matching={"objectness_cost": 2.0, "points": 512}, masks={"points": 512})
    optimiser = AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.05)
    began = time.process_time()  # of the CPU, over all threads: a busy machine does not count
    for iteration in range(ITERATIONS):
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (iteration + 1) / 20) * (1 - iteration / ITERATIONS) ** 0.9
        points = PointSource(0, iteration, slice(None), IMAGES, "cpu")
        terms = compute_terms(StepInputs(model, None, images, None, targets, points, config))
        optimiser.zero_grad()
        total_loss(terms, config.weights).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    seconds = time.process_time() - began

    score = mean_iou_of(model, images, truth, num_labels)
    print(f"training mIoU {score:.1f} after {ITERATIONS} iterations in {seconds:.0f} CPU seconds")  # noqa: T201
    assert score > 90
    assert seconds < 180
