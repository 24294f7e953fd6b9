"""Recall of classes that are not learned yet, against a slow count, and apart from that of the learned ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from comastre.data.dataset import Sample
from comastre.evaluation.evaluate import EvaluationPlan, evaluate
from comastre.evaluation.results import StepResult
from comastre.segmentation import ProposedMasks, Segmentation, Size
from comastre.stream.scenario import Scenario, build_scenario

NAMES = ("cat", "dog", "cow", "bus", "car")
ALPHA = 0.6
SIDE = 8


@dataclass(frozen=True)
class Patches:
    """Images of labelled patches; the red channel of the first pixel is the image's number."""

    samples: tuple[Sample, ...]
    name: str = "patches"
    class_names: tuple[str, ...] = NAMES
    colours: tuple[tuple[int, int, int], ...] = ((0, 0, 0),) * 6
    has_background: bool = True

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]

    def presence(self) -> list[frozenset[int]]:
        return [frozenset(np.unique(sample.semantic).tolist()) - {0, 255} for sample in self.samples]


def made(number: int = 12) -> tuple[Patches, list[tuple[Tensor, Tensor]]]:
    """Images, and masks (N, H, W) with objectness (N,) that a model proposes: true patches, a little changed."""
    random = np.random.default_rng(5)
    samples, proposals = [], []
    for index in range(number):
        semantic = random.integers(0, 6, (4, 4)).repeat(2, axis=0).repeat(2, axis=1).astype(np.uint8)
        instances = (np.arange(16).reshape(4, 4) + 1).repeat(2, axis=0).repeat(2, axis=1).astype(np.int32)
        semantic[random.random((SIDE, SIDE)) < 0.05] = 255
        image = np.zeros((SIDE, SIDE, 3), np.uint8)
        image[0, 0, 0] = index
        samples.append(Sample(image, semantic, instances, str(index)))
        masks = [(semantic == label) ^ (random.random((SIDE, SIDE)) < 0.08) for label in range(1, 6)]
        masks += [(instances == each) ^ (random.random((SIDE, SIDE)) < 0.04) for each in range(1, 17)]
        scores = random.choice([0.0, 0.3, 0.6, 0.7, 0.9], len(masks))
        proposals.append((torch.from_numpy(np.stack(masks)), torch.from_numpy(scores).float()))
    return Patches(tuple(samples)), proposals


def scored(step: int, masks: str = "semantic", batch_size: int = 1) -> StepResult:
    dataset, proposals = made()

    def segment(
        images: Tensor, padding: Tensor | None, sizes: Sequence[Size], original_sizes: Sequence[Size]
    ) -> list[Segmentation]:
        found = []
        for image in images:
            patches, scores = proposals[int(image[0, 0, 0])]
            logits = torch.where(patches, 9.0, -9.0)
            proposed = ProposedMasks(scores, torch.zeros(len(scores), 3), ALPHA, logits, (SIDE, SIDE))
            found.append(replace(Segmentation.of_labels(torch.zeros(SIDE, SIDE)), proposals=proposed))
        return found

    plan: Any = EvaluationPlan(dataset, scenario_of(dataset), step, batch_size, masks)  # type: ignore[arg-type]
    return evaluate(segment, plan)


def scenario_of(dataset: Patches) -> Scenario:
    return build_scenario(dataset.presence(), 5, "3-1", "overlapped", class_order=(2, 1, 3, 5, 4))


def slow_recall(classes: Sequence[int], by_object: bool, minimum: float) -> dict[int, float]:
    """Average recall of each dataset class and, under 0, of all of them: one loop per threshold, image and proposal."""
    dataset, proposals = made()
    true, hit = dict.fromkeys([0, *classes], 0), dict.fromkeys([0, *classes], 0)
    for step in range(10):
        threshold = 0.5 + 0.05 * step
        for index, sample in enumerate(dataset.samples):
            truths = []
            for label in classes:
                mine = sample.semantic == label
                objects = np.unique(sample.instances[mine]) if by_object and sample.instances is not None else [None]
                for each in objects:
                    mask = mine if each is None else mine & (sample.instances == each)
                    if mask.any():
                        truths.append((label, mask))
            patches, scores = proposals[index]
            taken: set[int] = set()
            for query in sorted(range(len(scores)), key=lambda query: -float(scores[query])):  # stable
                if not float(scores[query]) > minimum:
                    continue
                proposed = patches[query].numpy() & (sample.semantic != 255)
                free = [
                    ((proposed & mask).sum() / (proposed | mask).sum(), place)
                    for place, (_, mask) in enumerate(truths)
                    if place not in taken
                ]
                if free and max(free)[0] >= threshold - 1e-12:
                    taken.add(max(free)[1])
            for place, (label, _) in enumerate(truths):
                for key in (0, label):
                    true[key] += 1
                    hit[key] += place in taken
    return {key: 100 * hit[key] / true[key] if true[key] else math.nan for key in true}


@pytest.mark.parametrize(("step", "later"), [(0, (5, 4)), (1, (4,))])
def test_recall_of_later_classes_equals_a_slow_count(step: int, later: tuple[int, ...]) -> None:
    result = scored(step)
    assert result.later_recall is not None
    assert list(result.later_recall_per_class) == [NAMES[label - 1] for label in later]
    for minimum, kind in ((0.0, "all"), (ALPHA, "confident")):
        expected = slow_recall(later, False, minimum)
        assert getattr(result.later_recall, kind) == pytest.approx(expected[0])
        for label in later:
            found = result.later_recall_per_class[NAMES[label - 1]]
            assert getattr(found, kind) == pytest.approx(expected[label])
    assert 0 < result.later_recall.confident < result.later_recall.all < 100


def test_recall_of_later_classes_goes_by_objects_where_masks_are_objects() -> None:
    result, expected = scored(0, "instance"), slow_recall((5, 4), True, 0.0)
    assert result.later_recall is not None and 0 < result.later_recall.all < 100
    assert result.later_recall.all == pytest.approx(expected[0])
    assert result.later_recall_per_class["bus"].all == pytest.approx(expected[4])
    assert result.later_recall_per_class["car"].all == pytest.approx(expected[5])


def test_what_is_not_learned_yet_takes_nothing_from_what_is() -> None:
    for step in (0, 1):
        learned = [2, 1, 3, 5][: 3 + step]
        result, expected = scored(step), slow_recall(learned, False, 0.0)
        assert result.recall is not None and result.recall.all == pytest.approx(expected[0])
        for label in learned:
            assert result.recall_per_class[NAMES[label - 1]].all == pytest.approx(expected[label])


def test_after_the_last_step_there_is_nothing_later() -> None:
    result = scored(2)
    assert result.later_recall is None and result.later_recall_per_class == {}
    assert "not learned yet" not in result.summary("paper")
    assert "of classes not learned yet" in scored(0).summary("paper")


def test_batches_change_nothing() -> None:
    assert scored(0) == scored(0, batch_size=5)
