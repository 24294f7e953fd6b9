"""What recognition learns of objects that nobody labelled: they are none of the step's classes."""

import copy

import pytest
import small_step as small
import torch
import torch.nn.functional as F

from comastre.config.settings import load_config
from comastre.data.targets import Targets
from comastre.losses.distillation import class_distillation
from comastre.losses.matching import on_labelled
from comastre.losses.points import PointSource
from comastre.methods.build import build_method, setup_of
from comastre.methods.comastre.config import InferenceConfig
from comastre.methods.comastre.inference import merge
from comastre.methods.comastre.objective import compute_terms
from comastre.methods.comastre.step import MOST_UNLABELLED, StepInputs, prepare
from comastre.methods.comastre.terms import total_loss
from comastre.nets.outputs import Proposals, take_queries
from comastre.training.parts import datasets, scenario_of

ON = {"unlabelled_negatives": True}


def inputs_of(model, old, images, targets, config, **more):
    points = PointSource(7, 3, slice(None), len(images), images.device)
    return StepInputs(model, old, images, None, targets, points, config, **more)


@pytest.mark.parametrize("later", [False, True])
def test_the_term_is_a_focal_loss_towards_no_class_of_sure_proposals_on_nothing_labelled(later):
    model, old = small.later_learner() if later else (small.first_learner(), None)
    images, targets = small.new_batch() if later else small.batch()
    config = small.loss_config(classification=ON)
    step = prepare(inputs_of(model, old, images, targets, config))
    terms = compute_terms(inputs_of(model, old, images, targets, config), getattr(model, "auxiliary_head", None))

    final, pixels = step.new.stage_one.final, step.new.stage_one.pixels
    matched = step.assignment.matched[-1]
    places = PointSource(7, 3, slice(None), len(images), images.device).draw(config.matching.points)
    on_objects = on_labelled(final, targets, places)
    everybody = torch.arange(small.QUERIES).expand(len(images), -1)
    masks = final.mask_logits_of(everybody) if model.config.class_decoder.masked_attention else None
    logits = model.recognise(pixels, take_queries(final.embeddings, everybody), masks).class_logits
    slow, counted = 0.0, 0
    for image in range(len(images)):
        for query in range(small.QUERIES):
            if matched[image, query] or on_objects[image, query]:
                continue
            counted += 1
            sure = torch.sigmoid(final.objectness_logits[image, query])
            for logit in logits[image, query, -model.tasks[-1] :]:
                p = torch.sigmoid(logit)
                slow += sure * p**2 * -F.logsigmoid(-logit)
    assert counted > 4 and small.QUERIES <= MOST_UNLABELLED
    assert terms["unlabelled_negatives"].item() == pytest.approx((slow / sum(targets.counts)).item(), rel=1e-9)


def test_what_is_matched_labelled_or_ignored_is_left_out():
    model = small.first_learner()
    images, targets = small.batch((2, 1, 0, 3))
    config = small.loss_config(classification=ON)
    ignored = torch.zeros(len(images), small.SIZE, small.SIZE, dtype=torch.bool)
    ignored[2] = True  # nothing is known of the image without labels
    step = prepare(inputs_of(model, None, images, targets, config, ignored=ignored))
    sureness = step.unlabelled.sureness
    matched = step.assignment.matched[-1].gather(1, step.unlabelled.query)
    assert not sureness[matched].any() and sureness[[0, 1, 3]].any() and not sureness.requires_grad
    inside = (step.new.stage_one.final.mask_logits > 0).any(dim=(2, 3)).gather(1, step.unlabelled.query)
    assert not sureness[2][inside[2]].any()
    everywhere = Targets(torch.ones_like(targets.masks), targets.labels, targets.counts, targets.image_ids)
    step = prepare(inputs_of(model, None, images, everywhere, config))
    inside = (step.new.stage_one.final.mask_logits > 0).any(dim=(2, 3)).gather(1, step.unlabelled.query)
    assert not step.unlabelled.sureness[inside].any()


def test_ignored_pixels_count_as_labelled():
    logits = torch.full((1, 2, 8, 8), -1.0)
    logits[0, 0, :4], logits[0, 1, 4:] = 1.0, 1.0
    targets = Targets(torch.zeros(1, 1, 8, 8, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.long), (0,), ("a",))
    proposals = Proposals(torch.zeros(1, 2, 4), logits, torch.zeros(1, 2))
    centres = (torch.arange(8) + 0.5) / 8
    points = torch.cartesian_prod(centres, centres).flip(-1)[None]
    ignored = torch.zeros(1, 8, 8, dtype=torch.bool)
    ignored[0, :3] = True  # three of the four rows of the first mask
    assert on_labelled(proposals, targets, points, ignored).tolist() == [[True, False]]
    assert on_labelled(proposals, targets, points).tolist() == [[False, False]]


