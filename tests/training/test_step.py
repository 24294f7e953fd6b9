"""TrainStep: what the devices wrap holds everything that learns, and one call gives the terms of one batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import TINY, TinyMethod, tiny_config
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from comastre.config.run import RunConfig
from comastre.methods.protocol import Method
from comastre.stream.scenario import Task
from comastre.training.checkpoint import load_latest
from comastre.training.launch import build_fabric
from comastre.training.parts import method_of
from comastre.training.run import run, set_up
from comastre.training.step import TrainStep, terms_of


@dataclass(frozen=True)
class Batch:
    """Frozen, as the real one: lightning-fabric refuses such arguments."""

    images: Tensor


class Beside(Method):
    """Learns a model together with a head that is no part of it."""

    def __init__(self) -> None:
        self.head = nn.Linear(2, 1, bias=False)
        self.seen: list[Any] = []

    def build(self, tasks: Sequence[int]) -> nn.Module:
        return nn.Linear(3, 2, bias=False)

    def begin(self, task: Task, previous: nn.Module | None, init: nn.Module | None = None) -> nn.Module:
        return self.build([1])

    def training_modules(self) -> nn.Module:
        return self.head

    def losses(self, model: nn.Module, batch: Batch, points: Any) -> dict[str, Tensor]:
        self.seen.append((model, batch, points))
        features = model(batch.images)
        return {"model": features.square().mean(), "head": self.head(features).square().mean()}

    def weights(self) -> Mapping[str, float]:
        return {"model": 1.0, "head": 3.0, "never computed": 100.0}

    def optimiser(self, model: nn.Module, step: int) -> Optimizer:
        return SGD([*model.parameters(), *self.head.parameters()], lr=0.5)


TASK = Task(0, (1,), (), (), (0,))


def test_it_holds_the_model_and_what_learns_beside_it():
    method = Beside()
    model = method.build([1])
    step = TrainStep(method, model)
    assert {id(parameter) for parameter in step.parameters()} == {id(model.weight), id(method.head.weight)}
    step.eval()
    assert not model.training and not method.head.training
    step.train()
    assert model.training and method.head.training


def test_it_is_the_model_alone_where_nothing_learns_beside_it():
    method = TinyMethod(tiny_config())
    model = method.begin(TASK, None)
    assert [name for name, _ in TrainStep(method, model).named_parameters()] == [
        f"model.{name}" for name, _ in model.named_parameters()
    ]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_call_gives_the_methods_own_terms_of_the_batch(wrapped: bool):
    method = Beside()
    model = method.begin(TASK, None)
    module: Any = TrainStep(method, model)
    if wrapped:  # as the loop does it
        module, _, _ = set_up(build_fabric(tiny_config().training), method, model, tiny_config(), TASK)
    batch, points = Batch(torch.ones(2, 3)), object()
    terms = terms_of(module, batch, points)
    assert list(terms) == ["model", "head"]
    # The very objects: a method may keep what it is given, and its losses see the plain model.
    assert method.seen == [(model, batch, points)]
    expected = model.weight.sum(dim=1)
    assert terms["model"].item() == pytest.approx(expected.square().mean().item())

    total = method.total(terms)
    assert total.item() == pytest.approx((terms["model"] + 3 * terms["head"]).item())
    total.backward()
    assert model.weight.grad is not None and method.head.weight.grad is not None


def test_set_up_remembers_the_rates_of_whatever_optimiser_a_method_has():
    method = Beside()
    model = method.begin(TASK, None)
    module, _, plain = set_up(build_fabric(tiny_config().training), method, model, tiny_config(), TASK)
    assert module.training
    assert [(group["base_lr"], group["scale"]) for group in plain.param_groups] == [(0.5, 1.0)]


class WithHead(TinyMethod):
    """The tiny method with a head beside its model, which the loop trains, keeps and restores with it."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.head: nn.Conv2d | None = None

    def begin(self, task: Task, previous: Any, init: Any = None) -> Any:
        model = super().begin(task, previous, init)
        self.head = nn.Conv2d(sum(model.tasks), 1, 1)
        return model

    def training_modules(self) -> nn.Module | None:
        return self.head

    def losses(self, model: nn.Module, batch: Any, points: Any) -> dict[str, Tensor]:
        assert self.head is not None
        return super().losses(model, batch, points) | {"head": self.head(model(batch.images)).square().mean()}

    def weights(self) -> dict[str, float]:
        return super().weights() | {"head": 1.0}

    def optimiser(self, model: nn.Module, step: int) -> Optimizer:
        assert self.head is not None
        return SGD([*model.parameters(), *self.head.parameters()], lr=0.01, momentum=0.9)

    def state(self) -> dict[str, Tensor]:
        head = {} if self.head is None else {f"head/{name}": value for name, value in self.head.state_dict().items()}
        return super().state() | head

    def after_training(self, task: Task, model: nn.Module) -> nn.Module:
        self.head = None
        return super().after_training(task, model)


def test_what_learns_beside_the_model_learns_and_stays_out_of_it(tmp_path: Path):
    config = tiny_config(iterations=4, checkpoint_every=1)

    def stop(*args: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", parts=replace(TINY, method=WithHead, evaluate=stop))
    saved = load_latest(tmp_path / "run" / "checkpoints", pytest.fail)
    assert saved is not None
    assert not [name for name in saved.model if "head." in name]
    assert {name for name in saved.method if name.startswith("head/")} == {"head/weight", "head/bias"}
    # Its rows in the optimiser's memory: it was trained with the model.
    model = WithHead(config).begin(Task(0, (1, 2), (), (3, 4), (0,)), None)
    trained = [name for name in saved.optimiser if name.endswith("/momentum_buffer")]
    assert len(trained) == len([*model.parameters()]) + 2


def test_comastres_head_trains_beside_the_segmenter_from_the_second_step_on():
    method = method_of(RunConfig(size="tiny"))
    first = method.begin(Task(0, (1, 2), (), (3,), (0,)), None)
    assert method.training_modules() is None
    model = method.begin(Task(1, (3,), (1, 2), (), (0,)), first)
    head = method.training_modules()
    assert head is not None
    step = TrainStep(method, model)
    assert {id(parameter) for parameter in head.parameters()} <= {id(parameter) for parameter in step.parameters()}
    assert not [name for name in model.state_dict() if "auxiliary" in name]
    in_optimiser = {id(p) for group in method.optimiser(model, 1).param_groups for p in group["params"]}
    assert in_optimiser == {id(parameter) for parameter in step.parameters() if parameter.requires_grad}
    assert method.after_training(Task(1, (3,), (1, 2), (), (0,)), model) is model
    assert method.training_modules() is None and method.state() == {}
