"""Scores on data that is labelled for old classes, by which forgetting is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from comastre.config.run import RunConfig
from comastre.data.dataset import SegmentationDataset
from comastre.evaluation.image_progress import ImageProgress
from comastre.learning.images import scoring_part
from comastre.learning.lesson import keep_scores
from comastre.learning.plan import OldData, Plan
from comastre.training.parts import LearnedStep, Prepared, evaluate_step


def images_of_old_data(plan: Plan, old_data: OldData) -> SegmentationDataset:
    """The images, labelled as the grown model labels them."""
    return plan.lesson.relabelled(scoring_part(old_data.source), old_data.labels)


def shown_by_old_data(plan: Plan, old_data: OldData) -> dict[str, int]:
    """How many images show each class."""
    presence = images_of_old_data(plan, old_data).presence()
    names = plan.lesson.roles.names
    return {name: sum(label in classes for classes in presence) for label, name in enumerate(names, start=1)}


def score_old(
    model: Any, step: int, config: RunConfig, plan: Plan, old_data: OldData, device: torch.device
) -> Mapping[str, float | None]:
    """IoU of the classes that the data shows, by a model on `device` that has learned up to `step`."""
    dataset = images_of_old_data(plan, old_data)
    scenario = plan.lesson.scenario(config.continual.setting)
    # Images may differ in size here even where those of the lesson do not.
    evaluation = config.evaluation.model_copy(update={"batch_size": 1})
    config = config.model_copy(update={"evaluation": evaluation})
    prepared = Prepared(dataset, dataset, scenario)
    with ImageProgress(f"scoring on {old_data.title}", len(dataset)) as progress:
        learned = LearnedStep(model, scenario.tasks[step], prepared, config, device, scored=progress.advance)
        result = evaluate_step(learned)
    return keep_scores(result, old_data.scored, plan.lesson.roles).per_class
