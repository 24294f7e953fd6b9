"""The exact guarantee: after any number of steps, the trained model's word on any image is the same to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from comastre.config.run import RunConfig
from comastre.data.build import build_datasets
from comastre.errors import UserError
from comastre.methods.build import build_method, setup_of
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.methods.exact.inference import name_proposals
from comastre.methods.exact.method import ExactMethod
from comastre.methods.exact.model import ExactSegmenter
from comastre.section import merge
from comastre.stream.build import build_stream
from comastre.stream.loading import Batch
from comastre.stream.scenario import Scenario, Task, build_scenario
from comastre.stream.whole_images import whole_images

SMALL: dict[str, Any] = {
    "method": "comastre-exact",
    "size": "tiny",
    "comastre": {
        "pixel_decoder": {"layers": 0, "top_down": True},
        "mask_decoder": {"layers": 2, "num_queries": 8},
        # Of random weights: some proposals are looked at.
        "inference": {"alpha": 0.25, "overlap": 0.0},
    },
    "data": {"dataset": "shapes", "crop": 64, "train_images": 40, "val_images": 2, "workers": 0},
    "continual": {"setting": "6-1"},
}


def config_of(**changes: Any) -> RunConfig:
    return RunConfig.model_validate(merge(SMALL, changes))


class Stream:
    """Shapes in steps, with a method that learns them; the first step is not trained."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.dataset = build_datasets(config.data)[0]
        self.scenario: Scenario = build_stream(config, self.dataset.presence(), self.dataset.class_names)
        method = build_method(config.method, setup_of(config))
        assert isinstance(method, ExactMethod)
        self.method = method

    def images(self, task: Task) -> Callable[[], Iterator[Batch]]:
        return partial(whole_images, self.dataset, task, self.config)

    def first(self) -> ExactSegmenter:
        torch.manual_seed(0)
        model = self.method.begin(self.scenario.tasks[0], None)
        assert isinstance(model, ExactSegmenter)
        return self.learned(self.scenario.tasks[0], model)

    def later(self, task: Task, model: ExactSegmenter) -> ExactSegmenter:
        grown = self.method.begin(task, model)
        assert isinstance(grown, ExactSegmenter)
        return self.learned(task, grown)

    def learned(self, task: Task, model: ExactSegmenter) -> ExactSegmenter:
        self.method.gather(model, self.images(task))
        done = self.method.after_training(task, model)
        assert isinstance(done, ExactSegmenter)
        return done.eval()


@pytest.fixture(scope="module")
def stream() -> Stream:
    return Stream(config_of())


@pytest.fixture(scope="module")
def first(stream: Stream) -> ExactSegmenter:
    return stream.first()


def plain_copy(model: ExactSegmenter) -> Segmenter:
    """The trained part alone, as CoMasTRe has it."""
    plain = build_segmenter(model.config, model.class_decoder.tasks)
    known = plain.state_dict().keys()
    plain.load_state_dict({name: tensor for name, tensor in model.state_dict().items() if name in known})
    return plain.eval()


def ten_steps(scenario: Scenario) -> Iterator[Task]:
    """The stream's own later steps, and then their images again as further classes, to ten."""
    first, later = scenario.tasks[0], scenario.tasks[1:]
    for number in range(10):
        # Before each come as many classes as the model knows; which ids they have, nobody asks.
        before = tuple(range(1, 1 + len(first.new_classes))) + (99,) * number
        seen = later[number % len(later)]
        yield Task(1 + number, seen.new_classes, before, (), seen.images)


def rename_half(model: ExactSegmenter, images: Tensor) -> None:
    """Set the margin so that about half of the proposals in images become new."""
    stage_one = model.propose(images, every_layer=False)
    odds = model.discriminant(model.look_at(stage_one.pixels, stage_one.final.mask_logits >= 0)[0])
    confident = stage_one.final.objectness_logits.sigmoid() > model.config.inference.alpha
    gap = (odds[..., 7:].amax(dim=-1) - odds[..., :7].amax(dim=-1))[confident]
    margin = {"inference": model.config.inference.model_copy(update={"margin": float(gap.median())})}
    model.config = model.config.model_copy(update=margin)


