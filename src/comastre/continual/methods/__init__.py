"""Continual-learning methods: each builds or grows a model for a task and gives its loss on a batch."""

from comastre.config import RunConfig
from comastre.continual.methods.two_stage import TwoStageMethod, comastre, finetune, joint

__all__ = ["TwoStageMethod", "build_method"]


def build_method(config: RunConfig) -> TwoStageMethod:
    """The method that the configuration names."""
    return {"comastre": comastre, "finetune": finetune, "joint": joint}[config.method](config)
