"""One evaluation: every validation image once, over all processes, to one `StepResult`.

What is counted: docs/specification.md, Scores.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from comastre.config.run import RunConfig
from comastre.data.dataset import SegmentationDataset
from comastre.distributed import rank_and_size
from comastre.errors import UserError
from comastre.evaluation.confusion import IGNORE, ConfusionMatrix
from comastre.evaluation.recall import ErrorSplit, RecallCounter, error_split, mask_overlaps
from comastre.evaluation.results import BACKGROUND, ClassErrors, StepResult
from comastre.evaluation.scores import all_conventions, fold, iou_per_label, task_confusion
from comastre.stream.loading import evaluation_batches
from comastre.stream.scenario import Scenario


@dataclass(frozen=True)
class Prediction:
    """What a model says about one image, at the image's own size."""

    label_map: Tensor
    """(H, W): 0 background, k + 1 class k in learning order."""
    proposal_masks: Tensor
    """(N, H, W) bool."""
    objectness: Tensor
    """(N,) in 0..1."""
    classes: Tensor
    """(N,) index of the class each proposal is recognised as, -1 for those that were not looked at."""


class Predictor(Protocol):
    """Anything that segments a padded batch: images (B, 3, H, W), padding (B, H, W) or None, sizes (height, width)."""

    def __call__(
        self, images: Tensor, padding: Tensor | None, sizes: Sequence[tuple[int, int]]
    ) -> Sequence[Prediction]: ...


def true_masks(labels: np.ndarray, instances: np.ndarray | None, num_learned: int) -> tuple[np.ndarray, np.ndarray]:
    """Masks (G, H, W) bool and class indices (G,) of the learned classes in one image.

    One mask per class, or per object when `instances` (H, W; 0 = none) is given; `labels` are model labels (H, W).
    """
    learned = (labels > 0) & (labels <= num_learned)
    if instances is None:
        present = np.unique(labels[learned])
        return labels[None] == present[:, None, None], present.astype(np.int64) - 1
    objects = np.unique(instances[learned & (instances > 0)])
    masks = (instances[None] == objects[:, None, None]) & learned
    classes = [np.bincount(labels[mask]).argmax() - 1 for mask in masks]
    return masks, np.array(classes, dtype=np.int64)


def evaluate(
    predict: Predictor,
    dataset: SegmentationDataset,
    scenario: Scenario,
    step: int,
    config: RunConfig,
    *,
    device: torch.device | str = "cpu",
    seconds: float = 0.0,
    unscored: Collection[int] = (),
) -> StepResult:
    """Score a model after `step` on every image of `dataset`; all processes call it and all get the same result.

    `seconds` is the step's wall time, recorded as given. Model labels `unscored` (k + 1 for class k) are classes that
    the dataset does not know: they get no IoU and count in no mean.
    """
    if len(dataset) == 0:
        raise UserError(f"the validation set of '{dataset.name}' has no images; check data.root.")
    rank, world_size = rank_and_size()
    tasks = [len(task.new_classes) for task in scenario.tasks[: step + 1]]
    num_learned, num_classes = sum(tasks), len(scenario.class_order)
    alpha = config.method_settings.inference.alpha  # type: ignore[attr-defined]
    # Truth with every class of the stream, learned or not: conventions differ in what future classes become.
    lookup = scenario.evaluation_lookup(len(scenario.tasks) - 1)

    # Counts stay where the predictions are on CUDA (no waiting, and NCCL needs them there); elsewhere on the host.
    counting_device = torch.device(device) if torch.device(device).type == "cuda" else torch.device("cpu")
    confusion = ConfusionMatrix(num_classes + 1, counting_device)
    recall = RecallCounter(num_learned, alpha, counting_device)
    errors = ErrorSplit.zeros(num_learned)
    batches = evaluation_batches(dataset, config.evaluation.batch_size, rank, world_size, config.data.workers)
    for batch in batches:
        sizes = [sample.semantic.shape for sample in batch.samples]
        padding = None if batch.padding is None else batch.padding.to(device)
        # Not inference_mode: a tensor that the model caches meanwhile could not be used in training afterwards.
        with torch.no_grad():
            predictions = predict(batch.images.to(device), padding, sizes)
        for sample, prediction in zip(batch.samples, predictions, strict=True):
            labels = lookup[sample.semantic]  # (H, W)
            confusion.update(prediction.label_map, torch.from_numpy(labels.astype(np.int64)))
            instances = sample.instances if config.data.masks == "instance" else None
            masks, truth_classes = true_masks(labels, instances, num_learned)
            # Nobody knows what ignored pixels show, so a proposal may cover them freely.
            counted = torch.from_numpy(labels != IGNORE).to(prediction.proposal_masks.device)
            truths = torch.from_numpy(masks).to(prediction.proposal_masks.device)
            overlaps = mask_overlaps(prediction.proposal_masks & counted, truths)
            objectness = prediction.objectness.float().cpu().numpy()
            classes = prediction.classes.cpu().numpy()
            recall.update(overlaps, objectness, truth_classes)
            errors = errors + error_split(overlaps, objectness, classes, truth_classes, alpha, num_learned)

    matrix = confusion.reduce()
    overall, recall_per_class = recall.reduce()
    names = [dataset.class_names[class_id - 1] for class_id in scenario.class_order]
    ious = iou_per_label(fold(matrix, num_learned))
    ious[sorted(unscored)] = math.nan
    return StepResult(
        step=step,
        new_classes=tuple(names[num_learned - tasks[-1] : num_learned]),
        images=len(scenario.tasks[step].images),
        conventions=all_conventions(matrix, tasks, unscored),
        per_class={
            name: None if math.isnan(iou) else iou
            for name, iou in zip([BACKGROUND, *names[:num_learned]], ious.tolist(), strict=True)
        },
        recall=overall,
        recall_per_class=dict(zip(names[:num_learned], recall_per_class, strict=True)),
        errors=_errors_by_name(names[:num_learned], errors.reduce(counting_device)),
        task_confusion=tuple(tuple(row) for row in task_confusion(matrix, tasks).tolist()),
        seconds=seconds,
    )


def _errors_by_name(names: Sequence[str], errors: ErrorSplit) -> dict[str, ClassErrors]:
    columns = (errors.not_proposed, errors.below_alpha, errors.wrong_class, errors.right)
    counts = torch.stack(columns, dim=1).tolist()  # (C, 4)
    return {name: ClassErrors(*row) for name, row in zip(names, counts, strict=True)}
