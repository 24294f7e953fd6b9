"""Single past classes that the data labels too: classification over exactly the labelled classes."""

import pytest
import small_step as small
import torch

from comastre.data.targets import Targets
from comastre.losses.classification import focal_loss
from comastre.losses.points import PointSource
from comastre.methods.comastre.objective import compute_terms
from comastre.methods.comastre.step import StepInputs, prepare
from comastre.nets.outputs import take_queries
from comastre.stream.scenario import build_scenario

OLD, ALL = small.TASKS[0], sum(small.TASKS)


def labelled(annotated):
    """A batch whose labels are of the second task and of the annotated classes of the first."""
    images, targets = small.new_batch()
    allowed = torch.tensor([*annotated, *range(OLD, ALL)])
    labels = allowed[torch.arange(targets.labels.numel()).reshape(targets.labels.shape) % len(allowed)]
    return images, Targets(targets.masks, labels, targets.counts, targets.image_ids)


def terms_of(model, old, images, targets, config, annotated):
    points = PointSource(7, 3, slice(None), len(images), images.device)
    inputs = StepInputs(model, old, images, None, targets, points, config, annotated)
    return compute_terms(inputs, model.auxiliary_head)


def matched_logits(model, old, images, targets, config):
    """Logits (B, G, C) of all classes for the proposals that match a mask, and which of them (B, G) do."""
    points = PointSource(7, 3, slice(None), len(images), images.device)
    step = prepare(StepInputs(model, old, images, None, targets, points, config))
    query, valid = step.assignment.query[-1], step.assignment.valid[-1]
    final = step.new.stage_one.final
    masks = take_queries(final.mask_logits, query)
    logits = model.recognise(step.new.stage_one.pixels, take_queries(final.embeddings, query), masks).class_logits
    return logits, valid


def slow_classification(model, old, images, targets, config, annotated):
    """Eq. 2 proposal by proposal and class by class."""
    logits, valid = matched_logits(model, old, images, targets, config)
    total, count = 0.0, 0
    for image, row in valid.nonzero().tolist():
        count += 1
        for k in (*annotated, *range(OLD, ALL)):
            p = logits[image, row, k].sigmoid()
            right = p if k == int(targets.labels[image, row]) else 1 - p
            total += -((1 - right) ** config.classification.gamma) * right.log()
    return total / count


@pytest.mark.parametrize("annotated", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("distil", [True, False])
def test_the_loss_is_the_slow_one_over_the_labelled_classes(annotated, distil):
    model, old = small.later_learner(masked_attention=True)
    images, targets = labelled(annotated)
    assert (targets.labels[:, 0] < OLD).any()
    switches = dict.fromkeys(("unmatched_classes", "matched_classes"), distil)
    config = small.loss_config(distillation=switches)
    fast = terms_of(model, old, images, targets, config, annotated)["classification"]
    assert fast.item() == pytest.approx(slow_classification(model, old, images, targets, config, annotated).item())


def test_old_classes_without_annotations_get_no_gradient_from_labels():
    model, old = small.later_learner()
    images, targets = labelled((1,))
    config = small.loss_config(distillation=dict.fromkeys(("unmatched_classes", "matched_classes"), False))
    terms_of(model, old, images, targets, config, (1,))["classification"].backward()
    of_old = model.class_decoder.classifiers[0].weight.grad.abs().sum(dim=1)
    assert of_old[0] == 0 and of_old[1] > 0
    assert (model.class_decoder.classifiers[1].weight.grad.abs().sum(dim=1) > 0).all()


def test_all_past_classes_one_by_one_are_the_sequential_protocol():
    model, old = small.later_learner()
    images, targets = labelled((0, 1))
    config = small.loss_config()
    presence = [frozenset({1, 2}), frozenset(range(OLD + 1, ALL + 1))]
    sequential, overlapped = (
        build_scenario(presence, ALL, f"{OLD}-{ALL - OLD}", protocol).tasks[1].labelled_old
        for protocol in ("sequential", "overlapped")
    )
    assert (sequential, overlapped) == ((0, 1), ())
    found = terms_of(model, old, images, targets, config, sequential)["classification"]
    assert found.item() == pytest.approx(slow_classification(model, old, images, targets, config, (0, 1)).item())
    assert found.item() == pytest.approx(every_class_at_once(model, old, images, targets, config).item())


def every_class_at_once(model, old, images, targets, config):
    """Eq. 2 over all logits of the matched proposals as they are."""
    logits, valid = matched_logits(model, old, images, targets, config)
    return focal_loss(logits, targets.labels, valid, config.classification.gamma, valid.sum())


@pytest.mark.parametrize("form", ["binary", "new_classes"])
def test_cross_entropy_too_runs_over_the_labelled_classes_only(form):
    model, old = small.later_learner()
    images, targets = labelled((1,))
    config = small.loss_config(classification={"loss": "cross_entropy", "cross_entropy": form})
    before = terms_of(model, old, images, targets, config, (1,))["classification"]
    with torch.no_grad():
        model.class_decoder.classifiers[0].bias[0] += 5.0  # a class that the data does not label
    after = terms_of(model, old, images, targets, config, (1,))
    assert after["classification"].item() == before.item()
