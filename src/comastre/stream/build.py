"""From a configuration and the classes of each training image to the stream of tasks that a run learns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from comastre.config.run import RunConfig
from comastre.documents import require_regular
from comastre.errors import UserError
from comastre.paths import user_path
from comastre.stream.scenario import Scenario, build_scenario


def build_stream(config: RunConfig, presence: Sequence[Collection[int]], class_names: Sequence[str]) -> Scenario:
    """The tasks of the configured setting, each class of which some image of its step shows."""
    scenario = plan_stream(config, presence, class_names)
    for task in scenario.tasks:
        shown = set().union(*(presence[image] for image in task.images))
        unseen = [label for label in task.new_classes if label not in shown]
        if unseen:
            more = f" (nor {len(unseen) - 1} others)" if len(unseen) > 1 else ""
            raise UserError(
                f"Class {unseen[0]} ({class_names[unseen[0] - 1]}){more} is new in step {task.step} of setting "
                f"{scenario.setting} ({scenario.protocol}) but in none of its {len(task.images)} training images: "
                "add images, change the class order, or use another setting or protocol."
            )
    return scenario


def plan_stream(config: RunConfig, presence: Sequence[Collection[int]], class_names: Sequence[str]) -> Scenario:
    """The tasks of the configured setting, whether or not there are images of each class.

    Joint training learns all classes in one step. With `continual.partition` the images of each step are those of the
    user's files (MiB's tradition on ADE20K), else the protocol's rule chooses them; the scenario says which.
    """
    continual = config.continual
    partition = (
        None if continual.partition is None else read_partition(user_path(continual.partition, "continual.partition"))
    )
    return build_scenario(
        presence,
        len(class_names),
        "joint" if config.spec.all_at_once else continual.setting,
        continual.protocol,
        continual.class_order,
        partition,
        class_names,
    )


def read_partition(folder: Path) -> list[list[int]]:
    """Image indices of each step from train-0.npy, train-1.npy, ...; they count the sorted training images from 0."""
    steps: list[list[int]] = []
    while (path := folder / f"train-{len(steps)}.npy").exists():
        try:
            require_regular(path)
            indices = np.load(path, allow_pickle=False)
        except Exception as error:  # what a damaged file raises depends on where the damage is
            raise UserError(f"continual.partition: {path} cannot be read: {error}.") from None
        kind = getattr(indices, "dtype", type(indices).__name__)  # an archive of arrays is none
        if isinstance(kind, str) or not np.issubdtype(kind, np.integer):
            raise UserError(f"continual.partition: {path} holds {kind} but must hold image numbers.")
        steps.append(indices.reshape(-1).tolist())
    if not steps:
        raise UserError(f"continual.partition: {folder} has no train-0.npy")
    return steps
