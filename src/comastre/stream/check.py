"""`comastre data check`: read every file once, count, and list what is bad."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from comastre.config.datasets import find_dataset
from comastre.config.run import RunConfig
from comastre.data.build import build_dataset, build_datasets
from comastre.data.dataset import IGNORE, SegmentationDataset
from comastre.data.hints import hints_of
from comastre.data.label_counts import LabelCounts
from comastre.data.parallel import each_in_parallel
from comastre.data.sources import DataSource
from comastre.errors import UserError
from comastre.stream.build import build_stream, plan_stream
from comastre.stream.scenario import Scenario
from comastre.text import shortened, table


@dataclass(frozen=True)
class SplitReport:
    """What was found in one split."""

    split: str
    presence: tuple[frozenset[int], ...]
    """Classes of each image; none where the image is bad."""
    problems: tuple[str, ...]
    """One sentence per bad image, with the name of the file."""
    counts: LabelCounts = field(default_factory=LabelCounts)
    """Over all images that are good."""

    @property
    def images_of(self) -> Counter[int]:
        """How many images show each class."""
        return Counter(label for classes in self.presence for label in classes)


@dataclass(frozen=True)
class DataReport:
    """What was found in a dataset."""

    dataset: str
    class_names: tuple[str, ...]
    training: SplitReport
    validation: SplitReport
    scenario: Scenario | None
    scenario_problem: str | None
    """Why the setting cannot be run on the data, if so."""
    training_set: SegmentationDataset
    hints: tuple[str, ...] = ()
    """What looks wrong without being wrong, one sentence each."""

    @property
    def pixels(self) -> tuple[int, ...]:
        """Of every label 0..255, in both splits."""
        return self.counts.pixels

    @property
    def counts(self) -> LabelCounts:
        """What was counted in the labels of both splits."""
        return LabelCounts.sum((self.training.counts, self.validation.counts))

    def share(self, label: int) -> float | None:
        """Percent of the pixels that are not ignored; None where there are none."""
        counted = sum(self.pixels[:IGNORE])
        return 100.0 * self.pixels[label] / counted if counted else None

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is bad, one sentence each."""
        setting = (self.scenario_problem,) if self.scenario_problem is not None else ()
        return (*self.training.problems, *self.validation.problems, *setting)


def check_data(
    config: RunConfig, processes: int | None = None, source: DataSource | None = None, for_a_setting: bool = True
) -> DataReport:
    """Read every image and mask of both splits in parallel; all images of a `source` without a validation split.

    Unless it is checked `for_a_setting`, a class without images is no problem: `learn` leaves it out.
    """
    if source is not None and not find_dataset(config.data.dataset).validates(config.data):
        training_set = build_dataset(config.data, "all")
        validation = SplitReport("validation", (), ())
    else:
        training_set, validation_set = build_datasets(config.data, require_files=False)
        validation = _check_split(validation_set, "validation", processes)
    training = _check_split(training_set, "training", processes)
    scenario = problem = None
    try:
        stream = build_stream if for_a_setting else plan_stream
        scenario = stream(config, training.presence, training_set.class_names)
    except UserError as error:
        problem = str(error)
    report = DataReport(
        training_set.name, training_set.class_names, training, validation, scenario, problem, training_set
    )
    presence = (*training.presence, *validation.presence)
    found = hints_of(training_set, presence, report.counts)
    if not for_a_setting:
        found += _validated_alone(report)
    return replace(report, hints=tuple(found))


def _validated_alone(report: DataReport) -> list[str]:
    trained, validated = report.training.images_of, report.validation.images_of
    names = [name for label, name in enumerate(report.class_names, start=1) if validated[label] and not trained[label]]
    return [f"shown by validation images, but by none for training: {shortened(names)}"] if names else []


@dataclass(frozen=True)
class _Read:
    dataset: SegmentationDataset

    def __call__(self, index: int) -> LabelCounts:
        return LabelCounts.of(self.dataset[index].semantic)


def _check_split(dataset: SegmentationDataset, split: str, processes: int | None) -> SplitReport:
    answers = each_in_parallel(_Read(dataset), len(dataset), f"reading {len(dataset):,} {split} images", processes)
    counts = [LabelCounts() if isinstance(answer, UserError) else answer for answer in answers]
    presence = tuple(frozenset(label for label in range(1, IGNORE) if each.pixels[label]) for each in counts)
    bad = tuple(str(answer) for answer in answers if isinstance(answer, UserError))
    return SplitReport(split, presence, bad, LabelCounts.sum(counts))


def render(report: DataReport) -> str:
    """The report as text: classes, steps, and what is bad."""
    training, validation = report.training, report.validation
    images = f"{len(training.presence):,} training and {len(validation.presence):,} validation images"
    if not validation.presence:
        images = f"{len(training.presence):,} images, none of them set apart for validation"
    lines = [
        f"{report.dataset}: {len(report.class_names)} classes, {images}",
        "",
        table(_class_rows(report)),
    ]
    if report.scenario is not None:
        lines += ["", _title(report.scenario), table(_step_rows(report))]
    if report.hints:
        lines += ["", *(f"warning: {hint}" for hint in report.hints)]
    for problems, what in ((training.problems, "training"), (validation.problems, "validation")):
        if problems:
            lines += ["", f"{len(problems)} bad {what} {'image' if len(problems) == 1 else 'images'}:", *problems]
    if report.scenario_problem is not None:
        lines += ["", report.scenario_problem]
    number = len(report.problems)
    end = f"{number:,} {'problem' if number == 1 else 'problems'}" if number else "every file is good"
    return "\n".join([*lines, "", end])


def _title(scenario: Scenario) -> str:
    tradition = "images by the protocol's rule" if scenario.tradition == "protocol" else "images from a fixed partition"
    return f"setting {scenario.setting}, {scenario.protocol}, {tradition}:"


def _class_rows(report: DataReport) -> list[list[str]]:
    steps = {
        label: task.step for task in (report.scenario.tasks if report.scenario else ()) for label in task.new_classes
    }
    rows = [["CLASS", "NAME", "STEP", "TRAINING IMAGES", "VALIDATION IMAGES", "PIXELS"]]
    of_split = [split.images_of for split in (report.training, report.validation)]
    for label, name in enumerate(report.class_names, 1):
        counts = [f"{images[label]:,}" for images in of_split]
        share = report.share(label)
        rows.append([str(label), name, str(steps.get(label, "-")), *counts, "-" if share is None else f"{share:.2f} %"])
    return rows


def _step_rows(report: DataReport) -> list[list[str]]:
    assert report.scenario is not None
    rows = [["STEP", "NEW CLASSES", "IMAGES"]]
    for task in report.scenario.tasks:
        names = [report.class_names[label - 1] for label in task.new_classes]
        rows.append([str(task.step), shortened(names, most=3), f"{len(task.images):,}"])
    return rows