@pytest.mark.parametrize(("batch_size", "own"), [(1, False), (4, False), (1, True), (4, True)])
def test_old_words_are_the_same_to_the_bit_after_ten_steps(
    stream: Stream, first: ExactSegmenter, batch_size: int, own: bool
) -> None:
    if own:
        stream = Stream(config_of(comastre={"own_queries": {"number": 3}}))
        first = stream.first()
    model, plain = copy.deepcopy(first), plain_copy(first)
    generator = torch.Generator().manual_seed(batch_size)
    pictures = [
        torch.randint(0, 256, (batch_size, 3, *size), generator=generator, dtype=torch.uint8)
        for size in ((64, 64), (96, 64), (32, 160))
    ]
    with torch.no_grad():
        before = [(plain(images), plain.segment(images)) for images in pictures]
        outputs = [output for output, _ in before]
        renamed = kept = 0
        num_old = model.num_classes
        for task in ten_steps(stream.scenario):
            model = stream.later(task, model)
            rename_half(model, pictures[0])
            for images, output, (_, old) in zip(pictures, outputs, before, strict=True):
                now = model(images)
                assert torch.equal(now.recognition.class_logits, output.recognition.class_logits)
                for one, other in zip(now.stage_one.layers, output.stage_one.layers, strict=True):
                    assert torch.equal(one.embeddings, other.embeddings)
                    assert torch.equal(one.mask_logits, other.mask_logits)
                    assert torch.equal(one.objectness_logits, other.objectness_logits)
                for one, other in zip(model.segment(images), old, strict=True):
                    assert one.proposals is not None and other.proposals is not None
                    count = len(other.proposals.objectness)
                    assert len(one.proposals.objectness) == count + (3 * len(model.later_tasks) if own else 0)
                    assert torch.equal(one.proposals.objectness[:count], other.proposals.objectness)
                    assert torch.equal(one.proposals.logits[:count], other.proposals.logits)
                    assert torch.equal(one.proposals.class_scores[:count, :num_old], other.proposals.class_scores)
                    assert not one.proposals.class_scores[count:, :num_old].any()
                    classes = one.proposals.classes[:count]
                    new = classes >= num_old
                    assert torch.equal(classes[~new], other.proposals.classes[~new])
                    renamed += int(new.sum())
                    kept += int((classes[~new] >= 0).sum())
    assert model.num_classes == num_old + 10
    assert renamed > 0 and kept > 0, "all proposals became new, or none did"


def test_what_looks_like_a_class_without_statistics_keeps_its_name(stream: Stream, first: ExactSegmenter) -> None:
    """Where every other confident proposal becomes new: nobody could tell the two classes apart."""
    model = stream.later(stream.scenario.tasks[1], copy.deepcopy(first))
    everything = {"inference": model.config.inference.model_copy(update={"margin": -1e6})}
    model.config = model.config.model_copy(update=everything)
    images = torch.randint(0, 256, (4, 3, 64, 64), generator=torch.manual_seed(0), dtype=torch.uint8)
    with torch.no_grad():
        stage_one = model.propose(images, every_layer=False)
        all_new = name_proposals(model, stage_one)
        confident = all_new.objectness > model.config.inference.alpha
        assert (all_new.class_index[confident] >= 6).all() and confident.any()
        taken_for = all_new.class_scores[..., :6].argmax(dim=-1)
        unknown = int(taken_for[confident].mode().values)
        model.discriminant.counts[1 + unknown] = 0
        named = name_proposals(model, stage_one)
    like_it = confident & (taken_for == unknown)
    assert like_it.any() and (named.class_index[like_it] == unknown).all()
    assert not named.class_scores[like_it][:, 6:].any()
    assert torch.equal(named.class_index[confident & ~like_it], all_new.class_index[confident & ~like_it])


def test_no_tensor_of_the_old_model_moves(stream: Stream, first: ExactSegmenter) -> None:
    model = copy.deepcopy(first)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for task in stream.scenario.tasks[1:]:
        model = stream.later(task, model)
        model.train()
        model(torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8))  # would move statistics of BatchNorm
        assert not any(parameter.requires_grad for parameter in model.parameters())
        for name, tensor in model.state_dict().items():
            if name != "seal":
                assert torch.equal(tensor[: len(kept[name])] if tensor.dim() else tensor, kept[name]), name
        model.refuse_changed(model.num_classes)


@pytest.mark.parametrize("name", ["class_decoder.classifiers.0.bias", "discriminant.means", "discriminant.precision"])
def test_a_model_that_moved_is_refused(stream: Stream, first: ExactSegmenter, name: str) -> None:
    model = copy.deepcopy(first)
    with torch.no_grad():
        model.state_dict()[name].view(-1)[0] += 1e-3
    with pytest.raises(UserError, match="not those that were sealed"):
        stream.method.begin(stream.scenario.tasks[1], model)


def test_a_step_that_moves_something_old_is_refused(stream: Stream, first: ExactSegmenter) -> None:
    task = stream.scenario.tasks[1]
    model = stream.method.begin(task, copy.deepcopy(first))
    assert isinstance(model, ExactSegmenter)
    with torch.no_grad():
        model.discriminant.means[2, 0] += 1
    with pytest.raises(UserError, match="not those that were sealed"):
        stream.method.after_training(task, model)


def test_the_order_of_classes_and_their_grouping_do_not_matter(stream: Stream, first: ExactSegmenter) -> None:
    """6-4, 6-1 and 6-1 in another order give the same statistics, class by class, up to rounding."""
    found: list[dict[int, Tensor]] = []
    presence, num_classes = stream.dataset.presence(), len(stream.dataset.class_names)
    for setting, order in (("6-4", None), ("6-1", None), ("6-1", [1, 2, 3, 4, 5, 6, 9, 10, 8, 7])):
        scenario = build_scenario(presence, num_classes, setting, "overlapped", order)
        model = copy.deepcopy(first)
        for task in scenario.tasks[1:]:
            model = stream.later(task, model)
        found.append(dict(zip(scenario.class_order, model.discriminant.means[1:], strict=True)))
    for other in found[1:]:
        for label, mean in found[0].items():
            torch.testing.assert_close(other[label], mean, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found[0][7], found[0][8], rtol=1e-2)


