"""One evaluation: every validation image once, over all processes, to one `StepResult`.

What is counted: docs/specification.md, Scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from comastre.allocator import keeping_freed_memory
from comastre.config.run import RunConfig
from comastre.config.view import UNWRITTEN, ViewConfig
from comastre.data.dataset import SegmentationDataset
from comastre.distributed import rank_and_size
from comastre.errors import UserError
from comastre.evaluation.confusion import ConfusionMatrix
from comastre.evaluation.parts import parts_of
from comastre.evaluation.proposals import ProposalCounter
from comastre.evaluation.results import BACKGROUND, StepResult
from comastre.evaluation.scores import all_conventions, fold, iou_per_label, task_confusion
from comastre.evaluation.seeing import see
from comastre.segmentation import SegmentImages
from comastre.stream.loading import evaluation_batches
from comastre.stream.scenario import Scenario


@dataclass(frozen=True)
class EvaluationPlan:
    """What a model is scored on, and how the images are read and counted."""

    dataset: SegmentationDataset
    scenario: Scenario
    step: int
    """The last step that the model learned."""
    batch_size: int = 1
    """Images per forward pass, at most: those of one size share one."""
    masks: Literal["semantic", "instance"] = "semantic"
    """What recall counts: one true mask per class of an image, or one per object."""
    workers: int = 0
    unscored: frozenset[int] = frozenset()
    """Model labels (k + 1 for class k) that the dataset does not know: they get no IoU and count in no mean."""
    view: ViewConfig = UNWRITTEN
    """The size at which the model sees the images."""
    parts_as_proposals: bool = False
    """Whether the connected parts of a label map are proposals, where a model has none."""

    @classmethod
    def of(cls, config: RunConfig, dataset: SegmentationDataset, scenario: Scenario, step: int) -> EvaluationPlan:
        """As a run's configuration says."""
        data, view = config.data, config.view.at(config.data.crop)
        evaluation = config.evaluation
        return cls(
            dataset,
            scenario,
            step,
            evaluation.batch_size,
            data.masks,
            data.workers,
            view=view,
            parts_as_proposals=evaluation.parts_as_proposals,
        )

    @property
    def tasks(self) -> list[int]:
        """Classes of each task learned so far."""
        return [len(task.new_classes) for task in self.scenario.tasks[: self.step + 1]]

    @property
    def class_names(self) -> list[str]:
        """Names of all classes of the stream, in learning order."""
        return [self.dataset.class_names[class_id - 1] for class_id in self.scenario.class_order]


def evaluate(segment: SegmentImages, plan: EvaluationPlan, device: torch.device | str = "cpu") -> StepResult:
    """Score what `segment` says of every image; all processes call it and all get the same result.

    Recall and the split of errors are those of proposals, and left out where the segmentations have none.
    """
    dataset, scenario, tasks = plan.dataset, plan.scenario, plan.tasks
    if len(dataset) == 0:
        raise UserError(f"the validation set of '{dataset.name}' has no images; check data.root.")
    rank, world_size = rank_and_size()
    num_learned = sum(tasks)
    # Truth with every class of the stream, learned or not: conventions differ in what future classes become.
    lookup = scenario.evaluation_lookup(len(scenario.tasks) - 1)

    # Counts stay where the predictions are on CUDA (no waiting, and NCCL needs them there); elsewhere on the host.
    counting_device = torch.device(device) if torch.device(device).type == "cuda" else torch.device("cpu")
    confusion = ConfusionMatrix(len(scenario.class_order) + 1, counting_device)
    num_later = len(scenario.class_order) - num_learned
    proposals = ProposalCounter(num_learned, num_later, counting_device)
    with keeping_freed_memory(torch.device(device).type):
        for samples in evaluation_batches(dataset, plan.batch_size, rank, world_size, plan.workers):
            images = [torch.from_numpy(np.array(sample.image)).permute(2, 0, 1) for sample in samples]
            segmentations = see(segment, images, plan.view, device)
            for sample, found in zip(samples, segmentations, strict=True):
                labels = lookup[sample.semantic]  # (H, W)
                confusion.update(found.label_map, torch.from_numpy(labels.astype(np.int64)))
                proposed_masks = found.proposals
                if proposed_masks is None and plan.parts_as_proposals:
                    proposed_masks = parts_of(found.label_map, num_learned)
                if proposed_masks is not None:
                    proposals.update(proposed_masks, labels, sample.instances if plan.masks == "instance" else None)

    matrix = confusion.reduce()
    proposed = proposals.reduce(len(dataset))
    learned, later = plan.class_names[:num_learned], plan.class_names[num_learned:]
    ious = iou_per_label(fold(matrix, num_learned))
    ious[sorted(plan.unscored)] = math.nan
    return StepResult(
        step=plan.step,
        new_classes=tuple(learned[num_learned - tasks[-1] :]),
        images=len(scenario.tasks[plan.step].images),
        conventions=all_conventions(matrix, tasks, plan.unscored),
        per_class={
            name: None if math.isnan(iou) else iou
            for name, iou in zip([BACKGROUND, *learned], ious.tolist(), strict=True)
        },
        recall=None if proposed is None else proposed.recall,
        recall_per_class={} if proposed is None else dict(zip(learned, proposed.recall_per_class, strict=True)),
        later_recall=None if proposed is None else proposed.later_recall,
        later_recall_per_class={} if proposed is None else dict(zip(later, proposed.later, strict=True)),
        errors={} if proposed is None else dict(zip(learned, proposed.errors, strict=True)),
        alpha=None if proposed is None else proposed.alpha,
        task_confusion=tuple(tuple(row) for row in task_confusion(matrix, tasks).tolist()),
    )
