"""Old proposals on labelled objects teach nothing: what the old model says of a new object is wrong."""

import pytest
import small_step as small
import torch

from comastre.data.targets import Targets
from comastre.losses.distillation import bernoulli_divergence
from comastre.losses.matching import on_labelled
from comastre.losses.points import PointSource
from comastre.methods.comastre.objective import compute_terms
from comastre.methods.comastre.step import StepInputs, prepare
from comastre.nets.outputs import Proposals

SPARING = {"spare_labelled": True}


def points_for(images):
    return PointSource(7, 3, slice(None), len(images), images.device)


def pixel_centres(side, images):
    centres = (torch.arange(side) + 0.5) / side
    rows, columns = torch.meshgrid(centres, centres, indexing="ij")
    return torch.stack((columns, rows), dim=-1).reshape(1, -1, 2).expand(images, -1, -1)


def test_more_than_half_of_a_mask_must_lie_on_ground_truth():
    generator = torch.Generator().manual_seed(0)
    side = 16
    logits = torch.randn(3, 5, side, side, generator=generator) + torch.linspace(-3, 2, 5)[:, None, None]
    logits[0, 0] = -1.0  # an empty mask lies nowhere
    masks = torch.zeros(3, 2, side, side, dtype=torch.bool)
    masks[0, 0, :9], masks[0, 1, 9:, :4], masks[1, 0, :, :8] = True, True, True
    targets = Targets(masks, torch.zeros(3, 2, dtype=torch.long), (2, 1, 0), ("a", "b", "c"))
    proposals = Proposals(torch.zeros(3, 5, 4), logits, torch.zeros(3, 5))
    found = on_labelled(proposals, targets, pixel_centres(side, 3))
    for image in range(3):
        for query in range(5):
            inside = labelled = 0
            for row in range(side):
                for column in range(side):
                    if logits[image, query, row, column] > 0:
                        inside += 1
                        labelled += bool(masks[image, :, row, column].any())
            assert bool(found[image, query]) == (labelled > inside / 2)
    assert not found[0, 0] and not found[2].any() and found[0].any()


def test_nothing_is_distilled_from_spared_queries():
    model, old = small.later_learner()
    images, targets = small.new_batch()
    everywhere = targets.valid[..., None, None].expand_as(targets.masks)
    targets = Targets(everywhere, targets.labels, targets.counts, targets.image_ids)
    config = small.loss_config(distillation={"alpha": 0.0, **SPARING})
    step = prepare(StepInputs(model, old, images, None, targets, points_for(images), config))
    has_masks = torch.tensor(targets.counts) > 0
    assert torch.equal(step.spared, step.spared & has_masks[:, None]) and step.spared.any()
    # Everywhere is ground truth, so only images without any, and masks that are nowhere, may have old objects.
    rows = torch.arange(len(images))[:, None].expand_as(step.old_objects.query)
    kept = step.old_objects.valid
    assert not step.spared[rows[kept], step.old_objects.query[kept]].any()

    terms = compute_terms(
        StepInputs(model, old, images, None, targets, points_for(images), config), model.auxiliary_head
    )
    unmatched = ~step.assignment.matched[-1]
    new_logits, old_logits = (each.stage_one.final.objectness_logits for each in (step.new, step.old))
    divergence = bernoulli_divergence(new_logits, old_logits)
    slow = divergence[unmatched & ~step.spared].sum() / unmatched.sum()
    assert terms["score_kd"].item() == pytest.approx(slow.item(), rel=1e-6)


def test_off_is_the_paper():
    model, old = small.later_learner()
    images, targets = small.new_batch()
    step = prepare(StepInputs(model, old, images, None, targets, points_for(images), small.loss_config()))
    assert step.spared is None
