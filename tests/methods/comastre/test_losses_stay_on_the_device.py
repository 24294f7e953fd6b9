"""No loss asks the device for a value: each such question would stall a GPU."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from comastre.config.sections import MaskLossConfig, MatchingConfig
from comastre.data.targets import Targets
from comastre.losses.classification import auxiliary_loss, cross_entropy_loss, focal_loss, negatives_loss
from comastre.losses.distillation import (
    class_distillation,
    mask_distillation,
    position_distillation,
    proposal_weights,
    score_distillation,
)
from comastre.losses.masks import matched_mask_losses
from comastre.losses.matching import assign, matching_costs
from comastre.losses.objectness import objectness_loss
from comastre.nets.outputs import Proposals

ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "repeat_interleave.Tensor")


class RefuseQuestions(TorchDispatchMode):
    """Raises where an operation would need a device's value on the host, also when tests run on a CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::")
        if name.startswith(ASKING):
            raise AssertionError(f"{name} reads a tensor on the host")
        if name.startswith(("index.", "index_put")) and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            raise AssertionError(f"{name} with a mask has a size that only the device knows")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "question",
    [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: bool(x.any()), lambda x: (x > 0).nonzero()],
)
def test_the_guard_refuses(question):
    values = torch.randn(4)
    with RefuseQuestions(), pytest.raises(AssertionError):
        question(values)


def test_all_losses_stay_on_the_device():
    masks = [torch.rand(count, 16, 16) > 0.5 for count in (2, 0)]
    targets = Targets.stack(masks, [torch.zeros(count, dtype=torch.long) for count in (2, 0)], ["a", "b"])
    config, points = MaskLossConfig(points=16), torch.rand(2, 48, 2)
    layers = [
        Proposals(torch.randn(2, 3, 4), torch.randn(2, 3, 8, 8, requires_grad=True), torch.randn(2, 3))
        for _ in range(2)
    ]
    old, new = layers
    labels, logits = torch.zeros(2, 3, dtype=torch.long), torch.randn(2, 3, 5, requires_grad=True)
    with RefuseQuestions():
        assignment = assign(matching_costs(layers, targets, points, MatchingConfig(objectness_cost=2.0)), targets)
        matched = assignment.matched
        chosen = ~matched[-1]
        terms = list(matched_mask_losses(layers, targets, assignment, points, points[:, :4], config, 2.0))
        terms.append(objectness_loss(torch.stack([layer.objectness_logits for layer in layers]), matched, 0.1))
        terms.append(focal_loss(logits, labels, chosen, 2.0))
        terms.append(cross_entropy_loss(logits, labels, chosen))
        terms.append(negatives_loss(logits, chosen, 2.0))
        terms.append(auxiliary_loss(logits, labels, chosen))
        weights = proposal_weights(old.objectness_logits, chosen, 2.0)
        terms.append(score_distillation(new.objectness_logits, old.objectness_logits, chosen))
        terms.extend(mask_distillation(new.mask_logits, old.mask_logits, weights, points, points[:, :4], config))
        terms.append(position_distillation(new.embeddings, old.embeddings, weights))
        terms.append(class_distillation(logits, logits.detach() + 1, chosen))
        sum(terms).backward()
    assert len(terms) == 12 and torch.stack(terms).isfinite().all() and logits.grad is not None
