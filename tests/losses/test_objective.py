"""The objective of a training step: golden values, and what must hold however it is computed."""

import pytest
import small_step as small
import torch

from comastre.losses.objective import total_loss

OURS = {"classification": {"negatives_for_new": True, "negatives_for_old": True}}
# Of this code in float64 with fixed weights, images and points. A change means that the mathematics changed.
GOLDEN = {
    "first": {
        "objectness": 4.38941796,
        "mask_bce": 3.91771272,
        "mask_dice": 2.64079549,
        "classification": 0.732120995,
        "total": 43.035619,
        "gradient_norm": 2436.78324,
    },
    "later": {
        "objectness": 4.23722035,
        "mask_bce": 3.92132493,
        "mask_dice": 2.56304178,
        "classification": 1.29116801,
        "score_kd": 0.110199122,
        "mask_kd_bce": 0.681544208,
        "mask_kd_dice": 0.192213191,
        "position_kd": 0.276888339,
        "unmatched_class_kd": 0.106135708,
        "matched_class_kd": 0.0237901797,
        "auxiliary": 2.36052669,
        "total": 48.8405883,
        "gradient_norm": 3840.42791,
    },
    "later with negatives": {
        "objectness": 4.23722035,
        "mask_bce": 3.92132493,
        "mask_dice": 2.56304178,
        "classification": 1.29116801,
        "score_kd": 0.110199122,
        "mask_kd_bce": 0.681544208,
        "mask_kd_dice": 0.192213191,
        "position_kd": 0.276888339,
        "unmatched_class_kd": 0.106135708,
        "auxiliary": 2.36052669,
        "negatives_for_new": 1.01358193,
        "negatives_for_old": 0.842085417,
        "total": 52.5043426,
        "gradient_norm": 3834.30209,
    },
}


def learners(step, **class_decoder):
    """(model, old model, (images, targets)) of the first or of a later step."""
    if step == 1:
        return small.first_learner(**class_decoder), None, small.batch()
    return *small.later_learner(**class_decoder), small.new_batch()


def values(terms):
    return {name: value.item() for name, value in terms.items()}


@pytest.mark.parametrize("case", ["first", "later", "later with negatives"])
def test_golden_values(case):
    model, old, (images, targets) = learners(1 if case == "first" else 2)
    config = small.loss_config(**(OURS if "negatives" in case else {}))
    terms = small.terms_of(model, old, images, targets, config)
    total = total_loss(terms, config.weights)
    gradients = small.gradients_of(model, total)
    found = values(terms) | {
        "total": total.item(),
        # Guards what is detached: values alone would not notice.
        "gradient_norm": torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item(),
    }
    assert found == pytest.approx(GOLDEN[case], rel=1e-5)
