"""Which settings decide what a run learns, and which of them its first step: runs that agree on these can share it."""

from __future__ import annotations

from comastre.config.run import ContinualConfig, RunConfig
from comastre.config.settings import Difference, differences

CHANGEABLE = frozenset(
    {
        "data.root",
        "data.workers",
        "training.accelerator",
        "training.checkpoint_every",
        "training.devices",
        "training.log_every",
        "training.loggers",
        "training.nodes",
        "training.recompute",
        "training.strategy",
    }
)
"""What may change between two starts of one run: where and how fast it runs, not what it learns.

The bit-identical resume is promised for unchanged settings only: other devices round differently.
"""

# Runs must share everything that shapes the first step's model or its scores, but for these fields. The stream is not
# compared by its fields but by what they make the first step: 15-5 and 15-1 begin alike. Of the method's own fields
# its section knows which ones act in later steps alone.
_LATER = ("data.later_", "training.iterations_per_class")
_COMPARED_OTHERWISE = ("method", "continual.")
_OF_REPORTS = ("evaluation.convention", "evaluation.batch_size")


def first_step_differences(theirs: RunConfig, ours: RunConfig) -> list[Difference]:
    """Settings that give two runs first steps of their own; the stream is not looked at."""
    changed = [found for found in differences(theirs, ours) if _shapes_first_step(found, ours)]
    if not _same_purpose(theirs, ours):
        changed.insert(0, Difference("method", theirs.method, ours.method))
    return changed


def begin_alike(theirs: RunConfig, ours: RunConfig) -> bool:
    """Whether two runs on the same data have the same first step, as far as their configurations tell."""
    return _beginning(theirs) == _beginning(ours) and not first_step_differences(theirs, ours)


def _beginning(config: RunConfig) -> tuple[object, ...]:
    """What decides the images and classes of the first step: with the same classes first, the later ones are a set."""
    continual = config.continual
    setting = "joint" if config.spec.all_at_once else continual.setting
    number = base_classes(continual) if setting != "joint" else None
    order = continual.class_order
    first = order[:number] if order is not None else None
    length = (base_classes(continual), config.training.iterations_per_class) if config.trains_as_a_stream else None
    return setting if number is None else number, first, continual.protocol, continual.partition, length


def base_classes(continual: ContinualConfig) -> int | None:
    """B of a setting 'B-I'; None where all classes are learned at once, and where it is no setting."""
    number = continual.setting.partition("-")[0]
    return int(number) if number.isdecimal() else None


def _same_purpose(theirs: RunConfig, ours: RunConfig) -> bool:
    """Whether the methods' first steps are the same, given the same settings."""
    same_section = theirs.spec.section_name == ours.spec.section_name
    # A variant may learn something else, such as masks without classes, or remember nothing of `init`.
    same_outcome = theirs.spec.gives == ours.spec.gives and (ours.init is None or theirs.method == ours.method)
    return same_section and same_outcome


def _shapes_first_step(found: Difference, config: RunConfig) -> bool:
    field, section = found.field, f"{config.spec.section_name}."
    if field in CHANGEABLE or field.startswith((*_LATER, *_COMPARED_OTHERWISE, *_OF_REPORTS)):
        return False
    if field == "backbone.freeze_batch_norm":
        return "always" in (found.old, found.new)
    if field == "backbone.freeze_batch_norm_weights":
        return config.backbone.holds_batch_norm(step=0)
    if field.startswith(section):
        return config.method_settings.shapes_first_step(field.removeprefix(section), config.init is not None)
    return True
