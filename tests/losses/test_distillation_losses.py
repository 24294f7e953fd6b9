"""Distillation: torch.distributions, hand-computed values, gradients, and zero where nothing was forgotten."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, Categorical, kl_divergence

from comastre.config.sections import MaskLossConfig
from comastre.losses.distillation import (
    class_distillation,
    class_score_distillation,
    mask_distillation,
    position_distillation,
    proposal_weights,
    score_distillation,
    soft_dice,
)
from comastre.losses.points import PointCounts, sample_each, uncertain_points

CONFIG = MaskLossConfig(points=40)
KINDS = PointCounts.of(CONFIG)
UNMATCHED = torch.tensor([[True, False, True], [False, True, True]])
torch.manual_seed(0)
WEIGHTS = torch.rand(2, 3) * UNMATCHED
CANDIDATES, UNIFORM = torch.rand(2, KINDS.candidates, 2), torch.rand(2, KINDS.uniform, 2)


def mask_terms(new, old, weights, normaliser=None, divergence=True):
    rows = slice(0, len(new))
    return mask_distillation(new, old, weights, CANDIDATES[rows], UNIFORM[rows], CONFIG, normaliser, divergence)


def mask_bce_term(new, old, weights=WEIGHTS, normaliser=None):
    return mask_terms(new, old, weights, normaliser)[0]


def mask_dice_term(new, old, weights=WEIGHTS, normaliser=None):
    return mask_terms(new, old, weights, normaliser)[1]


def printed_bce_term(new, old, weights=WEIGHTS, normaliser=None):
    return mask_terms(new, old, weights, normaliser, divergence=False)[0]


def printed_dice_term(new, old, weights=WEIGHTS, normaliser=None):
    return mask_terms(new, old, weights, normaliser, divergence=False)[1]


# Name: (shape of both models' outputs, the term with its weights or its selection).
TERMS = {
    "score": ((2, 3), score_distillation, UNMATCHED),
    "mask bce": ((2, 3, 6, 6), mask_bce_term, WEIGHTS),
    "mask dice": ((2, 3, 6, 6), mask_dice_term, WEIGHTS),
    "position": ((2, 3, 8), position_distillation, WEIGHTS),
    "class": ((2, 3, 5), class_distillation, UNMATCHED),
    "class from old": ((2, 3, 5), partial(class_distillation, from_old=True), UNMATCHED),
    "class score": ((2, 3, 5), class_score_distillation, UNMATCHED),
}
# Of these all but the first test hold, too: as printed, Eq. 4 is above 0 where nothing was forgotten.
PRINTED = {
    "printed mask bce": ((2, 3, 6, 6), printed_bce_term, WEIGHTS),
    "printed mask dice": ((2, 3, 6, 6), printed_dice_term, WEIGHTS),
}
ALL = TERMS | PRINTED
every_term = pytest.mark.parametrize(("shape", "term", "weights"), ALL.values(), ids=ALL.keys())


@pytest.mark.parametrize(("shape", "term", "weights"), TERMS.values(), ids=TERMS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_term_and_its_gradient_are_zero_when_the_old_model_is_the_new_one(shape, term, weights, dtype):
    new = (3 * torch.randn(shape, dtype=dtype)).requires_grad_()
    loss = term(new, new.detach().clone(), weights)
    loss.backward()
    assert abs(loss.item()) < 1e-7
    assert new.grad.abs().max() < 1e-7


@every_term
def test_a_term_is_positive_when_the_models_differ_and_old_gets_no_gradient(shape, term, weights):
    new, old = torch.randn(shape, requires_grad=True), torch.randn(shape, requires_grad=True)
    loss = term(new, old, weights)
    loss.backward()
    assert loss.item() > 0.01 and old.grad is None
    assert torch.equal(new.grad.flatten(2).abs().sum(-1) > 0 if new.dim() > 2 else new.grad.abs() > 0, weights > 0)


@every_term
def test_gradients_are_exact(shape, term, weights):
    new = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    old = torch.randn(shape, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda values: term(values, old, weights), new, fast_mode=new.dim() == 4)


@every_term
def test_nothing_selected_gives_an_exact_zero_with_a_graph(shape, term, weights):
    new = torch.randn(shape, requires_grad=True)
    loss = term(new, torch.randn(shape), torch.zeros_like(weights))
    loss.backward()
    assert loss.item() == 0 and not new.grad.any()


@every_term
def test_no_queries_at_all_give_an_exact_zero_with_a_graph(shape, term, weights):
    shape = (2, 0, *shape[2:])
    new = torch.randn(shape, requires_grad=True)
    loss = term(new, torch.randn(shape), weights[:, :0])
    loss.backward()
    assert loss.item() == 0 and new.grad is not None


@every_term
def test_a_batch_equals_the_mean_of_its_images(shape, term, weights):
    # Both images have two unmatched queries; Eq. 4 and 5 need weights that sum to 1 per image.
    weights = weights if weights.dtype == torch.bool else proposal_weights(torch.randn(2, 3), UNMATCHED, 2.0)
    new, old = torch.randn(shape[1:]).expand(shape), torch.randn(shape)
    if len(shape) == 4:  # the second image's points are the second row, so compare with the same points everywhere
        points = (CANDIDATES[:1].expand(2, -1, -1), UNIFORM[:1].expand(2, -1, -1))
        which = 0 if term in (mask_bce_term, printed_bce_term) else 1
        divergence = term in (mask_bce_term, mask_dice_term)
        whole = mask_distillation(new, old, weights, *points, CONFIG, divergence=divergence)[which]
    else:
        whole = term(new, old, weights)
    singles = [term(new[image, None], old[image, None], weights[image, None]) for image in range(2)]
    torch.testing.assert_close(whole, torch.stack(singles).mean())


@every_term
def test_half_precision_is_finite_and_close(shape, term, weights):
    new, old = torch.randn(shape), torch.randn(shape)
    exact = term(new.bfloat16().float(), old.bfloat16().float(), weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = term(new.bfloat16(), old.bfloat16(), weights)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, atol=1e-6, rtol=0.01)
    extreme = term((1e4 * new).bfloat16().requires_grad_(), (-1e4 * old).bfloat16(), weights)
    assert extreme.isfinite()


def test_score_equals_the_bernoulli_divergence_of_old_from_new():
    new, old = 3 * torch.randn(2, 3), 3 * torch.randn(2, 3)
    expected = kl_divergence(Bernoulli(logits=old), Bernoulli(logits=new))[UNMATCHED].mean()
    torch.testing.assert_close(score_distillation(new, old, UNMATCHED), expected)


def test_class_equals_the_categorical_divergence_of_new_from_old():
    new, old = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    expected = kl_divergence(Categorical(logits=new), Categorical(logits=old))[UNMATCHED].mean()
    torch.testing.assert_close(class_distillation(new, old, UNMATCHED), expected)


def test_class_from_old_equals_the_categorical_divergence_of_old_from_new():
    new, old = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    expected = kl_divergence(Categorical(logits=old), Categorical(logits=new))[UNMATCHED].mean()
    found = class_distillation(new, old, UNMATCHED, from_old=True)
    torch.testing.assert_close(found, expected)
    # Hand-computed, old (3/4, 1/4), new (1/2, 1/2): 3/4 log(3/2) + 1/4 log(1/2), and 1/2 log(2/3) + 1/2 log 2.
    new, old = torch.zeros(1, 1, 2), torch.tensor([[[3.0, 1.0]]]).log()
    one = torch.ones(1, 1, dtype=torch.bool)
    assert class_distillation(new, old, one, from_old=True).item() == pytest.approx(0.1308120, abs=1e-6)
    assert class_distillation(new, old, one).item() == pytest.approx(0.1438410, abs=1e-6)


def test_class_score_sums_bernoulli_divergences_and_sees_all_logits_sink_together():
    new, old = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    expected = kl_divergence(Bernoulli(logits=old), Bernoulli(logits=new)).sum(-1)[UNMATCHED].mean()
    torch.testing.assert_close(class_score_distillation(new, old, UNMATCHED), expected)
    sunk = old - 3
    torch.testing.assert_close(class_distillation(sunk, old, UNMATCHED), torch.tensor(0.0), atol=1e-6, rtol=0)
    assert class_score_distillation(sunk, old, UNMATCHED) > 1


@pytest.mark.parametrize(("angle", "expected"), [(0.0, 0.0), (90.0, 1.0), (180.0, 2.0), (60.0, 0.5)])
def test_position_is_one_minus_the_cosine_at_any_length(angle, expected):
    radians = math.radians(angle)
    new = 7 * torch.tensor([[[math.cos(radians), math.sin(radians)]]])
    old = torch.tensor([[[0.2, 0.0]]])
    assert position_distillation(new, old, torch.ones(1, 1)).item() == pytest.approx(expected, abs=1e-6)


def test_position_equals_torchs_cosine():
    new, old = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    expected = (WEIGHTS * (1 - F.cosine_similarity(new, old, dim=-1))).sum() / WEIGHTS.sum()
    torch.testing.assert_close(position_distillation(new, old, WEIGHTS), expected)


def test_mask_bce_is_cross_entropy_minus_the_old_entropy():
    new, old = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(2, 3, 6, 6)
    points = uncertain_points(new, CANDIDATES, UNIFORM, KINDS.important)
    at_new, at_old = sample_each(new, points), sample_each(old, points)
    cross = F.binary_cross_entropy_with_logits(at_new, at_old.sigmoid(), reduction="none").mean(-1)
    entropy = Bernoulli(logits=at_old).entropy().mean(-1)
    torch.testing.assert_close(mask_bce_term(new, old), (WEIGHTS * (cross - entropy)).sum() / WEIGHTS.sum())
    # So the gradient is that of L_mask(new, old) in Eq. 4.
    expected = torch.autograd.grad((WEIGHTS * cross).sum() / WEIGHTS.sum(), new)
    torch.testing.assert_close(torch.autograd.grad(mask_bce_term(new, old), new), expected)


def test_eq_4_as_printed_is_the_mask_loss_with_the_old_mask_as_truth():
    """Point by point: binary cross-entropy of the soft truth, and dice with plain areas, smoothing 1."""
    new, old = torch.randn(2, 3, 6, 6, dtype=torch.float64), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    points = uncertain_points(new, CANDIDATES, UNIFORM, KINDS.important)
    at_new, at_old = sample_each(new, points).sigmoid(), sample_each(old, points).sigmoid()
    bce = dice = 0.0
    for image in range(2):
        for query in range(3):
            pairs = list(zip(at_new[image, query].tolist(), at_old[image, query].tolist(), strict=True))
            share = (WEIGHTS[image, query] / WEIGHTS.sum()).item()
            bce -= share * sum(o * math.log(n) + (1 - o) * math.log(1 - n) for n, o in pairs) / len(pairs)
            areas = sum(n + o for n, o in pairs)
            dice += share * (1 - (2 * sum(n * o for n, o in pairs) + 1) / (areas + 1))
    assert printed_bce_term(new, old).item() == pytest.approx(bce, rel=1e-6)
    assert printed_dice_term(new, old).item() == pytest.approx(dice, rel=1e-6)


def test_the_two_forms_of_eq_4_differ_where_nothing_was_forgotten():
    same = torch.randn(2, 3, 6, 6, requires_grad=True)
    printed, ours = printed_dice_term(same, same.detach()), mask_dice_term(same, same.detach())
    assert printed > 0.1 and abs(ours.item()) < 1e-6
    # As printed, masks that are harder than the old ones are better than the old ones themselves.
    harder = 3 * same
    assert printed_dice_term(harder, same.detach()) < printed
    assert mask_dice_term(harder, same.detach()) > ours + 0.01
    # The cross-entropies differ by a constant: the entropy of the old masks.
    old = torch.randn(2, 3, 6, 6)
    gradients = [torch.autograd.grad(term(same, old), same)[0] for term in (printed_bce_term, mask_bce_term)]
    torch.testing.assert_close(*gradients)


def test_soft_dice_by_hand_and_equal_to_the_usual_form_on_hard_masks():
    new, old = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])
    assert soft_dice(new, old).item() == pytest.approx(1 - (2 * 0.5 + 1) / (0.5 + 1 + 1))
    hard_new, hard_old = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 0.0])
    assert soft_dice(hard_new, hard_old).item() == pytest.approx(1 - (2 * 1 + 1) / (2 + 1 + 1))


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_weights_are_powers_of_old_scores_normalised_per_image(beta):
    logits = torch.randn(2, 3)
    powers = logits.sigmoid() ** beta * UNMATCHED
    torch.testing.assert_close(proposal_weights(logits, UNMATCHED, beta), powers / powers.sum(-1, keepdim=True))


def test_weights_survive_images_without_unmatched_queries_and_vanishing_scores():
    unmatched = torch.tensor([[False, False], [True, True]])
    weights = proposal_weights(torch.tensor([[1.0, 2.0], [-200.0, -200.0]]), unmatched, 2.0)
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.0], [0.5, 0.5]]))
    # The mean is over the one image that takes part.
    new, old = torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    expected = (1 - F.cosine_similarity(new[1], old[1], dim=-1)).mean()
    torch.testing.assert_close(position_distillation(new, old, weights), expected)


@every_term
def test_a_given_normaliser_replaces_the_sum_of_weights(shape, term, weights):
    new, old = torch.randn(shape), torch.randn(shape)
    total = weights.sum().item()
    torch.testing.assert_close(term(new, old, weights, 3 * total), term(new, old, weights) / 3)
