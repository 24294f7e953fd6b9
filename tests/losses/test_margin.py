"""A margin for new classes: their own losses do not change, predictions trust them more."""

import pytest
import small_step as small
import torch

from comastre.config import RunConfig
from comastre.continual.methods import build_method
from comastre.continual.scenario import build_scenario

MARGIN = {"classification": {"margin": 0.7, "negatives_for_new": True}}
PLAIN = {"classification": {"negatives_for_new": True}}


def lift(model, amount):
    with torch.no_grad():
        model.class_decoder.classifiers[-1].bias.add_(amount)
    return model


@pytest.mark.parametrize("loss", ["focal", "cross_entropy"])
def test_new_classes_that_are_lifted_by_the_margin_have_the_losses_that_they_had(loss):
    model, old = small.later_learner()
    images, targets = small.new_batch()
    plain = small.loss_config(classification={"loss": loss, "negatives_for_new": True})
    margin = small.loss_config(classification={"loss": loss, "negatives_for_new": True, "margin": 0.7})
    before = small.terms_of(model, old, images, targets, plain)
    after = small.terms_of(lift(model, 0.7), old, images, targets, margin)
    for (name, value), (_, same) in zip(before.items(), after.items(), strict=True):
        torch.testing.assert_close(value, same, msg=name)


def test_without_the_lift_only_the_losses_of_new_classes_see_it():
    model, old = small.later_learner()
    images, targets = small.new_batch()
    before = dict(small.terms_of(model, old, images, targets, small.loss_config(**PLAIN)).items())
    after = dict(small.terms_of(model, old, images, targets, small.loss_config(**MARGIN)).items())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"classification", "negatives_for_new"}


def test_a_first_step_has_no_margin():
    model = small.first_learner()
    images, targets = small.batch()
    plain = small.terms_of(model, None, images, targets, small.loss_config())
    margin = small.terms_of(model, None, images, targets, small.loss_config(**MARGIN))
    assert all(torch.equal(value, dict(margin.items())[name]) for name, value in plain.items())


def biases(method, margin):
    """Of the classifiers after two steps of growing."""
    torch.manual_seed(0)
    config = RunConfig.model_validate(
        {
            "method": method,
            "model": {"size": "tiny"},
            "classification": {"margin": margin},
            "continual": {"setting": "2-1"},
        }
    )
    learner, model = build_method(config), None
    for task in build_scenario([frozenset({1, 2, 3})], 3, "2-1", "overlapped").tasks:
        model = learner.begin(task, model)
    return [classifier.bias.detach() for classifier in model.class_decoder.classifiers]


def test_a_later_steps_classes_begin_lifted_by_it_and_fine_tuning_knows_none():
    plain, lifted = biases("comastre", 0.0), biases("comastre", 0.7)
    assert torch.equal(plain[0], lifted[0])
    torch.testing.assert_close(plain[1] + 0.7, lifted[1])
    assert torch.equal(biases("finetune", 0.7)[1], plain[1])
