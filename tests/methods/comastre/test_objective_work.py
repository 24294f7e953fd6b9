"""A term that is off costs nothing: neither its own work nor a pass of a model that only it needs."""

from collections import Counter

import pytest
import small_step as small
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from comastre.methods.comastre import objective
from comastre.methods.comastre.config import DistillationConfig
from comastre.methods.comastre.terms import TERMS, term_weights, total_loss

NONE = DistillationConfig.none().model_dump() | {"alpha": 0.2}
# Term: (switch that turns it on among the distillation's, weight, function that does its work).
DISTILLATION = {
    "score_kd": ("score", "score_kd", "score_distillation"),
    "mask_kd_bce": ("mask", "mask_kd", "mask_distillation"),
    "mask_kd_dice": ("mask", "mask_kd", "mask_distillation"),
    "position_kd": ("position", "position_kd", "position_distillation"),
    "unmatched_class_kd": ("unmatched_classes", "unmatched_class_kd", "class_distillation"),
    "matched_class_kd": ("matched_classes", "matched_class_kd", "class_distillation"),
    "auxiliary": ("auxiliary", "auxiliary", "auxiliary_loss"),
}
FIRST = {"objectness", "mask_bce", "mask_dice", "classification"}
FUNCTIONS = (
    "objectness_loss",
    "matched_mask_losses",
    "focal_loss",
    "cross_entropy_loss",
    "negatives_loss",
    "across_tasks_loss",
    "score_distillation",
    "mask_distillation",
    "position_distillation",
    "class_distillation",
    "auxiliary_loss",
    "proposal_weights",
)


class Watch:
    """Counts what a step runs, and notes how stage 2 was asked."""

    def __init__(self, monkeypatch, model, old):
        self.calls = Counter()
        self.first_tasks = []
        self.rows_of_old = []
        self.old_had_gradients = False
        for name in FUNCTIONS:
            self.count(monkeypatch, objective, name, name)
        for prefix, learner in (("new", model), ("old", old)):
            for verb in ("propose", "recognise"):
                self.count(monkeypatch, learner, verb, f"{prefix}.{verb}")

    def count(self, monkeypatch, owner, attribute, name):
        original = getattr(owner, attribute)

        def counted(*args, **kwargs):
            self.calls[name] += 1
            if name == "new.recognise":
                self.first_tasks.append(args[3])
            if name == "old.recognise":
                self.rows_of_old.append(args[1].shape[1])
            self.old_had_gradients |= name.startswith("old.") and torch.is_grad_enabled()
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, attribute, counted)


def run(monkeypatch, **changes):
    """(the terms, what was run) of a later step."""
    model, old = small.later_learner(torch.float32)
    images, targets = small.new_batch(dtype=torch.float32)
    watch = Watch(monkeypatch, model, old)
    config = small.loss_config(**changes)
    terms = small.terms_of(model, old, images, targets, config)
    return terms, watch


def test_everything_on_runs_each_model_once(monkeypatch):
    terms, watch = run(monkeypatch)
    assert list(terms) == [term.name for term in TERMS if term.name in FIRST | set(DISTILLATION)]
    assert len(terms) == len(FIRST | set(DISTILLATION))
    assert {name: watch.calls[name] for name in ("new.propose", "new.recognise", "old.propose", "old.recognise")} == {
        "new.propose": 1,
        "new.recognise": 1,
        "old.propose": 1,
        "old.recognise": 1,
    }
    assert not watch.old_had_gradients
    assert watch.first_tasks == [0]


@pytest.mark.parametrize("term", DISTILLATION)
@pytest.mark.parametrize("by", ["switch", "weight"])
def test_a_term_that_is_off_does_no_work(monkeypatch, term, by):
    switch, weight, function = DISTILLATION[term]
    terms, watch = run(
        monkeypatch, **({"distillation": {switch: False}} if by == "switch" else {"weights": {weight: 0}})
    )
    same_work = {name for name, (other, _, _) in DISTILLATION.items() if other == switch}
    assert set(terms) == FIRST | set(DISTILLATION) - same_work
    # The two class distillations share their function; the others have one of their own.
    assert watch.calls[function] == (1 if function == "class_distillation" else 0)


@pytest.mark.parametrize("term", DISTILLATION)
def test_a_term_alone_runs_only_what_it_needs(monkeypatch, term):
    switch, _, function = DISTILLATION[term]
    terms, watch = run(monkeypatch, distillation=NONE | {switch: True})
    assert set(terms) - FIRST == {name for name, (other, _, _) in DISTILLATION.items() if other == switch}
    functions = {name for _, _, name in DISTILLATION.values()}
    assert {name: watch.calls[name] for name in functions if watch.calls[name]} == {function: 1}
    assert watch.calls["old.propose"] == 1
    classes = "class_kd" in term
    assert watch.calls["old.recognise"] == classes
    # Old tasks of the new model are decoded only where their logits are compared.
    assert watch.first_tasks == [0 if classes else 1]
    assert watch.calls["proposal_weights"] == (switch in ("mask", "position"))


def test_the_old_class_decoder_reads_only_what_is_compared(monkeypatch):
    rows = {}
    for switches in (("matched_classes",), ("unmatched_classes",), ("matched_classes", "unmatched_classes")):
        with monkeypatch.context() as patch:
            _, watch = run(patch, distillation=NONE | dict.fromkeys(switches, True))
        rows[switches] = watch.rows_of_old
    (matched,), (unmatched,), (both,) = rows.values()
    assert matched == 3  # the most masks of an image
    assert both == matched + unmatched and unmatched > 0


