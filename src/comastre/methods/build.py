"""Continual-learning methods: each builds or grows a model for a task and gives its loss on a batch."""

from collections.abc import Callable

from comastre.config.run import RunConfig
from comastre.methods.comastre.method import TwoStageMethod, comastre, finetune, joint
from comastre.methods.comastre.stage_one import objectness

__all__ = ["TwoStageMethod", "build_method"]


def build_method(config: RunConfig) -> TwoStageMethod:
    """The method that the configuration names."""
    methods: dict[str, Callable[[RunConfig], TwoStageMethod]] = {
        "comastre": comastre,
        "finetune": finetune,
        "joint": joint,
        "objectness": objectness,
    }
    return methods[config.method](config)