def test_a_model_without_statistics_gets_them_from_labelled_images(stream: Stream, first: ExactSegmenter) -> None:
    adopted = stream.method.adopt(plain_copy(first), stream.images(stream.scenario.tasks[0]))
    assert isinstance(adopted, ExactSegmenter)
    for name, tensor in adopted.state_dict().items():
        assert torch.equal(tensor, first.state_dict()[name]), name
    assert stream.method.adopt(adopted, lambda: iter(())) is adopted


def test_a_model_without_statistics_gathers_them_by_itself_where_nobody_labels_its_classes(
    stream: Stream, first: ExactSegmenter
) -> None:
    adopted = stream.method.adopt(plain_copy(first), lambda: iter(()))
    assert isinstance(adopted, ExactSegmenter) and not adopted.discriminant.counts.any()
    model = stream.later(stream.scenario.tasks[1], adopted)
    sentence, cost = stream.method.remarks(seconds=3.0)
    assert cost == "129 numbers more, of statistics, in 0:03"
    seen = int(model.discriminant.known[:6].sum())
    assert f"those of {seen} of its 6 classes" in sentence and seen > 0
    later = stream.later(stream.scenario.tasks[2], copy.deepcopy(model))
    assert len(stream.method.remarks()) == 1
    assert torch.equal(later.discriminant.means[:-1], model.discriminant.means)


def test_a_new_class_is_found_where_its_statistics_fit_best(stream: Stream, first: ExactSegmenter) -> None:
    """Means that lie far apart: a proposal gets the class whose mean it has, scored by objectness and odds."""
    model = copy.deepcopy(first)
    model.add_task(1)
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        stage_one = model.propose(images)
        features, _ = model.look_at(stage_one.pixels, stage_one.final.mask_logits >= 0)
        query = int(stage_one.final.objectness_logits[0].argmax())
        model.discriminant.means.fill_(1e3)
        model.discriminant.means[-1] = features[0, query]
        model.discriminant.counts.fill_(1.0)
        model.discriminant.precision.copy_(torch.eye(model.discriminant.width))
        named = name_proposals(model, stage_one)
        assert int(named.class_index[0, query]) == 6
        torch.testing.assert_close(named.scores[0, query], named.objectness[0, query])
        model.discriminant.means[-1] = 2e3
        old = name_proposals(model, stage_one)
        assert int(old.class_index[0, query]) < 6
        assert not old.class_scores[..., 6].any()


@pytest.mark.parametrize("everything_is_new", [False, True])
def test_every_pixel_gets_the_best_class_where_that_is_asked_for(
    stream: Stream, first: ExactSegmenter, everything_is_new: bool
) -> None:
    model = stream.later(stream.scenario.tasks[1], copy.deepcopy(first))
    margin = -1e6 if everything_is_new else 1e6
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = {}
    for every in (False, True):
        inference = model.config.inference.model_copy(update={"margin": margin, "every_pixel": every})
        model.config = model.config.model_copy(update={"inference": inference})
        found[every] = model.segment(images)
    for plain, filled in zip(found[False], found[True], strict=True):
        left = plain.label_map == 0
        assert left.any() and not left.all()
        assert filled.label_map.gt(0).all()
        assert torch.equal(filled.label_map[~left], plain.label_map[~left])
        assert torch.equal(filled.segment_map, plain.segment_map)
        # What the statistics call new speaks for no trained class any more, and the other way round.
        assert filled.label_map[left].eq(7).all() if everything_is_new else filled.label_map[left].lt(7).all()


@pytest.mark.parametrize(("batch_size", "size"), [(1, (96, 128)), (4, (96, 128)), (2, (160, 64))])
def test_holding_still_changes_no_bit_of_the_backbone_for_photographs(batch_size: int, size: tuple[int, int]) -> None:
    """A backbone may compute what nobody trains in another way; what it gives must be the same."""
    config = RunConfig.model_validate({"method": "comastre-exact", "size": "small", "backbone": {"weights": "none"}})
    method = build_method(config.method, setup_of(config))
    torch.manual_seed(0)
    model = method.build([2]).eval()
    assert isinstance(model, ExactSegmenter)
    plain = plain_copy(model)
    model.hold_still()
    images = torch.randint(0, 256, (batch_size, 3, *size), dtype=torch.uint8)
    with torch.no_grad():
        ours, theirs = model(images), plain(images)
    assert torch.equal(ours.recognition.class_logits, theirs.recognition.class_logits)
    assert torch.equal(ours.stage_one.final.mask_logits, theirs.stage_one.final.mask_logits)
    assert torch.equal(ours.stage_one.final.objectness_logits, theirs.stage_one.final.objectness_logits)
