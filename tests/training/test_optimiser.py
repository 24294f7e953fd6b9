"""The paper's parameter groups and schedule (docs/specification.md, Training)."""

import pytest
import torch
from comastre.training.optimiser import (
    build_optimiser,
    iterations_of_step,
    learning_rate_factor,
    parameter_groups,
    set_learning_rate,
)
from torch import nn

from comastre.config.run import TrainingConfig


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.attention = nn.MultiheadAttention(4, 1)
        self.norm = nn.LayerNorm(4)
        self.queries = nn.Embedding(5, 4)
        self.level_embedding = nn.Parameter(torch.zeros(3, 4))
        self.task_queries = nn.ParameterList([nn.Parameter(torch.zeros(4))])
        self.fixed = nn.Linear(4, 4).requires_grad_(False)


def names_by_group(model: nn.Module) -> dict[tuple[float, float], set[str]]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, weight_decay=0.05, backbone_factor=0.1)
    return {(group["scale"], group["weight_decay"]): {names[p] for p in group["params"]} for group in groups}


def test_norms_and_embeddings_are_not_decayed_and_the_backbone_is_slower():
    attention = {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}
    assert names_by_group(Model()) == {
        (0.1, 0.05): {"backbone.0.weight", "backbone.0.bias"},
        (0.1, 0.0): {"backbone.1.weight", "backbone.1.bias"},
        (1.0, 0.05): {f"attention.{name}" for name in attention},
        (1.0, 0.0): {"norm.weight", "norm.bias", "queries.weight", "level_embedding", "task_queries.0"},
    }


def test_a_shared_parameter_is_optimised_once():
    model = nn.ModuleDict({"first": nn.Linear(2, 2), "second": nn.Linear(2, 2)})
    model["second"].weight = model["first"].weight
    parameters = [p for group in parameter_groups(model, 0.05, 0.1) for p in group["params"]]
    assert len(parameters) == 3


def test_base_rates_of_first_and_later_steps():
    config = TrainingConfig(learning_rate=1e-4, later_learning_rate=5e-5, backbone_factor=0.1)
    assert sorted({group["lr"] for group in build_optimiser(Model(), config, 0).param_groups}) == pytest.approx(
        [1e-5, 1e-4]
    )
    assert sorted({group["lr"] for group in build_optimiser(Model(), config, 2).param_groups}) == pytest.approx(
        [5e-6, 5e-5]
    )


def test_the_backbone_may_learn_more_slowly_in_later_steps():
    config = TrainingConfig(backbone_factor=1.0, later_backbone_factor=0.1)
    factors = [{group["scale"] for group in build_optimiser(Model(), config, step).param_groups} for step in (0, 1, 2)]
    assert factors == [{1.0}, {0.1, 1.0}, {0.1, 1.0}]
    usual = TrainingConfig(backbone_factor=0.3)
    assert {group["scale"] for group in build_optimiser(Model(), usual, 1).param_groups} == {0.3, 1.0}


def test_setting_the_rate_keeps_the_groups_shares():
    optimiser = build_optimiser(Model(), TrainingConfig(), 0)
    set_learning_rate(optimiser, 2.0)
    assert {(group["scale"], group["lr"]) for group in optimiser.param_groups} == {(0.1, 0.2), (1.0, 2.0)}


def test_poly_schedule_by_hand():
    assert learning_rate_factor(0, 100, warmup=0, power=0.9) == 1.0
    assert learning_rate_factor(50, 100, warmup=0, power=0.9) == pytest.approx(0.5**0.9)
    assert learning_rate_factor(99, 100, warmup=0, power=0.9) == pytest.approx(0.01**0.9)


def test_warmup_rises_linearly_and_then_leaves_the_decay_alone():
    factors = [learning_rate_factor(i, 1000, warmup=4, power=0.0) for i in range(7)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0])
    assert learning_rate_factor(10, 100, warmup=4, power=0.9) == learning_rate_factor(10, 100, warmup=0, power=0.9)


def test_iterations_of_a_step():
    config = TrainingConfig(iterations=20000, iterations_per_class=1000)
    assert [iterations_of_step(config, step, classes) for step, classes in [(0, 15), (1, 1), (2, 5)]] == [
        20000,
        1000,
        5000,
    ]
