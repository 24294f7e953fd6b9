"""Which fields shape a first step, for runs that share one: what the section says, against the losses of one."""

from typing import Any, get_args, get_origin

import pytest
import small_step as small
import torch

from comastre.config.settings import flatten
from comastre.methods.comastre.config import ComastreConfig, LossConfig

SECTION = ComastreConfig()
FIELDS = list(flatten(LossConfig().model_dump()))


def another(field: str) -> Any:
    """A value that the field does not have."""
    section, name = field.split(".")
    config = small.loss_config()
    value = getattr(getattr(config, section), name)
    annotation = type(getattr(config, section)).model_fields[name].annotation
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return next(choice for choice in get_args(annotation) if choice != value)
    assert get_origin(annotation) is None
    if section == "matching":
        return 0.0 if name == "bce" else value + 500  # so much that other queries are matched
    return value * 2 if isinstance(value, int) else value / 2 + 0.2


@torch.no_grad()
def losses(changes: dict[str, Any], from_init: bool) -> dict[str, float]:
    """Weighted terms of a first step; with `from_init` there is an old model, which differs a little."""
    model, old = small.first_learner(), None
    if from_init:
        old = small.first_learner().eval()
        for parameter in old.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    config = small.loss_config(**changes)
    weights = small.term_weights(config.weights)
    images, targets = small.batch()
    targets.masks[:, 0] = True  # a labelled object that every proposal lies on
    found = small.terms_of(model, old, images, targets, config)
    return {name: weights[name] * value.item() for name, value in found.items()}


@pytest.fixture(scope="module")
def unchanged() -> dict[bool, dict[str, float]]:
    return {from_init: losses({}, from_init) for from_init in (False, True)}


# What begins only beside a model that the run starts from decides whether there is one at all.
@pytest.mark.parametrize("from_init", [False, True], ids=["from nothing", "from a model"])
@pytest.mark.parametrize("field", [name for name in FIELDS if name != "distillation.from_init"])
def test_a_field_shapes_a_first_step_if_its_losses_change(
    field: str, from_init: bool, unchanged: dict[bool, dict[str, float]]
) -> None:
    section, name = field.split(".")
    changed = losses({section: {name: another(field)}}, from_init) != unchanged[from_init]
    assert SECTION.shapes_first_step(field, from_init) == changed


def test_rates_shape_the_steps_that_they_are_of() -> None:
    assert SECTION.shapes_first_step("optimiser.learning_rate", False)
    assert not SECTION.shapes_first_step("optimiser.later_learning_rate", False)
    assert not SECTION.shapes_first_step("optimiser.later_backbone_factor", True)
    assert SECTION.shapes_first_step("distillation.from_init", True)
    assert not SECTION.shapes_first_step("distillation.from_init", False)


def test_what_the_model_is_shapes_it() -> None:
    for field in flatten({name: getattr(SECTION, name).model_dump() for name in SECTION.model_sections}):
        assert SECTION.shapes_first_step(field, False), field


def test_the_meaning_of_cross_entropy_shapes_it_where_that_is_the_loss() -> None:
    other = ComastreConfig.model_validate({"classification": {"loss": "cross_entropy"}})
    assert other.shapes_first_step("classification.cross_entropy", False)
    assert not SECTION.shapes_first_step("classification.cross_entropy", False)


def test_the_weight_of_unlabelled_negatives_shapes_it_where_there_are_any() -> None:
    with_negatives = {"unlabelled_negatives": True}
    usual = losses({"classification": with_negatives}, False)
    changed = losses({"classification": with_negatives, "weights": {"unlabelled_negatives": 0.5}}, False)
    assert changed != usual
    other = ComastreConfig.model_validate({"classification": with_negatives})
    assert other.shapes_first_step("weights.unlabelled_negatives", False)
