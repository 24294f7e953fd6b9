"""What Table 7's cross-entropy and the two directions of class distillation are in a step, one new class included."""

import pytest
import small_step as small
import torch
import torch.nn.functional as F
from torch.distributions import Categorical, kl_divergence

from comastre.methods.comastre import objective
from comastre.methods.comastre.step import StepInputs, prepare


def one_new_class(**class_decoder):
    """(model, old model, batch) of a step that brings a single class, as those of VOC 15-1 do."""
    model, old = small.grow(small.first_learner(**class_decoder))
    model.class_decoder.classifiers[-1] = torch.nn.Linear(32, 1, dtype=torch.float64)
    return model, old, small.batch(first_class=small.TASKS[0], num_classes=1)


def terms(model, old, batch, **classification):
    config = small.loss_config(classification={"loss": "cross_entropy"} | classification)
    return small.terms_of(model, old, *batch, config)


def class_logits(model, old, batch):
    """Logits (M, C) of all matched proposals, one after the other, and their labels (M,), found the slow way."""
    images, targets = batch
    points = small.PointSource(7, 3, slice(None), len(images), images.device)
    step = prepare(StepInputs(model, old, images, None, targets, points, small.loss_config()))
    output = model(images).recognition.class_logits
    logits, labels = [], []
    for image, count in enumerate(targets.counts):
        for mask in range(count):
            logits.append(output[image, step.assignment.query[-1, image, mask]])
            labels.append(targets.labels[image, mask])
    return torch.stack(logits), torch.stack(labels)


@pytest.mark.parametrize(("form", "learns"), [("binary", True), ("all_classes", True), ("new_classes", False)])
def test_with_one_new_class_all_but_the_softmax_over_new_classes_learn(form, learns):
    model, old, batch = one_new_class()
    loss = terms(model, old, batch, cross_entropy=form)["classification"]
    gradients = small.gradients_of(model, loss)
    of_classifier = gradients["class_decoder.classifiers.1.weight"].abs().max().item()
    if learns:
        assert loss.item() > 0.1 and of_classifier > 0.01
    else:  # a softmax over one class is 1, whatever the logit
        assert loss.item() == 0 and of_classifier == 0


def test_by_default_table_7_learns_a_single_class():
    model, old, batch = one_new_class()
    default = terms(model, old, batch)["classification"]
    assert default.item() == terms(model, old, batch, cross_entropy="binary")["classification"].item() > 0


@pytest.mark.parametrize("masked_attention", [False, True])
@pytest.mark.parametrize("single", [False, True])
@torch.no_grad()
def test_every_form_equals_torchs(single, masked_attention):
    if single:
        model, old, batch = one_new_class(masked_attention=masked_attention)
    else:
        (model, old), batch = small.later_learner(masked_attention=masked_attention), small.new_batch()
    logits, labels = class_logits(model, old, batch)
    num_old, num_new = small.TASKS[0], logits.shape[1] - small.TASKS[0]
    new, new_labels = logits[:, num_old:], labels - num_old
    truth = F.one_hot(new_labels, num_new).double()
    expected = {
        "binary": F.binary_cross_entropy_with_logits(new, truth, reduction="none").sum(-1).mean(),
        "new_classes": F.cross_entropy(new, new_labels),
        "all_classes": F.cross_entropy(logits, labels),
    }
    for form, value in expected.items():
        found = terms(model, old, batch, cross_entropy=form)["classification"]
        torch.testing.assert_close(found, value, msg=form)


def test_a_first_step_has_no_other_classes_for_its_softmax():
    model, batch = small.first_learner(), small.batch()
    of_new, of_all, binary = (
        terms(model, None, batch, cross_entropy=form)["classification"].item()
        for form in ("new_classes", "all_classes", "binary")
    )
    assert of_new == of_all != binary


def test_gamma_and_form_say_nothing_of_the_other_loss():
    (model, old), batch = small.later_learner(), small.new_batch()
    focal = terms(model, old, batch, loss="focal")["classification"].item()
    assert focal == terms(model, old, batch, loss="focal", cross_entropy="all_classes")["classification"].item()
    binary = terms(model, old, batch)["classification"].item()
    assert binary == terms(model, old, batch, gamma=5.0)["classification"].item()
    assert binary == pytest.approx(terms(model, old, batch, loss="focal", gamma=0.0)["classification"].item())


def test_old_tasks_are_decoded_for_a_softmax_over_all_classes_and_get_its_gradient():
    """Even where no term of distillation asks for them."""
    model, _, batch = one_new_class()
    for form, reached in (("all_classes", True), ("binary", False)):
        loss = terms(model, None, batch, cross_entropy=form)["classification"]
        gradients = small.gradients_of(model, loss)
        assert ("class_decoder.classifiers.0.weight" in gradients) == reached


@pytest.mark.parametrize("direction", ["new_old", "old_new"])
@torch.no_grad()
def test_class_distillation_has_the_direction_that_is_asked_for(direction, monkeypatch):
    (model, old), (images, targets) = small.later_learner(), small.new_batch()
    seen = []
    original = objective.class_distillation

    def watch(new_logits, old_logits, valid, *rest, **options):
        value = original(new_logits, old_logits, valid, *rest, **options)
        seen.append((new_logits[valid], old_logits[valid], value))
        return value

    monkeypatch.setattr(objective, "class_distillation", watch)
    config = small.loss_config(distillation={"class_direction": direction})
    found = small.terms_of(model, old, images, targets, config)
    assert [value.item() for *_, value in seen] == [
        found[f"{which}_class_kd"].item() for which in ("matched", "unmatched")
    ]
    for new, before, value in seen:
        new, before = Categorical(logits=new), Categorical(logits=before)
        expected = kl_divergence(new, before) if direction == "new_old" else kl_divergence(before, new)
        torch.testing.assert_close(value, expected.mean())
