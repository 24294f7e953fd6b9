"""The whole evaluation with a made-up model, in one process and in two."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch import Tensor

from comastre.config.run import RunConfig
from comastre.config.view import ViewConfig
from comastre.data.dataset import Sample
from comastre.errors import UserError
from comastre.evaluation.evaluate import EvaluationPlan, evaluate
from comastre.evaluation.proposals import true_masks
from comastre.evaluation.recall import Recall
from comastre.evaluation.results import ClassErrors, Results, StepResult
from comastre.segmentation import ProposedMasks, Segmentation, Size
from comastre.stream.scenario import Scenario, build_scenario


@dataclass(frozen=True)
class FakeDataset:
    samples: tuple[Sample, ...]
    name: str = "fake"
    class_names: tuple[str, ...] = ("cat", "dog", "cow")
    colours: tuple[tuple[int, int, int], ...] = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    has_background: bool = True

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]

    def presence(self) -> list[frozenset[int]]:
        return [frozenset(np.unique(sample.semantic).tolist()) - {0, 255} for sample in self.samples]


def red_channel_model(
    images: Tensor, padding: Tensor | None, sizes: Sequence[Size], original_sizes: Sequence[Size], num_learned: int = 2
) -> list[Segmentation]:
    """Reads labels from the red channel: 40 * label; proposals are its segments, class 0's unsure."""
    found = []
    for image, (height, width) in zip(images, sizes, strict=True):
        labels = (image[0, :height, :width] // 40).long()
        labels[labels > num_learned] = 0
        masks = torch.stack([labels == label for label in range(1, num_learned + 1)])
        objectness = torch.tensor([0.5] + [0.9] * (num_learned - 1))
        class_scores = torch.eye(num_learned) * (objectness > 0.8)[:, None]
        logits = torch.where(masks, 9.0, -9.0)
        proposals = ProposedMasks(objectness, class_scores, 0.8, logits, (height, width))
        found.append(replace(Segmentation.of_labels(labels), proposals=proposals))
    return found


def without_proposals(*given: Any) -> list[Segmentation]:
    """The same labels from a model that labels pixels."""
    return [replace(found, proposals=None) for found in red_channel_model(*given)]


def sample_of(semantic: np.ndarray, shown: np.ndarray, name: str, instances: np.ndarray | None = None) -> Sample:
    image = np.repeat((40 * shown)[..., None], 3, axis=2).astype(np.uint8)
    return Sample(image, semantic.astype(np.uint8), instances, name)


def noisy_dataset(num_images: int) -> FakeDataset:
    """Images of different sizes whose shown labels (1 cow, 2 cat in learning order) are partly wrong."""
    random = np.random.default_rng(0)
    to_model_label = np.array([0, 2, 3, 1])
    samples = []
    for index in range(num_images):
        semantic = random.integers(0, 4, size=(int(random.integers(5, 9)), int(random.integers(5, 9))))
        semantic[:3, :3] = 1
        shown = np.where(random.random(semantic.shape) < 0.8, to_model_label[semantic], 0)
        semantic[random.random(semantic.shape) < 0.1] = 255
        samples.append(sample_of(semantic, shown, str(index)))
    return FakeDataset(tuple(samples))


def scenario_of(dataset: FakeDataset) -> Scenario:
    """Learns cow, then cat, then dog."""
    return build_scenario(dataset.presence(), 3, "1-1", "overlapped", class_order=(3, 1, 2))


def hand_made() -> FakeDataset:
    # Truth: cow above, cat on the left, dog (future) on the right, one ignored pixel inside the cow.
    semantic = np.array([[3, 3, 255, 3], [1, 1, 2, 2], [1, 1, 2, 2]])
    # Shown in model labels: the cow whole, the cat without one pixel, half of the dog taken for a cat.
    shown = np.array([[1, 1, 1, 1], [2, 2, 2, 0], [2, 0, 2, 0]])
    return FakeDataset((sample_of(semantic, shown, "only"),))


def test_hand_computed_step() -> None:
    dataset = hand_made()
    scenario = scenario_of(dataset)
    result = evaluate(red_channel_model, EvaluationPlan(dataset, scenario, 1))
    assert (result.step, result.new_classes, result.images) == (1, ("cat",), 1)
    # Cow 3 / 3; cat 3 hits of 4 true and 5 predicted; background (the dog) 2 hits of 4 true and 3 predicted.
    assert result.per_class == pytest.approx({"background": 40.0, "cow": 100.0, "cat": 50.0})
    paper, ignored = result.conventions["paper"], result.conventions["future_ignored"]
    assert (paper.base, paper.inc, paper.all) == pytest.approx((70.0, 50.0, 190 / 3))
    # Without the dog's pixels: background 0 of 1, cat 3 of 4.
    assert (ignored.base, ignored.inc, ignored.all) == pytest.approx((50.0, 75.0, 175 / 3))
    # The cow's mask fits (outside ignored pixels) but is unsure; the cat's overlaps by 0.5: one threshold of ten.
    assert result.recall_per_class == {"cow": Recall(100.0, 0.0), "cat": Recall(10.0, 10.0)}
    assert result.recall == Recall(55.0, 5.0)
    assert result.errors == {"cow": ClassErrors(0, 1, 0, 0), "cat": ClassErrors(0, 0, 0, 1)}
    assert result.alpha == 0.8
    assert result.task_confusion == ((2, 0, 2), (0, 3, 0), (1, 0, 3))


def test_a_model_without_proposals_has_every_score_but_theirs() -> None:
    dataset = noisy_dataset(7)
    plan = EvaluationPlan(dataset, scenario_of(dataset), 1, batch_size=2)
    full, result = evaluate(red_channel_model, plan), evaluate(without_proposals, plan)
    assert full.recall is not None and full.recall_per_class and full.errors
    lacking = {"recall": None, "later_recall": None, "alpha": None}
    assert result == replace(full, **lacking, recall_per_class={}, later_recall_per_class={}, errors={})
    assert result.recognises
    assert result.summary("paper") == full.summary("paper").partition(";")[0]
    assert result.scores("paper") == full.scores("paper")


def test_proposals_for_some_images_only_are_refused() -> None:
    dataset = noisy_dataset(2)

    def sometimes(*given: Any) -> list[Segmentation]:
        model = without_proposals if given[2][0] == dataset[0].semantic.shape else red_channel_model
        return model(*given)

    with pytest.raises(ValueError, match="proposes masks for 1 of 2 images"):
        evaluate(sometimes, EvaluationPlan(dataset, scenario_of(dataset), 1))


def test_a_class_not_learned_yet_counts_as_background() -> None:
    dataset = hand_made()

    def only_cows(*given: Any) -> list[Segmentation]:
        return red_channel_model(*given, num_learned=1)

    result = evaluate(only_cows, EvaluationPlan(dataset, scenario_of(dataset), 0))
    assert result.per_class == {"background": 100.0, "cow": 100.0}
    assert result.conventions["paper"].inc is None
    assert result.recall_per_class.keys() == result.errors.keys() == {"cow"}


def test_images_of_a_batch_score_as_images_alone() -> None:
    dataset = noisy_dataset(7)
    scenario = scenario_of(dataset)
    alone = evaluate(red_channel_model, EvaluationPlan(dataset, scenario, 1))
    together = evaluate(red_channel_model, EvaluationPlan(dataset, scenario, 1, batch_size=2))
    assert alone == together
    assert 20 < alone.conventions["paper"].all < 95  # the example is neither perfect nor hopeless


def test_true_masks_per_class_and_per_object() -> None:
    labels = np.array([[1, 1, 0, 2], [255, 1, 3, 2]])
    masks, classes = true_masks(labels, None, last=2)
    assert classes.tolist() == [0, 1]
    assert masks.astype(int).tolist() == [[[1, 1, 0, 0], [0, 1, 0, 0]], [[0, 0, 0, 1], [0, 0, 0, 1]]]
    instances = np.array([[7, 8, 0, 5], [7, 8, 9, 4]], dtype=np.int32)
    masks, classes = true_masks(labels, instances, last=2)
    assert classes.tolist() == [1, 1, 0, 0]  # objects 4, 5, 7, 8; object 9 is not learned yet
    assert masks.astype(int).sum(axis=(1, 2)).tolist() == [1, 1, 1, 2]  # 7's ignored pixel is left out
    masks, classes = true_masks(np.zeros((2, 4), dtype=np.int64), instances, last=2)
    assert masks.shape == (0, 2, 4) and classes.shape == (0,)


def test_recall_goes_by_objects_where_the_config_says_so() -> None:
    semantic = np.array([[3, 3, 0, 3, 3]])
    instances = np.array([[1, 1, 0, 2, 2]], dtype=np.int32)
    dataset = FakeDataset((sample_of(semantic, np.array([[1, 1, 0, 0, 0]]), "two", instances), *hand_made().samples))
    scenario = scenario_of(dataset)
    first = replace(dataset, samples=dataset.samples[:1])
    by_object = RunConfig.model_validate({"data": {"masks": "instance"}, "view": {"short_side": "native"}})
    per_class = evaluate(red_channel_model, EvaluationPlan(first, scenario, 0))
    per_object = evaluate(red_channel_model, EvaluationPlan.of(by_object, first, scenario, 0))
    assert per_class.recall is not None and per_object.recall is not None
    assert per_class.recall.all == 10.0  # half of all cows: 0.5
    assert per_object.recall.all == 50.0  # one cow whole, the other not at all


def test_a_plan_follows_the_configuration() -> None:
    given = {"data": {"workers": 3, "masks": "instance"}, "evaluation": {"batch_size": 4}}
    dataset = hand_made()
    plan = EvaluationPlan.of(RunConfig.model_validate(given), dataset, scenario_of(dataset), 1)
    assert (plan.workers, plan.masks, plan.batch_size, plan.unscored) == (3, "instance", 4, frozenset())
    assert plan.view == ViewConfig(short_side=(512,), max_side=2048)
    assert plan.tasks == [1, 1]
    assert plan.class_names == ["cow", "cat", "dog"]


def test_an_empty_dataset_is_a_users_error() -> None:
    dataset = FakeDataset(())
    with pytest.raises(UserError, match="validation set of 'fake' has no images"):
        evaluate(red_channel_model, EvaluationPlan(dataset, scenario_of(hand_made()), 0))


def results_with(result: StepResult) -> Results:
    first = replace(result, step=0)
    return Results("comastre", "fake", "1-1", "overlapped", 0, True, ("cow", "cat", "dog"), steps=(first,))


def evaluate_in_process(rank: int, world_size: int, folder: str) -> None:
    rendezvous = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)
    try:
        dataset = noisy_dataset(5)
        plan = EvaluationPlan(dataset, scenario_of(dataset), 1, batch_size=2)
        results_with(evaluate(red_channel_model, plan)).write(Path(folder) / f"{rank}.json")
        results_with(evaluate(without_proposals, plan)).write(Path(folder) / f"{rank}-without.json")
        # One image for two processes: the second sees none, and still knows that there are proposals.
        first = EvaluationPlan(replace(dataset, samples=dataset.samples[:1]), plan.scenario, 1)
        results_with(evaluate(red_channel_model, first)).write(Path(folder) / f"{rank}-first.json")
    finally:
        distributed.destroy_process_group()


def test_two_processes_with_a_partial_last_batch_give_the_result_of_one(tmp_path: Path) -> None:
    # Five images in batches of two: rank 0 gets 2 + 1 images, rank 1 gets 2 and is done one batch earlier.
    multiprocessing.spawn(evaluate_in_process, args=(2, str(tmp_path)), nprocs=2)
    dataset = noisy_dataset(5)
    plan = EvaluationPlan(dataset, scenario_of(dataset), 1, batch_size=2)
    first = replace(plan, dataset=replace(dataset, samples=dataset.samples[:1]))
    expected = {
        "": evaluate(red_channel_model, plan),
        "-without": evaluate(without_proposals, plan),
        "-first": evaluate(red_channel_model, first),
    }
    for rank in range(2):
        for name, single in expected.items():
            assert json.loads((tmp_path / f"{rank}{name}.json").read_text()) == results_with(single).as_json()
