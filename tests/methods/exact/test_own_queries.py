"""Queries of a step's own: where they begin, what is trained, and what nobody can move."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from test_exact import Stream, config_of, rename_half
from torch import Tensor

from comastre.config import methods
from comastre.data.targets import Targets
from comastre.errors import UserError
from comastre.losses.points import PointSource
from comastre.methods.exact.inference import ask_statistics, name_proposals
from comastre.methods.exact.method import _of_new_classes
from comastre.methods.exact.model import ExactSegmenter
from comastre.methods.exact.own_queries import OwnQueries
from comastre.methods.testing import check_method
from comastre.stream.loading import training_batches

FEW_POINTS: dict[str, Any] = {"matching": {"points": 64}, "masks": {"points": 64}}
NUMBER = 4


@pytest.fixture(scope="module")
def stream() -> Stream:
    return Stream(config_of(comastre={"own_queries": {"number": NUMBER}, **FEW_POINTS}, training={"batch_size": 4}))


@pytest.fixture(scope="module")
def first(stream: Stream) -> ExactSegmenter:
    return stream.first()


def grown(stream: Stream, first: ExactSegmenter) -> ExactSegmenter:
    model = stream.method.begin(stream.scenario.tasks[1], copy.deepcopy(first))
    assert isinstance(model, ExactSegmenter)
    return model


def train(stream: Stream, model: ExactSegmenter, iterations: int, rate: float = 1e-2) -> list[float]:
    task = stream.scenario.tasks[1]
    optimiser = stream.method.optimiser(model, 1)
    model.train()
    totals = []
    for iteration, parts in enumerate(training_batches(stream.dataset, task, stream.config, stop=iterations)):
        for group in optimiser.param_groups:
            group["lr"] = rate
        points = PointSource(0, iteration, parts[0].rows, parts[0].global_batch, torch.device("cpu"))
        total = stream.method.total(stream.method.losses(model, parts[0], points))
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
        totals.append(float(total.detach()))
    return totals


def test_they_begin_as_the_trained_queries(stream: Stream, first: ExactSegmenter) -> None:
    """All of them together would propose what those propose; fewer of them see only each other."""
    all_of_them = Stream(config_of(comastre={"own_queries": {"number": 8}}))
    model = all_of_them.method.begin(all_of_them.scenario.tasks[1], all_of_them.first())
    assert isinstance(model, ExactSegmenter)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        stage_one = model.propose(images)
        (own,) = model.newest.propose(model.mask_decoder, stage_one.pixels, every_layer=False)
    torch.testing.assert_close(own.mask_logits, stage_one.final.mask_logits)
    torch.testing.assert_close(own.objectness_logits, stage_one.final.objectness_logits)
    assert len(grown(stream, first).newest.features) == NUMBER


def test_they_alone_are_trained_and_learn(stream: Stream, first: ExactSegmenter) -> None:
    model = grown(stream, first)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    totals = train(stream, model, 12)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if name.startswith("own.0.")}
    assert sum(totals[-4:]) < 0.9 * sum(totals[:4])
    stream.method.gather(model, stream.images(stream.scenario.tasks[1]))
    stream.method.after_training(stream.scenario.tasks[1], model)
    (sentence,) = stream.method.remarks(seconds=61.0)
    weights = sum(parameter.numel() for parameter in model.newest.parameters())
    assert sentence.startswith(f"{NUMBER} queries more, {weights:,} weights") and sentence.endswith("in 1:01")


def test_older_queries_of_their_kind_are_sealed(stream: Stream, first: ExactSegmenter) -> None:
    model = copy.deepcopy(first)
    model = stream.later(stream.scenario.tasks[1], model)
    second = stream.method.begin(stream.scenario.tasks[2], model)
    assert isinstance(second, ExactSegmenter)
    with torch.no_grad():
        second.newest.features += 1  # what a step trains may move
    second.refuse_changed(second.num_classes - second.tasks[-1])
    with torch.no_grad():
        second.own[0].features[0, 0] += 1e-3  # type: ignore[union-attr, index]
    with pytest.raises(UserError, match="not those that were sealed"):
        stream.method.after_training(stream.scenario.tasks[2], second)


def test_their_finds_count_only_where_the_statistics_name_a_class_of_theirs(
    stream: Stream, first: ExactSegmenter
) -> None:
    model = copy.deepcopy(first)
    for task in stream.scenario.tasks[1:3]:
        model = stream.later(task, model)
    rename_half(model, images := torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8))
    taken = []
    with torch.no_grad():
        stage_one = model.propose(images, every_layer=False)
        named = name_proposals(model, stage_one)
        for number, own in enumerate(model.own):
            assert isinstance(own, OwnQueries)
            (proposals,) = own.propose(model.mask_decoder, stage_one.pixels, every_layer=False)
            logits = own.recognise(
                model.class_decoder, stage_one.pixels, proposals.embeddings, proposals.mask_logits
            ).class_logits
            found = ask_statistics(model, stage_one.pixels, proposals)
            objectness = proposals.objectness_logits.sigmoid()
            theirs = found.is_new & (objectness > model.config.inference.alpha) & (found.shares.argmax(-1) == number)
            rows = slice(8 + NUMBER * number, 8 + NUMBER * (number + 1))
            assert torch.equal(named.class_index[:, rows], torch.where(theirs, 6 + number, -1))
            expected = torch.where(theirs, objectness * logits[..., 0].sigmoid(), 0.0)
            torch.testing.assert_close(named.scores[:, rows], expected)
            taken.append(theirs)
    assert torch.stack(taken).any() and not torch.stack(taken).all()


def test_masks_of_old_classes_are_not_for_new_queries() -> None:
    def masks(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.bool)[:, None, None].expand(-1, 2, 2)

    targets = Targets.stack([masks(1, 0, 1), masks(1)], [torch.tensor([1, 7, 6]), torch.tensor([2])], ("a", "b"))
    new = _of_new_classes(targets, 6)
    assert new.counts == (2, 0)
    assert new.labels[0].tolist() == [7, 6] and new.masks[0, :, 0, 0].tolist() == [False, True]


def test_the_method_keeps_its_promises_with_own_queries() -> None:
    check_method(methods.find("comastre-exact"), {"comastre": {"own_queries": {"number": NUMBER}, **FEW_POINTS}})
