"""The objective of a training step: golden values, and what must hold however it is computed."""

import pytest
import small_step as small
import torch

from comastre.data.targets import Targets
from comastre.losses.distillation import proposal_weights
from comastre.methods.comastre import objective
from comastre.methods.comastre.config import DistillationConfig
from comastre.methods.comastre.terms import total_loss

EVERY_OLD = tuple(range(small.TASKS[0]))
OURS = {"classification": {"negatives_for_new": True, "negatives_for_old": True}}
ALL_OURS = {"classification": {**OURS["classification"], "unlabelled_negatives": True}}
DIVERGENCE = {"distillation": {"mask_loss": "divergence"}}
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
        "mask_kd_bce": 0.888540037,
        "mask_kd_dice": 0.318067655,
        "position_kd": 0.276888339,
        "unmatched_class_kd": 0.106135708,
        "matched_class_kd": 0.0237901797,
        "auxiliary": 2.36052669,
        "total": 50.5048398,
        "gradient_norm": 3816.87041,
    },
    "later with divergence": {
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


CHANGES = {
    "first": {},
    "later": {},
    "later with divergence": DIVERGENCE,
    "later with negatives": OURS | DIVERGENCE,
}


@pytest.mark.parametrize("case", CHANGES)
def test_golden_values(case):
    model, old, (images, targets) = learners(1 if case == "first" else 2)
    config = small.loss_config(**CHANGES[case])
    terms = small.terms_of(model, old, images, targets, config)
    total = total_loss(terms, config.weights)
    gradients = small.gradients_of(model, total)
    found = values(terms) | {
        "total": total.item(),
        # Guards what is detached: values alone would not notice.
        "gradient_norm": torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item(),
    }
    assert found == pytest.approx(GOLDEN[case], rel=1e-5)


def test_the_total_is_the_weighted_sum():
    model, old, (images, targets) = learners(2)
    config = small.loss_config(weights={"mask_kd": 3.0, "auxiliary": 0.5})
    terms = small.terms_of(model, old, images, targets, config)
    found = values(terms)
    expected = (
        2 * found["objectness"]
        + 5 * found["mask_bce"]
        + 5 * found["mask_dice"]
        + 2 * found["classification"]
        + 2 * found["score_kd"]
        + 3 * (5 * found["mask_kd_bce"] + 5 * found["mask_kd_dice"])
        + found["position_kd"]
        + 2 * (found["unmatched_class_kd"] + found["matched_class_kd"])
        + 0.5 * found["auxiliary"]
    )
    assert total_loss(terms, config.weights).item() == pytest.approx(expected)


@pytest.mark.parametrize("masked_attention", [False, True])
@pytest.mark.parametrize("all_layers", [False, True])
def test_nothing_is_distilled_where_the_old_model_is_the_new_one(masked_attention, all_layers):
    model, old = small.grow(small.first_learner(masked_attention=masked_attention))
    images, targets = small.new_batch()
    config = small.loss_config(distillation={"all_layers": all_layers, "mask_loss": "divergence"})
    terms = small.terms_of(model, old, images, targets, config)
    distilled = {name: value for name, value in terms.items() if "kd" in name}
    assert len(distilled) == 6
    assert values(terms)["classification"] > 0.01
    for name, value in distilled.items():
        assert abs(value.item()) < 1e-9, name
        model.zero_grad(set_to_none=True)
        value.backward(retain_graph=True)
        largest = max(p.grad.abs().max().item() for p in model.parameters() if p.grad is not None)
        assert largest < 1e-5, name


def test_a_batch_without_objects_trains():
    model, old, _ = learners(2)
    for counts in ((0, 0), (0, 1)):
        images, targets = small.new_batch(counts)
        # At alpha 1 nothing of the old model's counts as an object either: stage 2 has no proposal at all.
        for alpha in (0.2, 1.0):
            config = small.loss_config(distillation={"alpha": alpha})
            terms = small.terms_of(model, old, images, targets, config)
            found = values(terms)
            if counts == (0, 0):
                assert found["mask_bce"] == found["mask_dice"] == found["classification"] == 0
                assert found["matched_class_kd"] == 0
            assert (found["unmatched_class_kd"] > 0) == (alpha < 1)
            assert found["objectness"] > 0 and found["score_kd"] > 0
            before = [parameter.clone() for parameter in model.parameters()]
            gradients = small.gradients_of(model, total_loss(terms, config.weights))
            assert all(gradient.isfinite().all() for gradient in gradients.values())
            torch.optim.AdamW(model.parameters(), lr=1e-4).step()
            after = list(model.parameters())
            assert all(parameter.isfinite().all() for parameter in after)
            assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("only", ["unmatched_classes", "matched_classes"])
@pytest.mark.parametrize("counts", [(0, 0), (1, 0)])
def test_the_old_class_decoder_may_have_nothing_to_read(only, counts):
    model, old, _ = learners(2)
    images, targets = small.new_batch(counts)
    config = small.loss_config(distillation=DistillationConfig.none().model_dump() | {only: True, "alpha": 1.0})
    terms = small.terms_of(model, old, images, targets, config)
    total_loss(terms, config.weights).backward()
    name = only.removesuffix("_classes") + "_class_kd"
    assert (values(terms)[name] > 0) == (only == "matched_classes" and counts == (1, 0))


def test_more_masks_than_queries_train():
    model, old, _ = learners(2)
    images, targets = small.new_batch((small.QUERIES + 2, 1))
    config = small.loss_config()
    terms = small.terms_of(model, old, images, targets, config)
    gradients = small.gradients_of(model, total_loss(terms, config.weights))
    assert all(value > 0 for value in values(terms).values())
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_half_precision_is_close():
    model, old = small.later_learner(torch.float32)
    images, targets = small.new_batch(dtype=torch.float32)
    config = small.loss_config(**ALL_OURS)
    exact = values(small.terms_of(model, old, images, targets, config))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = small.terms_of(model, old, images, targets, config)
        total = total_loss(terms, config.weights)
    gradients = small.gradients_of(model, total)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert all(value.dtype == torch.float32 for _, value in terms.items())
    # Distillation is the small difference of two rounded models, so rounding weighs more in it.
    for name, value in values(terms).items():
        assert value == pytest.approx(exact[name], rel=0.25 if "kd" in name else 0.05), name


def test_two_accumulated_halves_are_the_whole_batch():
    model, old, _ = learners(2)
    # As many masks in each half, and at alpha 0 all unmatched proposals are old objects: every mean is over as many.
    images, targets = small.new_batch((2, 1, 0, 3))
    config = small.loss_config(distillation={"alpha": 0.0}, **ALL_OURS)
    whole = small.terms_of(model, old, images, targets, config)
    expected = small.gradients_of(model, total_loss(whole, config.weights))
    model.zero_grad()
    sums = dict.fromkeys(values(whole), 0.0)
    for rows in (slice(0, 2), slice(2, 4)):
        terms = small.terms_of(model, old, images, targets, config, rows)
        (total_loss(terms, config.weights) / 2).backward()
        sums = {name: sums[name] + value / 2 for name, value in values(terms).items()}
    assert sums == pytest.approx(values(whole), rel=1e-6)
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_annotated_past_classes_are_learned_with_the_new_ones():
    model, old, _ = learners(2)
    images, targets = small.batch(num_classes=sum(small.TASKS))  # labels of both tasks
    assert (targets.labels < small.TASKS[0]).any() and (targets.labels >= small.TASKS[0]).any()
    config = small.loss_config(**OURS)
    terms = small.terms_of(model, old, images, targets, config, labelled_old=EVERY_OLD)
    total_loss(terms, config.weights).backward()
    first, second = model.class_decoder.classifiers
    assert first.weight.grad.abs().sum() > 0 and second.weight.grad.abs().sum() > 0

    # An object of an old class is no negative for the old classes.
    only_new = small.terms_of(model, old, images, relabelled(targets, small.TASKS[0]), config, labelled_old=EVERY_OLD)
    assert values(only_new)["negatives_for_old"] > values(terms)["negatives_for_old"] > 0
    assert values(only_new)["classification"] != pytest.approx(values(terms)["classification"])


def relabelled(targets, label):
    return Targets(targets.masks, torch.full_like(targets.labels, label), targets.counts, targets.image_ids)


def test_labels_are_learned_over_the_newest_classes_only():
    model, old, (images, targets) = learners(2)
    config = small.loss_config(distillation=dict.fromkeys(("unmatched_classes", "matched_classes"), False))
    terms = small.terms_of(model, old, images, targets, config)
    first, second = model.class_decoder.classifiers
    total_loss(terms, config.weights).backward()
    assert first.weight.grad is None
    assert second.weight.grad.abs().sum() > 0


def test_beta_one_sees_more_of_unsure_proposals_than_beta_two(monkeypatch):
    model, old, (images, targets) = learners(2)
    found, looks = {}, {}
    for beta in (0.0, 1.0, 2.0):

        def watched(old_logits, unmatched, power, beta=beta, weigh=proposal_weights):
            looks[beta] = (old_logits, unmatched, weigh(old_logits, unmatched, power))
            return looks[beta][-1]

        monkeypatch.setattr(objective, "proposal_weights", watched)
        terms = small.terms_of(model, old, images, targets, small.loss_config(distillation={"beta": beta}))
        found[beta] = values(terms)
    changed = {name for name in found[0.0] if len({found[beta][name] for beta in found}) == 3}
    same = {name for name in found[0.0] if len({found[beta][name] for beta in found}) == 1}
    assert changed == {"mask_kd_bce", "mask_kd_dice", "position_kd"}
    assert changed | same == set(found[0.0])

    logits, unmatched, _ = looks[0.0]
    for image, rows in enumerate(unmatched):
        sure, unsure = (logits[image].masked_fill(~rows, fill) for fill in (float("-inf"), float("inf")))
        least, most = unsure.argmin(), sure.argmax()
        even, one, two = (looks[beta][-1][image] for beta in (0.0, 1.0, 2.0))
        torch.testing.assert_close(even[rows], torch.full_like(even[rows], 1 / rows.sum()))
        assert even[least] > one[least] > two[least] > 0
        assert even[most] < one[most] < two[most] < 1


def test_all_layers_distil_more_than_the_last():
    model, old, (images, targets) = learners(2)
    last = values(small.terms_of(model, old, images, targets, small.loss_config()))
    every = values(small.terms_of(model, old, images, targets, small.loss_config(distillation={"all_layers": True})))
    more = {name for name in last if every[name] > last[name] * 1.01}
    assert more == {"score_kd", "mask_kd_bce", "mask_kd_dice", "position_kd"}
    assert all(every[name] == pytest.approx(last[name], rel=1e-6) for name in last if name not in more)


@pytest.mark.parametrize("options", [{"task_queries": False}, {"masked_attention": False}, {"level": 32}])
def test_ablations_of_the_class_decoder_change_recognition_only(options):
    reference = golden_terms(2)
    found = golden_terms(2, **options)
    assert set(found) == set(reference)
    recognition = {"classification", "unmatched_class_kd", "matched_class_kd", "auxiliary"}
    for name, value in found.items():
        assert (value == pytest.approx(reference[name], rel=1e-9)) == (name not in recognition), name


def golden_terms(step, **class_decoder):
    model, old, (images, targets) = learners(step, **class_decoder)
    return values(small.terms_of(model, old, images, targets, small.loss_config()))


def test_cross_entropy_in_place_of_focal():
    model, old, (images, targets) = learners(2)
    focal = values(small.terms_of(model, old, images, targets, small.loss_config()))
    other = values(
        small.terms_of(model, old, images, targets, small.loss_config(classification={"loss": "cross_entropy"}))
    )
    assert other["classification"] != pytest.approx(focal["classification"], rel=1e-3)
    assert {**other, "classification": 0} == {**focal, "classification": 0}


def test_class_scores_are_distilled_in_place_of_their_softmax():
    model, old, (images, targets) = learners(2)
    softmax = values(small.terms_of(model, old, images, targets, small.loss_config()))
    config = small.loss_config(distillation={"class_scores": "sigmoid"})
    sigmoid = values(small.terms_of(model, old, images, targets, config))
    changed = {name for name, value in sigmoid.items() if value != softmax[name]}
    assert changed == {"unmatched_class_kd", "matched_class_kd"}


def test_padding_of_a_mixed_batch_reaches_both_models():
    model, old = small.grow(small.first_learner())
    images, targets = small.new_batch()
    padding = torch.zeros(len(images), small.SIZE, small.SIZE, dtype=torch.bool)
    padding[:, :, 40:] = True
    terms = small.terms_of(model, old, images, targets, small.loss_config(**DIVERGENCE), padding=padding)
    distilled = {name: value for name, value in values(terms).items() if "kd" in name}
    assert len(distilled) == 6
    assert all(abs(value) < 1e-9 for value in distilled.values())  # else it would reach one of them only
    assert all(value.isfinite() for _, value in terms.items())
    whole = values(small.terms_of(model, old, images, targets, small.loss_config()))
    for name in ("objectness", "mask_bce", "classification"):
        assert values(terms)[name] != pytest.approx(whole[name], rel=1e-3), name
