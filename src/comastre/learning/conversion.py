"""What the training loop needs to turn a Mask2Former into CoMasTRe: images without labels, and how alike both are.

To the loop a conversion is a stream of one step that starts from the Mask2Former (`init`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from comastre.bundle import store
from comastre.bundle.store import Bundle, Description
from comastre.class_table import ClassTable, LineageStep
from comastre.config.run import RunConfig
from comastre.data.dataset import SegmentationDataset
from comastre.data.unlabelled import unlabelled
from comastre.evaluation.agreement import agreement
from comastre.evaluation.results import Results, StepResult
from comastre.evaluation.scores import Miou
from comastre.learning.conversion_settings import CONVENTION
from comastre.methods.build import setup_of
from comastre.methods.comastre.conversion import conversion
from comastre.methods.protocol import Method
from comastre.stream.loading import training_batches
from comastre.stream.scenario import Scenario, Task
from comastre.training.parts import LearnedStep, Parts
from comastre.training.start import init_model

SAME_PIXELS = "same pixels"
"""The score of the conversion in the lineage."""


@dataclass(frozen=True)
class ConvertedStep(StepResult):
    """How alike both models are; `per_class` is the share of pixels that both take for a class."""

    same_pixels: float = math.nan
    """Percent of all pixels that have the same label."""

    def summary(self, convention: str) -> str:
        return f"the same label as the original's on {self.same_pixels:.1f} % of the pixels"


@dataclass(frozen=True)
class Conversion:
    """Which images turn which model into what; small, because every process gets a copy."""

    known: ClassTable
    description: Description
    """What the new model will be, with the settings that later lessons follow."""
    images: tuple[Path, ...]
    """All images."""
    training: tuple[int, ...]
    """Places of those to learn from."""
    compared: tuple[int, ...]
    """Places of those on which both models are compared."""

    @property
    def apart(self) -> bool:
        """Whether no image both teaches and compares."""
        return set(self.compared).isdisjoint(self.training)

    def parts(self) -> Parts:
        """The functions of the loop."""
        return Parts(
            self.data, self.scenario_of, method_of, training_batches, self.evaluate, self.save, title="converting"
        )

    def data(self, config: RunConfig) -> tuple[SegmentationDataset, SegmentationDataset]:
        """The images to learn from, and those to compare on."""
        chosen = [[self.images[place] for place in places] for places in (self.training, self.compared)]
        training, compared = (unlabelled(images, self.known.names, self.known.colours) for images in chosen)
        return training, compared

    def scenario_of(self, config: RunConfig, training_set: SegmentationDataset) -> Scenario:
        order = tuple(range(1, len(self.known.names) + 1))
        task = Task(0, order, (), (), tuple(range(len(self.training))))
        return Scenario(config.continual.setting, "overlapped", "protocol", order, (task,))

    def evaluate(self, learned: LearnedStep) -> ConvertedStep:
        """Compare with the original."""
        original = init_model(learned.config.init)
        assert original is not None
        models = (original.to(learned.device).eval(), learned.model)
        view, dataset = self.description.view, learned.prepared.validation_set
        found = agreement(models, dataset, self.known.names, view, learned.device, learned.scored)
        shares = [share for share in found.per_class.values() if share is not None]
        mean = sum(shares) / len(shares) if shares else math.nan
        return ConvertedStep(
            step=0,
            new_classes=self.known.names,
            images=len(self.training),
            conventions={CONVENTION: Miou(base=mean, inc=None, all=mean)},
            per_class=found.per_class,
            recall=None,
            seconds=learned.seconds,
            same_pixels=found.pixels,
        )

    def save(self, learned: LearnedStep, folder: Path, results: Results) -> None:
        """The bundle of the new model, whose lineage says that it was converted."""
        step = results.steps[-1]
        same = step.same_pixels if isinstance(step, ConvertedStep) else None
        line = LineageStep(
            step=len(self.known.tasks) - 1,
            date=datetime.now(UTC).date().isoformat(),
            data=f"converted to CoMasTRe on {len(self.training)} images without labels",
            new_classes=(),
            scores={SAME_PIXELS: same},
        )
        table = self.known.model_copy(update={"lineage": (*self.known.lineage, line)})
        store.save(Bundle(learned.model, table, self.description), folder, overwrite=True)


def method_of(config: RunConfig) -> Method:
    """The method of a conversion."""
    return conversion(setup_of(config))
