"""Every method of the registry keeps the promises, and the check finds those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from comastre.config import methods
from comastre.config.methods import MethodSpec
from comastre.methods import build, testing
from comastre.methods.comastre.method import TwoStageMethod
from comastre.methods.protocol import Setup
from comastre.methods.testing import check_method

FEW_POINTS: dict[str, Any] = {"comastre": {"matching": {"points": 128}, "masks": {"points": 128}}}
SMALL_QUERY_NET: dict[str, Any] = {
    **FEW_POINTS["comastre"],
    "pixel_decoder": {"layers": 0, "top_down": True},
    "mask_decoder": {"layers": 2},
}
BY_SECTION = FEW_POINTS | {"mask2former": SMALL_QUERY_NET, "comformer": SMALL_QUERY_NET}


@pytest.mark.parametrize("spec", methods.methods().values(), ids=lambda spec: spec.name)
def test_our_own_methods_keep_their_promises(spec: MethodSpec) -> None:
    check_method(spec, {spec.section_name: BY_SECTION.get(spec.section_name, {})})


class Forgetful(TwoStageMethod):
    """Keeps nothing of its state."""

    def restore(self, task: Any, model: nn.Module, state: Any) -> None:
        super().restore(task, model, {})


class Stunted(TwoStageMethod):
    """Does not grow."""

    def begin(self, task: Any, previous: nn.Module | None, init: nn.Module | None = None) -> Any:
        return super().begin(task, None)


class Weightless(TwoStageMethod):
    """Has a term that nobody weighs."""

    def losses(self, *args: Any) -> dict[str, Tensor]:
        terms = super().losses(*args)
        return terms | {"surprise": terms["objectness"]}


class Unsteady(TwoStageMethod):
    """Divides by nothing where there is nothing to learn."""

    def losses(self, model: Any, batch: Any, points: Any) -> dict[str, Tensor]:
        terms = super().losses(model, batch, points)
        return terms | {"objectness": terms["objectness"] * sum(batch.targets.counts) / (batch.labels < 255).sum()}


class Idle(TwoStageMethod):
    """Learns nothing."""

    def optimiser(self, model: nn.Module, step: int) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.0)


class Hiding(TwoStageMethod):
    """Keeps a part of its model outside the weights."""

    def build(self, tasks: Any) -> Any:
        model = super().build(tasks)
        model.config = model.config.model_copy(
            update={"inference": model.config.inference.model_copy(update={"alpha": 0.0, "overlap": 0.0})}
        )
        return model


class Lonely(TwoStageMethod):
    """Divides by its own share of a batch's masks, not by that of all processes."""

    def losses(self, model: Any, batch: Any, points: Any) -> dict[str, Tensor]:
        terms = super().losses(model, batch, points)
        return terms | {"objectness": terms["objectness"] * (1 + sum(batch.targets.counts)) ** 2}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Forgetful, "the state after restoring has other names than before"),
        (Stunted, r"model\.tasks is \(2,\)"),
        (Weightless, "the term surprise has no weight"),
        (Unsteady, "where there is nothing to learn"),
        (Idle, "changed no weight"),
        (Hiding, "built anew with its weights, the model labels otherwise"),
    ],
)
def test_broken_promises_are_found(kind: Callable[..., Any], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(name: str, setup: Setup) -> Any:
        return kind(setup, setup.settings.loss)  # type: ignore[attr-defined]

    monkeypatch.setattr(testing, "build_method", make)
    monkeypatch.setattr(testing, "_check_two_processes", lambda *rest: None)
    settings = FEW_POINTS | {"comastre": {**FEW_POINTS["comastre"], "inference": {"alpha": 0.99}}}
    with pytest.raises(AssertionError, match=sentence):
        check_method(methods.find("comastre"), settings)


def test_two_processes_that_do_not_add_up_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The parent alone is broken here, which is enough for the gradients to differ."""
    real = build.build_method
    stream = testing._Stream(methods.find("comastre"), FEW_POINTS)
    monkeypatch.setattr(
        testing,
        "build_method",
        lambda name, setup: Lonely(setup, real(name, setup).loss),  # type: ignore[attr-defined]
    )
    with pytest.raises(AssertionError, match="is another in two processes"):
        testing._check_two_processes(stream, methods.find("comastre"), FEW_POINTS, tmp_path)
