"""The paper's parameter groups (docs/specification.md, Training)."""

import pytest
import torch
from torch import nn

from comastre.config.sections import OptimiserConfig
from comastre.methods.optimiser import adamw, parameter_groups, sgd


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
    groups = parameter_groups([model], weight_decay=0.05, backbone_factor=0.1)
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
    parameters = [p for group in parameter_groups([model], 0.05, 0.1) for p in group["params"]]
    assert len(parameters) == 3


def test_base_rates_of_first_and_later_steps():
    config = OptimiserConfig(learning_rate=1e-4, later_learning_rate=5e-5, backbone_factor=0.1)
    assert sorted({group["lr"] for group in adamw([Model()], config, 0).param_groups}) == pytest.approx([1e-5, 1e-4])
    assert sorted({group["lr"] for group in adamw([Model()], config, 2).param_groups}) == pytest.approx([5e-6, 5e-5])


def test_the_backbone_may_learn_more_slowly_in_later_steps():
    config = OptimiserConfig(backbone_factor=1.0, later_backbone_factor=0.1)
    factors = [{group["scale"] for group in adamw([Model()], config, step).param_groups} for step in (0, 1, 2)]
    assert factors == [{1.0}, {0.1, 1.0}, {0.1, 1.0}]
    usual = OptimiserConfig(backbone_factor=0.3)
    assert {group["scale"] for group in adamw([Model()], usual, 1).param_groups} == {0.3, 1.0}


def test_what_learns_beside_the_model_is_in_the_groups_of_the_rest():
    model, head = Model(), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
    alone = parameter_groups([model], 0.05, 0.1)
    both = parameter_groups([model, head], 0.05, 0.1)
    added = {
        (group["scale"], group["weight_decay"]): group["params"][len(old["params"]) :]
        for group, old in zip(both, alone, strict=True)
    }
    assert {key: len(parameters) for key, parameters in added.items()} == {
        (0.1, 0.05): 0, (0.1, 0.0): 0, (1.0, 0.05): 2, (1.0, 0.0): 2,
    }  # fmt: skip
    assert all(parameter is mine for parameter, mine in zip(added[1.0, 0.05], head[1].parameters(), strict=True))


def test_rates_of_a_step_are_those_of_the_configuration():
    config = OptimiserConfig(learning_rate=1.0, later_learning_rate=0.5, backbone_factor=0.3, later_backbone_factor=0.0)
    assert [config.rate(step) for step in (0, 1, 5)] == [1.0, 0.5, 0.5]
    assert [config.factor_of_backbone(step) for step in (0, 1, 5)] == [0.3, 0.0, 0.0]


def test_sgd_has_every_trainable_weight_once_and_decays_all_alike() -> None:
    model = nn.ModuleDict({"backbone": nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), "head": nn.Linear(4, 2)})
    model["head"].bias.requires_grad_(False)
    config = OptimiserConfig(learning_rate=0.1, later_learning_rate=0.02, backbone_factor=0.5, weight_decay=1e-4)
    optimiser = sgd(model, config, 1, momentum=0.9, nesterov=True)
    found = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    assert len(found) == len({id(parameter) for parameter in found}) == 5
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([0.02, 0.01])
    assert all(group["weight_decay"] == 1e-4 and group["nesterov"] for group in optimiser.param_groups)
    assert not sgd(model, config, 0, momentum=0.0, nesterov=True).param_groups[0]["nesterov"]