def test_without_distillation_the_old_model_sleeps(monkeypatch):
    terms, watch = run(monkeypatch, distillation=NONE)
    assert set(terms) == FIRST
    assert watch.calls["old.propose"] == watch.calls["old.recognise"] == 0
    assert watch.first_tasks == [1]


@pytest.mark.parametrize(
    ("weight", "gone", "function"),
    [
        ("objectness", {"objectness", "score_kd"}, "objectness_loss"),
        ("classification", {"classification", "unmatched_class_kd", "matched_class_kd"}, "focal_loss"),
    ],
)
def test_a_weight_of_zero_takes_what_mirrors_it_along(monkeypatch, weight, gone, function):
    terms, watch = run(monkeypatch, weights={weight: 0})
    assert set(terms) == (FIRST | set(DISTILLATION)) - gone
    assert watch.calls[function] == 0


def test_masks_off(monkeypatch):
    terms, watch = run(monkeypatch, weights={"mask_bce": 0, "mask_dice": 0})
    assert not any(name.startswith("mask") for name in terms)
    assert watch.calls["matched_mask_losses"] == watch.calls["mask_distillation"] == 0


def test_one_of_the_two_mask_losses(monkeypatch):
    terms, _ = run(monkeypatch, weights={"mask_dice": 0})
    assert {name for name in terms if name.startswith("mask")} == {"mask_bce", "mask_kd_bce"}


def test_no_recognition_no_class_decoder(monkeypatch):
    terms, watch = run(monkeypatch, weights={"classification": 0, "auxiliary": 0})
    assert watch.calls["new.recognise"] == watch.calls["old.recognise"] == 0
    assert "position_kd" in terms


def test_negatives_take_the_place_of_matched_distillation(monkeypatch):
    terms, watch = run(monkeypatch, classification={"negatives_for_old": True})
    assert "negatives_for_old" in terms and "matched_class_kd" not in terms
    assert "negatives_for_new" not in terms
    assert watch.calls["negatives_loss"] == 1


def test_negatives_for_new_alone_need_the_old_proposals_only(monkeypatch):
    terms, watch = run(monkeypatch, classification={"negatives_for_new": True}, distillation=NONE)
    assert set(terms) == FIRST | {"negatives_for_new"}
    assert watch.calls["old.propose"] == 1 and watch.calls["old.recognise"] == 0
    assert watch.first_tasks == [1]


def test_across_tasks_alone_decodes_old_objects_with_the_old_model_once(monkeypatch):
    terms, watch = run(monkeypatch, classification={"across_tasks": True}, distillation=NONE)
    assert set(terms) == FIRST | {"across_tasks"}
    assert watch.calls["old.propose"] == watch.calls["old.recognise"] == watch.calls["across_tasks_loss"] == 1
    assert watch.calls["class_distillation"] == 0
    assert watch.first_tasks == [0]


def test_negatives_for_old_need_no_old_model():
    model, _ = small.later_learner(torch.float32)
    images, targets = small.new_batch(dtype=torch.float32)
    config = small.loss_config(classification={"negatives_for_old": True})
    terms = small.terms_of(model, None, images, targets, config)
    assert set(terms) == FIRST | {"negatives_for_old"}


# A distillation term carries the weight of the loss that it mirrors, so that weight acts on both.
ACTS_ON = {
    "objectness": {"objectness", "score_kd"},
    "no_object": set(),  # acts inside the objectness loss
    "mask_bce": {"mask_bce", "mask_kd_bce"},
    "mask_dice": {"mask_dice", "mask_kd_dice"},
    "classification": {
        *("classification", "unmatched_class_kd", "matched_class_kd"),
        *("negatives_for_new", "negatives_for_old", "across_tasks", "unlabelled_negatives"),
    },
    "score_kd": {"score_kd"},
    "mask_kd": {"mask_kd_bce", "mask_kd_dice"},
    "position_kd": {"position_kd"},
    "unmatched_class_kd": {"unmatched_class_kd"},
    "matched_class_kd": {"matched_class_kd"},
    "auxiliary": {"auxiliary"},
    "negatives_for_new": {"negatives_for_new"},
    "negatives_for_old": {"negatives_for_old"},
    "across_tasks": {"across_tasks"},
    "unlabelled_negatives": {"unlabelled_negatives"},
}


def test_every_weight_acts_on_its_own_term():
    weights = small.loss_config().weights
    assert weights.model_dump().keys() == ACTS_ON.keys()
    usual = term_weights(weights)
    for name, value in weights.model_dump().items():
        changed = term_weights(weights.model_copy(update={name: 7 * value}))
        factors = {term: 7 if term in ACTS_ON[name] else 1 for term in usual}
        assert changed == pytest.approx({term: factors[term] * usual[term] for term in usual}), name


# --- the device is asked once ----------------------------------------------------------------------------------------


class CountQuestions(TorchDispatchMode):
    """Counts operations that bring a value to the host. Bookkeeping on host tensors (bool, small) is not counted."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::")
        if name.startswith(("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")):
            self.asked.append((name, args[0].dtype))
        return func(*args, **(kwargs or {}))


def test_a_step_copies_to_the_host_once(monkeypatch):
    model, old = small.later_learner(torch.float32)
    images, targets = small.new_batch(dtype=torch.float32)
    copies = []
    to_host = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: copies.append(tensor.shape) or to_host(tensor))
    config = small.loss_config(classification={"negatives_for_new": True})
    with CountQuestions() as questions:
        terms = small.terms_of(model, old, images, targets, config)
        total = total_loss(terms, config.weights)
        total.backward()
    assert len(copies) == 1
    # Only sums of the host's own booleans (who is matched) are read; a float would come from the device.
    assert all(dtype == torch.int64 for _, dtype in questions.asked), questions.asked
