from __future__ import annotations

import math
from dataclasses import astuple

import pytest
import torch

from comastre.data.sets.shapes import Shapes
from comastre.evaluation.evaluate import EvaluationPlan
from comastre.evaluation.model import evaluate_model
from comastre.methods.comastre.config import InferenceConfig, ModelConfig
from comastre.methods.comastre.inference import merge
from comastre.methods.comastre.segmenter import build_segmenter
from comastre.stream.scenario import build_scenario


def test_proposals_of_a_merge() -> None:
    # Two proposals on a 2 x 4 image: a confident one on the left recognised as class 1, an unsure one everywhere.
    left = torch.tensor([[9.0, 9.0, -9.0, -9.0], [9.0, 9.0, -9.0, -9.0]])
    logits = torch.stack([left, torch.full((2, 4), 9.0)])
    class_scores = torch.tensor([[0.1, 0.9], [0.0, 0.0]])
    found = merge(logits, torch.tensor([0.9, 0.3]), class_scores, (2, 4), InferenceConfig())
    assert found.label_map.tolist() == [[2, 2, 0, 0], [2, 2, 0, 0]]
    assert found.proposals is not None
    assert found.proposals.confident == 0.8
    assert found.proposals.classes.tolist() == [1, -1]
    assert found.proposals.masks().sum(dim=(1, 2)).tolist() == [4, 8]
    assert found.proposals.objectness.tolist() == pytest.approx([0.9, 0.3])


def test_a_real_model_is_evaluated_in_eval_mode_and_keeps_its_own() -> None:
    dataset = Shapes("val", num_images=3)
    order = tuple(range(1, 11))
    # Which images a step trains on doesn't matter here: one image with every class.
    scenario = build_scenario([order], 10, "6-2", "overlapped")
    model = build_segmenter(ModelConfig(size="tiny"), tasks=[6, 2])
    model.train()
    model.backbone.eval()
    modes = []
    model.mask_decoder.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    result = evaluate_model(model, EvaluationPlan(dataset, scenario, 1))
    assert modes == [False] * 3
    assert model.training and model.mask_decoder.training and not model.backbone.training
    assert list(result.per_class) == ["background", *dataset.class_names[:8]]
    # Every class of every image that is learned by now has one true mask, and each is accounted for.
    masks = sum(len([label for label in labels if label <= 8]) for labels in dataset.presence())
    counts = [astuple(errors) for errors in result.errors.values()]
    assert sum(map(sum, counts)) == masks > 0


def test_a_model_that_recognises_nothing_is_scored_by_recall_alone() -> None:
    dataset = Shapes("val", num_images=3)
    scenario = build_scenario([tuple(range(1, 11))], 10, "joint", "overlapped")
    plan = EvaluationPlan(dataset, scenario, 0)
    torch.manual_seed(0)
    model = build_segmenter(ModelConfig(size="tiny"), tasks=[1])
    named = evaluate_model(model, plan)
    result = evaluate_model(model, plan, recognises=False)
    assert named.recognises and not result.recognises
    assert result.recall == named.recall
    assert repr(result.recall_per_class) == repr(named.recall_per_class)  # nan is not equal to itself
    assert (result.per_class, result.errors, result.task_confusion) == ({}, {}, ())
    assert all(math.isnan(score.all) and math.isnan(score.base) for score in result.conventions.values())
    assert set(result.scores("paper")) == {"recall", "confident_recall"}
    assert result.summary("paper").startswith("recall of masks")
