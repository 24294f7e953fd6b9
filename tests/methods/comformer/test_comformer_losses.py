"""CoMFormer's terms: worked examples to their printed digits, slow versions, and what happens at the edges."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.config.sections import MaskLossConfig
from comastre.data.targets import Targets
from comastre.losses.masks import matched_softmax_mask_losses
from comastre.losses.matching import Assignment, softmax_mask_costs
from comastre.losses.pod import pod_distance, pooled
from comastre.losses.query_classes import class_log_probabilities, query_focal_loss
from comastre.losses.query_distillation import query_distillation
from comastre.methods.comformer.config import ComformerConfig, PseudoLabelConfig
from comastre.methods.comformer.pseudo_labels import with_pseudo_labels
from comastre.methods.mask2former.model import Prediction
from comastre.nets.outputs import QueryMasks

# Channels [old, new, no object].
LOGITS = torch.tensor([[[1.0, 0.0, 2.0]]])


def printed(value: Tensor) -> float:
    return round(value.item(), 6)


def test_distillation_of_the_worked_example() -> None:
    first, second = torch.tensor([[[1.0, 1.0]]]), torch.tensor([[[-1.0, 2.0]]])
    assert printed(query_distillation(LOGITS, first)) == 0.150995
    assert printed(query_distillation(LOGITS, second)) == 0.143259
    both, twice = torch.cat((first, second), dim=1), LOGITS.expand(1, 2, 3)
    assert printed(query_distillation(twice, both)) == 0.147127
    assert printed(query_distillation(twice, both, gamma=2.0)) == 0.150926
    weights = (1 - both.softmax(-1)[..., -1]).square()
    assert [round(value, 6) for value in weights[0].tolist()] == [0.25, 0.002249]


def test_distillation_is_zero_where_nothing_was_forgotten() -> None:
    """New classes that take their probability from "no object" alone cost nothing."""
    old = torch.tensor([[[0.2, 0.3, 0.5]]]).log()
    new = torch.tensor([[[0.2, 0.3, 0.1, 0.15, 0.25]]]).log().requires_grad_()
    loss = query_distillation(new, old, 2.0)
    assert loss.item() == pytest.approx(0.0, abs=1e-7)
    loss.backward()
    assert new.grad is not None and new.grad.abs().max() < 1e-6


def test_focal_loss_of_the_worked_example() -> None:
    labels = torch.tensor([[[1]]])
    logs = class_log_probabilities(LOGITS[None])
    assert printed(-logs[0, 0, 0, 1]) == 2.407606
    assert printed(query_focal_loss(logs, labels, 5.0, 1.0, 1.0)) == 10.954239


def test_a_query_without_a_mask_may_be_of_a_class_that_is_not_labelled() -> None:
    hidden = torch.tensor([True, False, False])
    logs = class_log_probabilities(LOGITS, hidden)
    # MiB's unbiased cross-entropy with "no object" as background: -log of its probability and that of the old class.
    assert printed(-logs[0, 0, 2]) == printed(-torch.log(1 - LOGITS[0, 0].softmax(-1)[1]))
    torch.testing.assert_close(logs[0, 0, :2], LOGITS[0, 0].log_softmax(-1)[:2])


def test_matching_of_the_worked_example() -> None:
    """A class with 0.6 and a mask whose dice score is 0.8: minus the harmonic mean."""
    masks = torch.tensor([[[[3.0, -3.0]], [[-3.0, 3.0]]]])  # (1, 2, 1, 2)
    targets = Targets.stack([torch.tensor([[[True, False]]])], [torch.tensor([0])], ["image"])
    points = torch.tensor([[[0.25, 0.5], [0.75, 0.5]]])
    scores = torch.full((1, 1, 2, 1), 0.6)
    costs = softmax_mask_costs([QueryMasks(torch.zeros(1, 2, 1), masks)], scores, targets, points)
    inside = 1 / (1 + math.exp(-6.0))
    for query, at_target in enumerate((inside, 1 - inside)):
        dice = (2 * at_target + 1) / (1 + 1 + 1)  # a softmax over two queries: both areas are 1
        assert costs[0, 0, query, 0].item() == pytest.approx(-2 * 0.6 * dice / (0.6 + dice), rel=1e-5)
    assert round(-2 * 0.6 * 0.8 / (0.6 + 0.8), 6) == -0.685714


def test_softmax_mask_losses_equal_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 2, 5, 8, 8, generator=generator)  # (K, B, N, h, w)
    targets = Targets.stack(
        [torch.rand(count, 16, 16, generator=generator) > 0.5 for count in (3, 1)],
        [torch.arange(count) for count in (3, 1)],
        ["one", "two"],
    )
    query = torch.stack([torch.tensor([[4, 0, 2], [1, 0, 0]]), torch.tensor([[0, 1, 2], [3, 0, 0]])])
    valid = targets.valid.expand(2, -1, -1)
    assignment = Assignment(query, valid, 5, torch.where(valid, query, -1))
    uniform = torch.rand(2, 30, 2, generator=generator)
    layers = [QueryMasks(torch.zeros(2, 5, 1), each) for each in logits]
    config = MaskLossConfig(points=30, importance=0.0)
    entropy, dice = matched_softmax_mask_losses(layers, targets, assignment, uniform[:, :0], uniform, config, 4.0)

    def read(maps: Tensor, points: Tensor) -> Tensor:
        grid = (2 * points - 1)[None, None]
        return F.grid_sample(maps[None, None].float(), grid, align_corners=False)[0, 0, 0]

    expected = [0.0, 0.0]
    for layer in range(2):
        for image, count in enumerate(targets.counts):
            logs = logits[layer, image].log_softmax(0)
            for mask in range(count):
                own = logs[query[layer, image, mask]]
                truth = read(targets.masks[image, mask], uniform[image])
                expected[0] += -(read(own, uniform[image]) * truth).mean().item() / 4
                soft = read(own.exp(), uniform[image])
                share = (2 * (soft * truth).sum() + 1) / (soft.sum() + truth.sum() + 1)
                expected[1] += (1 - share).item() / 4
    assert entropy.item() == pytest.approx(expected[0], rel=1e-5)
    assert dice.item() == pytest.approx(expected[1], rel=1e-5)


# --- pooled features -------------------------------------------------------------------------------------------------

NEW = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], dtype=torch.float64)
OLD = torch.tensor([[[[1.0, 2.0], [3.0, 3.0]]]], dtype=torch.float64)


def test_pod_of_the_worked_example() -> None:
    assert pooled(NEW.square(), (1,)).tolist() == [[2.5, 12.5, 5.0, 10.0]]
    assert pooled(OLD.square(), (1,)).tolist() == [[2.5, 9.0, 5.0, 6.5]]
    assert printed(pod_distance(NEW, OLD, (1,), squared=True)[0]) == 4.949747
    assert printed(pod_distance(NEW, OLD, (1, 2), squared=True)[0]) == 11.067972
    # Means of rows and columns differ by one half each, and the fourth pixel by 1, twice.
    assert printed(pod_distance(NEW, OLD, (1, 2))[0]) == round(math.sqrt(0.25 + 0.25 + 1 + 1), 6)


def test_pod_has_a_gradient_where_nothing_has_changed() -> None:
    same = OLD.clone().requires_grad_()
    distance = pod_distance(same, OLD).sum()
    distance.backward()
    assert distance.item() < 1e-10
    assert same.grad is not None and torch.equal(same.grad, torch.zeros_like(same))


# --- labels of the old model -----------------------------------------------------------------------------------------


def slow_pseudo_labels(
    logits: Tensor, classes: Tensor, truth: Tensor, ignored: Tensor, config: PseudoLabelConfig, softmax: bool
) -> list[tuple[int, Tensor]]:
    """One query after the other, pixel by pixel; masks (N, H, W) at the size of the image."""
    masks = logits.softmax(0) if softmax else logits.sigmoid()
    probabilities = classes.softmax(-1)
    candidates = [
        query
        for query in range(len(masks))
        if probabilities[query].argmax() < classes.shape[1] - 1 and probabilities[query].max() > config.score
    ]
    height, width = truth.shape[-2:]
    left = {query: torch.zeros(height, width, dtype=torch.bool) for query in candidates}
    for row in range(height):
        for column in range(width):
            if not candidates or truth[:, row, column].any() or ignored[row, column]:
                continue
            best = max(candidates, key=lambda query: (probabilities[query].max() * masks[query, row, column]).item())
            left[best][row, column] = True
    found = []
    for query in candidates:
        inside = masks[query] >= config.mask_threshold
        labelled = left[query] & inside
        if labelled.any() and left[query].sum() / inside.sum() > config.overlap:
            found.append((int(probabilities[query].argmax()), labelled))
    return found


@pytest.mark.parametrize("softmax", [False, True])
def test_pseudo_labels_equal_a_loop_over_pixels(softmax: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(3, 6, 8, 8, generator=generator)
    classes = 3 * torch.randn(3, 6, 4, generator=generator)  # three old classes and "no object"
    classes[2, :, -1] = 20.0  # nothing to see
    truth = [torch.rand(count, 8, 8, generator=generator) > 0.8 for count in (2, 0, 1)]
    targets = Targets.stack(truth, [torch.full((len(each),), 3) for each in truth], ["one", "two", "three"])
    labels = torch.where(torch.rand(3, 8, 8, generator=generator) > 0.9, 255, 0)
    config = PseudoLabelConfig(overlap=0.3)
    old = Prediction((), (QueryMasks(torch.zeros(3, 6, 1), logits),), classes[None])
    found = with_pseudo_labels(targets, old, labels, config, softmax)
    total = 0
    for image in range(3):
        expected = slow_pseudo_labels(
            logits[image], classes[image], truth[image], labels[image] == 255, config, softmax
        )
        before = targets.counts[image]
        assert found.counts[image] == before + len(expected)
        assert found.labels[image, before : found.counts[image]].tolist() == [label for label, _ in expected]
        assert torch.equal(found.masks[image, :before], targets.masks[image, :before])
        for place, (_, mask) in enumerate(expected, start=before):
            assert torch.equal(found.masks[image, place], mask)
        total += len(expected)
    assert total > 3 and found.counts[2] == 1


def test_defaults_are_those_of_the_released_commands() -> None:
    config = ComformerConfig()
    assert config.mask_decoder.softmax_masks and config.mask_decoder.num_queries == 100
    assert (config.classification.loss, config.classification.alpha, config.classification.gamma) == ("focal", 5.0, 1.0)
    weights = config.weights.model_dump()
    assert weights == {
        "classification": 2.0,
        "mask_bce": 5.0,
        "mask_dice": 5.0,
        "distillation": 10.0,
        "unbiased_distillation": 200.0,
        "pod": 0.001,
    }
    # A section given in part keeps the rest.
    partly = ComformerConfig.model_validate({"mask_decoder": {"layers": 2}})
    assert partly.mask_decoder.softmax_masks


def test_what_remembers_an_old_model_does_not_count_for_a_shared_first_step() -> None:
    section = ComformerConfig()
    own = [f"pseudo_labels.{name}" for name in type(section.pseudo_labels).model_fields]
    own += ["distillation.gamma", "weights.distillation", "weights.unbiased_distillation", "weights.pod"]
    assert not any(section.shapes_first_step(field, from_init=False) for field in own)
    for field in ("weights.mask_dice", "classification.gamma", "masks.points", "mask_decoder.layers"):
        assert section.shapes_first_step(field, from_init=False)