def test_old_objects_teach_by_as_much_as_the_old_model_has_a_name_for_them():
    model, old = small.later_learner()
    images, targets = small.new_batch()
    config = small.loss_config(classification=ON, distillation={"matched_classes": False})
    step = prepare(inputs_of(model, old, images, targets, config))
    terms = compute_terms(inputs_of(model, old, images, targets, config), model.auxiliary_head)
    rows, valid = step.old_objects.query, step.old_objects.valid
    assert valid.any()

    def logits_of(learner):
        final = learner.stage_one.final
        masks = final.mask_logits_of(rows) if learner.model.config.class_decoder.masked_attention else None
        return learner.model.recognise(learner.stage_one.pixels, take_queries(final.embeddings, rows), masks)

    theirs, ours = logits_of(step.old).class_logits, logits_of(step.new).class_logits[..., : small.TASKS[0]]
    named = valid * theirs.sigmoid().amax(-1)
    slow = class_distillation(ours, theirs, named, valid.sum().double())
    assert terms["unmatched_class_kd"].item() == pytest.approx(slow.item(), rel=1e-9)


def test_a_batch_without_labels_has_negatives_that_weigh_no_more_than_in_others():
    model = small.first_learner()
    images, targets = small.batch((0, 0))
    terms = small.terms_of(model, None, images, targets, small.loss_config(classification=ON))
    most = len(images) * small.QUERIES * model.num_classes
    assert 0 < terms["unlabelled_negatives"].item() < 10 * most
    gradients = small.gradients_of(model, total_loss(terms, small.loss_config().weights))
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())


def test_off_is_the_paper():
    model, old = small.later_learner()
    images, targets = small.new_batch()
    off = small.terms_of(model, old, images, targets, small.loss_config())
    on = small.terms_of(copy.deepcopy(model), old, images, targets, small.loss_config(classification=ON))
    assert set(on) - set(off) == {"unlabelled_negatives"}
    for name in ("objectness", "mask_bce", "classification", "score_kd", "auxiliary", "matched_class_kd"):
        assert torch.allclose(on[name], off[name], rtol=1e-12), name


@pytest.mark.parametrize(("name", "later"), [("comastre", True), ("finetune", False)])
def test_plain_fine_tuning_has_them_in_its_first_step_only(name, later):
    config = load_config("demo", {"method": name, "data": {"train_images": 40, "val_images": 4}})
    method = build_method(name, setup_of(config))
    model, found = None, []
    for task in scenario_of(config, datasets(config)[0]).tasks[:2]:
        model = method.begin(task, model)
        found.append(method.loss_now.classification.unlabelled_negatives)
    assert found == [True, later]


# --- in a prediction -------------------------------------------------------------------------------------------------


def test_a_proposal_that_no_class_fits_is_background_and_recognised_as_nothing():
    logits = torch.full((2, 8, 8), -9.0)
    logits[0, :, :4], logits[1, :, 4:] = 9.0, 9.0
    objectness, scores = torch.tensor([0.9, 0.8]), torch.tensor([[0.2, 0.7], [0.4, 0.3]])
    usual = merge(logits, objectness, scores, (8, 8), InferenceConfig(alpha=0.5))
    assert usual.label_map[0].tolist() == [2] * 4 + [1] * 4
    strict = merge(logits, objectness, scores, (8, 8), InferenceConfig(alpha=0.5, class_threshold=0.5))
    assert strict.label_map[0].tolist() == [2] * 4 + [0] * 4
    assert strict.proposals is not None and strict.proposals.classes.tolist() == [1, -1]
    at_the_threshold = merge(logits, objectness, scores, (8, 8), InferenceConfig(alpha=0.5, class_threshold=0.4))
    assert torch.equal(at_the_threshold.label_map, usual.label_map)
    nothing = merge(logits, objectness, scores, (8, 8), InferenceConfig(alpha=0.5, class_threshold=0.8))
    assert not nothing.label_map.any() and nothing.segments == ()
    dense = InferenceConfig(alpha=0.5, class_threshold=0.8, every_pixel=True)
    assert torch.equal(merge(logits, objectness, scores, (8, 8), dense).label_map, usual.label_map)
