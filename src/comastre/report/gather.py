"""Reading run directories, finished or not: everything that a report shows comes from there, never from the dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from comastre.config.methods import MethodSpec, methods
from comastre.config.run_files import CHECKPOINTS, CONFIG, ENVIRONMENT, EXAMPLES, METRICS, RESULTS, STEPS
from comastre.config.yaml_text import NotYaml, parse_yaml
from comastre.data.images import open_picture
from comastre.documents import Unreadable, parse_json, read_json, text_of
from comastre.errors import UserError
from comastre.evaluation.examples import INDEX, recorded_steps, step_folder
from comastre.evaluation.results import Results
from comastre.training.lock import is_held

# Columns of metrics.jsonl that are no loss terms.
_NOT_TERMS = ("step", "iteration", "learning_rate", "images_per_second")
_MOST_STEPS, _MOST_ITERATIONS = 10_000, 10**12
"""A line with larger numbers is none of ours."""


@dataclass(frozen=True)
class LossCurve:
    """One loss term, unweighted, over the iterations of the whole run."""

    name: str
    iterations: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Example:
    """One validation image with truth and predictions, as files."""

    name: str
    classes: tuple[str, ...]
    size: tuple[int, int]
    """Height and width."""
    image: Path
    truth: Path
    predictions: Mapping[int, Path]
    """By step; a step that was not recorded is missing."""


@dataclass(frozen=True)
class Examples:
    """The recorded pictures of a run, with the name and colour of labels 0, 1, ..."""

    images: tuple[Example, ...] = ()
    labels: tuple[tuple[str, tuple[int, int, int]], ...] = ()


@dataclass(frozen=True)
class Run:
    """What one run directory holds."""

    folder: Path
    config: Mapping[str, Any]
    """As written, not validated: a report must not need the version that trained."""
    results: Results | None
    """None before the first step is finished."""
    losses: tuple[LossCurve, ...]
    boundaries: tuple[int, ...]
    """Iterations of the whole run at which a later step begins."""
    position: tuple[int, int] | None
    """Step and iteration of the last line of the log."""
    examples: Examples = Examples()
    environment: Mapping[str, str] = field(default_factory=dict)
    held: bool = False
    """Whether a process is training it now."""
    remarks: tuple[str, ...] = ()
    """What could not be read, in sentences."""

    @property
    def method(self) -> str:
        return self.results.method if self.results else str(self.config.get("method", "comastre"))

    @property
    def proposes_only(self) -> bool:
        """Whether it learns to propose masks alone, so that there is recall but no class to score."""
        if self.results is None:
            # Before a step is finished, the method tells.
            return self._spec is not None and "labels" not in self._spec.gives
        return not any(step.recognises for step in self.results.steps)

    @property
    def is_joint(self) -> bool:
        at_once = self._spec is not None and self._spec.all_at_once
        return (at_once or (self.results is not None and self.results.setting == "joint")) and not self.proposes_only

    @property
    def _spec(self) -> MethodSpec | None:
        """Its method; None where that is not installed here."""
        return methods().get(self.method)

    @property
    def state(self) -> Literal["finished", "running", "stopped"]:
        if self.results is not None:
            learned = sum(len(step.new_classes) for step in self.results.steps)
            if learned == len(self.results.class_order):
                return "finished"
        return "running" if self.held else "stopped"

    def setting(self, section: str, name: str, default: Any = None) -> Any:
        """One field of the configuration."""
        part = self.config.get(section)
        return part.get(name, default) if isinstance(part, Mapping) else default


def read_run(folder: Path) -> Run:
    """The run in `folder`, or one sentence that says what is missing there."""
    folder = Path(folder)
    config = _read_config(folder)
    if not (folder / RESULTS).exists() and not (folder / METRICS).exists():
        raise UserError(f"{folder} is a run that has not begun: there is no {METRICS} and no {RESULTS} yet")
    remarks: list[str] = []
    results = _read_results(folder, remarks)
    lines = _read_metrics(folder / METRICS, remarks)
    curves, boundaries = _curves(lines, lambda step: _planned(config, results, step))
    return Run(
        folder=folder,
        config=config,
        results=results,
        losses=curves,
        boundaries=boundaries,
        position=(lines[-1]["step"], lines[-1]["iteration"]) if lines else None,
        examples=_read_examples(folder / EXAMPLES, remarks),
        environment=_read_environment(folder / ENVIRONMENT),
        held=is_held(folder),
        remarks=tuple(remarks),
    )


def _read_results(folder: Path, remarks: list[str]) -> Results | None:
    """Scores of the finished steps; where they are lost, how to get them back."""
    fix = f"`comastre train {folder / CONFIG} --out {folder}` restores it from the checkpoint"
    has_checkpoint = any((folder / CHECKPOINTS).glob("step-*.safetensors"))
    if not (folder / RESULTS).exists():
        if has_checkpoint and any((folder / STEPS).glob("[0-9]*")):
            remarks.append(f"Steps are finished, but {RESULTS} is missing: {fix}.")
        return None
    try:
        results = Results.load(folder / RESULTS)
    except UserError as error:
        if not has_checkpoint:
            raise
        raise UserError(f"{error} {fix}") from None
    return results if results.steps else None


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}: give the folder of a run, which `comastre train --out` made")
    if not (folder / CONFIG).is_file():
        inside = sorted(str(path.parent) for path in folder.glob(f"*/{CONFIG}"))
        hint = (
            f"give the runs in it, as in `comastre report {' '.join(inside)}`"
            if inside
            else "give the folder of a run, which `comastre train --out` made"
        )
        raise UserError(f"{folder} is not a run, it has no {CONFIG}: {hint}")
    try:
        content = parse_yaml(text_of(folder / CONFIG))
    except (OSError, Unreadable) as error:
        raise UserError(f"{folder / CONFIG} cannot be read ({error}): restore it") from error
    except NotYaml as error:
        raise UserError(f"{folder / CONFIG} is not valid YAML{error}: restore it") from None
    if not isinstance(content, dict):
        raise UserError(f"{folder / CONFIG} does not hold a configuration: restore it")
    return content


def _read_metrics(file: Path, remarks: list[str]) -> list[dict[str, Any]]:
    """The whole lines of `metrics.jsonl`; a run that is being written, or was killed, may end in half a line."""
    if not file.is_file():
        return []
    kept: list[dict[str, Any]] = []
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    damaged = 0
    for number, line in enumerate(lines, start=1):
        try:
            entry = parse_json(line)
            for name, most in (("step", _MOST_STEPS), ("iteration", _MOST_ITERATIONS)):
                if type(entry[name]) is not int or not 0 <= entry[name] < most:
                    raise ValueError(line)
            kept.append(entry)
        except (ValueError, KeyError, TypeError):
            damaged += number < len(lines)
    if damaged:
        remarks.append(f"{damaged} damaged lines of {file.name} were left out.")
    return kept


def _planned(config: Mapping[str, Any], results: Results | None, step: int) -> int:
    """Iterations of a step that the log does not hold: that of a base run, which this run took over."""
    training = config.get("training")
    if not isinstance(training, Mapping):
        return 0
    if step == 0:
        return _whole(training.get("iterations"))
    classes = len(results.steps[step].new_classes) if results is not None and step < len(results.steps) else 0
    return _whole(training.get("iterations_per_class")) * classes


def _whole(value: Any) -> int:
    """A number of iterations as a configuration gives it; 0 for what is none."""
    return value if type(value) is int and 0 <= value < _MOST_ITERATIONS else 0


def _number(value: Any) -> float | None:
    """A finite number of a log; None for what is none."""
    try:
        found = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _curves(
    lines: Sequence[Mapping[str, Any]], planned: Callable[[int], int]
) -> tuple[tuple[LossCurve, ...], tuple[int, ...]]:
    """Loss terms over all iterations, and where later steps begin."""
    lengths: dict[int, int] = {}
    for line in lines:
        lengths[line["step"]] = max(lengths.get(line["step"], 0), line["iteration"])
    offsets, total = {}, 0
    for step in range(max(lengths, default=-1) + 1):
        offsets[step] = total
        total += lengths[step] if step in lengths else planned(step)
    points: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        for name, value in line.items():
            if name not in _NOT_TERMS and (found := _number(value)) is not None:
                points.setdefault(name, []).append((offsets[line["step"]] + line["iteration"], found))
    curves = [
        LossCurve(name, tuple(at for at, _ in sorted(found)), tuple(value for _, value in sorted(found)))
        for name, found in points.items()
    ]
    return tuple(curves), tuple(offsets[step] for step in sorted(offsets)[1:])


def _read_examples(folder: Path, remarks: list[str]) -> Examples:
    if not (folder / INDEX).is_file():
        return Examples()
    try:
        index = read_json(folder / INDEX)
        labels = tuple((str(each["name"]), _colour(each["colour"])) for each in index["labels"])
        steps = recorded_steps(folder)
        images = []
        for number, each in enumerate(index["images"]):
            predictions = {step: folder / step_folder(step) / f"{number:02d}.png" for step in steps}
            image, truth = folder / "image" / f"{number:02d}.jpg", folder / "truth" / f"{number:02d}.png"
            if damaged := [path for path in (image, truth) if not _is_picture(path)]:
                remarks.append(f"The example picture {damaged[0]} is missing or damaged and was left out.")
                continue
            images.append(
                Example(
                    name=str(each["name"]),
                    classes=tuple(map(str, each["classes"])),
                    size=(int(each["height"]), int(each["width"])),
                    image=image,
                    truth=truth,
                    predictions={step: path for step, path in predictions.items() if _is_picture(path)},
                )
            )
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        remarks.append(f"The example pictures cannot be read ({error}).")
        return Examples()
    return Examples(tuple(images), labels)


def _is_picture(path: Path) -> bool:
    """Whether a photograph or a label map is there and whole."""
    try:
        with open_picture(path) as picture:
            picture.load()
            return picture.mode in ("P", "L") or path.suffix == ".jpg"
    except UserError:
        return False


def _colour(channels: Any) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, int(channel))) for channel in channels)
    return red, green, blue


def _read_environment(file: Path) -> dict[str, str]:
    try:
        content = read_json(file)
        return {str(name): str(value) for name, value in content.items()}
    except (OSError, ValueError, AttributeError):
        return {}  # a run of an earlier version, or a damaged file: the report says that there is none
