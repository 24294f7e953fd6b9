"""The section of the exact method: CoMasTRe's own, and how classes are told apart that come after the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from comastre.config.sections import BackboneConfig, PositiveFloat, PositiveInt, Share
from comastre.methods.comastre.config import ComastreConfig, InferenceConfig, ModelConfig
from comastre.section import Section


class ExactInferenceConfig(InferenceConfig):
    margin: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0
    """How much better a new class must fit a proposal than all old ones and than no class, in log-odds."""
    temperature: PositiveFloat = 5.0
    """What log-odds are divided by before they become a score that old scores are compared with."""


class StatisticsConfig(Section):
    shrinkage: Share = 0.2
    """How far the covariance is drawn towards its diagonal: 0 not at all, 1 leaves the diagonal alone."""
    trained_tasks: PositiveInt = 1
    """How many tasks were trained before the model was sealed; later ones are statistics."""


class OwnQueriesConfig(Section):
    number: Annotated[int, Field(ge=0, le=1000)] = 0
    """Queries that every later step adds and trains, beside the statistics; 0: nothing is trained."""


class ExactModelConfig(ModelConfig):
    inference: ExactInferenceConfig = ExactInferenceConfig()


class ExactConfig(ComastreConfig):
    """The section `comastre` of a run of `comastre-exact`."""

    model_sections: ClassVar[tuple[str, ...]] = (*ComastreConfig.model_sections, "statistics", "own_queries")

    added_sections: ClassVar[tuple[str, ...]] = ("own_queries",)

    inference: ExactInferenceConfig = ExactInferenceConfig()
    statistics: StatisticsConfig = StatisticsConfig()
    own_queries: OwnQueriesConfig = OwnQueriesConfig()

    def model(self, size: str, backbone: BackboneConfig) -> ExactModelConfig:
        given = {name: getattr(self, name) for name in ComastreConfig.model_sections}
        return ExactModelConfig.model_validate({"size": size, "backbone": backbone, **given})

    @classmethod
    def adopting(cls, settings: Mapping[str, Any], num_tasks: int) -> Mapping[str, Any]:
        """What its other tasks were, they were trained."""
        return {**settings, "statistics": {"trained_tasks": num_tasks}}

    def shapes_first_step(self, field: str, from_init: bool) -> bool:
        """Nothing of how later classes are told apart does."""
        if field.startswith(("statistics.", "own_queries.", "inference.margin", "inference.temperature")):
            return False
        return super().shapes_first_step(field, from_init)

    def learns_at_once(self, step: int) -> bool:
        return step > 0 and self.own_queries.number == 0

    def for_lesson(self, new_classes: int) -> Mapping[str, Any]:
        """Own queries begin anew and move nothing old: few images teach them at the first step's rate, too."""
        return {"optimiser": {"later_learning_rate": self.optimiser.rate(0)}}
