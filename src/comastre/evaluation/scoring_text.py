"""The scores of a model on data, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from comastre.config.conventions import CONVENTIONS
from comastre.evaluation.results import BACKGROUND
from comastre.evaluation.scoring import Scores
from comastre.text import shortened, table

_MASKS = ("missed", "unsure", "confused", "right")


def render(scores: Scores, model: str) -> str:
    """Everything that was measured, and what was not."""
    parts = [
        "",
        _heading(scores, model),
        "",
        "mIoU in %",
        _conventions(scores),
        "",
        _classes(scores),
        "",
        _legend(scores),
    ]
    return "\n".join(parts).lstrip("\n")


def _heading(scores: Scores, model: str) -> str:
    mapping = scores.mapping
    steps = len(scores.tasks)
    images = {"val": "validation images", "train": "training images"}.get(scores.split, "images")
    rows = [
        ("model", f"{model}: {sum(map(len, scores.tasks))} classes in {steps} {'step' if steps == 1 else 'steps'}"),
        ("data", f"{scores.data}: {scores.images:,} {images}, {len(mapping.labels)} classes"),
    ]
    renamed = [f"{name} as {known}" for name, known in mapping.same.items() if name != known]
    if renamed:
        rows.append(("mapped", shortened(renamed)))
    if mapping.missing:
        rows.append(("not scored", f"{shortened(mapping.missing)}: not in the data"))
    if mapping.unknown:
        rows.append(("unknown", f"{shortened(mapping.unknown)}: not known to the model, so background to it"))
    if mapping.left_out:
        rows.append(("ignored", f"{shortened(mapping.left_out)}: pixels are not scored, as the map says"))
    rows.append(("seen at", _view(scores)))
    if scores.background != BACKGROUND:
        rows.append(("label 0", f"{scores.background} in the data, which counts as background"))
    return table(rows, indent=0)


def _view(scores: Scores) -> str:
    sides = [f"{side}" for side in scores.view.sides if side is not None]
    return f"short side {' and '.join(sides)}" if sides else "the images' own size"


def _conventions(scores: Scores) -> str:
    rows = [["convention", "base", "inc", "all", ""]]
    for name, value in scores.result.conventions.items():
        rows.append([name, _number(value.base), _number(value.inc), _number(value.all), CONVENTIONS[name].of_a_model])
    return _aligned(rows, numbers=(1, 2, 3))


def _classes(scores: Scores) -> str:
    result = scores.result
    steps = {name: step for step, names in enumerate(scores.tasks) for name in names}
    if result.recall is None:
        plain = [["class", "step", "IoU"]]
        plain += [[name, str(steps.get(name, "-")), _number(iou)] for name, iou in result.per_class.items()]
        return _aligned(plain, numbers=range(1, 3))
    rows = [["class", "step", "IoU", "recall", "confident", *_MASKS]]
    for name, iou in result.per_class.items():
        row = [name, str(steps.get(name, "-")), _number(iou)]
        recall, errors = result.recall_per_class.get(name), result.errors.get(name)
        row += ["-", "-"] if recall is None else [_number(recall.all), _number(recall.confident)]
        counts = () if errors is None else (errors.not_proposed, errors.below_alpha, errors.wrong_class, errors.right)
        row += [f"{count:,}" for count in counts] if any(counts) else ["-"] * 4
        rows.append(row)
    rows.append(["all masks", "", "", _number(result.recall.all), _number(result.recall.confident)])
    totals = [(each.not_proposed, each.below_alpha, each.wrong_class, each.right) for each in result.errors.values()]
    rows[-1] += [f"{sum(column):,}" for column in zip(*totals, strict=True)] if totals else ["-"] * 4
    return _aligned(rows, numbers=range(1, 9))


def _legend(scores: Scores) -> str:
    alpha = scores.result.alpha
    if alpha is None:
        return "the model labels pixels and proposes no masks: there is no recall and no count of missed masks"
    return table(
        [
            ("recall", "of true masks by proposals of any class, mean over IoU thresholds 0.50 to 0.95, in %"),
            ("confident", f"the same for proposals with objectness above {alpha:g}, which are recognised"),
            ("missed", "true masks that no proposal covers (IoU 0.5)"),
            ("unsure", f"covered, but with objectness of {alpha:g} or less"),
            ("confused", "covered, but taken for another class"),
            ("right", "covered and recognised"),
        ],
        indent=0,
    )


def _aligned(rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    """The rows with the columns `numbers` set to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return table(
        [
            [f"{cell:>{widths[column]}}" if column in numbers else cell for column, cell in enumerate(row)]
            for row in rows
        ]
    )


def _number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.1f}"
