"""The README.md of a model bundle."""

from __future__ import annotations

from comastre.class_table import ClassTable, LineageStep

ADDRESS = "PATH_OR_HUB_ID_OF_THIS_FOLDER"
"""Placeholder in the card's commands for the place of the model."""


def model_card(what: str, classes: ClassTable, num_weights: int) -> str:
    """What the model is (`what`, in a few words), what it knows and how it learned it, for people and for the hub."""
    front = "---\nlibrary_name: comastre\npipeline_tag: image-segmentation\ntags:\n- continual-learning\n---\n"
    rows = "\n".join(
        f"| {step} | {', '.join(_plain(each.name) for each in classes.classes if each.task == step)} |"
        for step in range(len(classes.tasks))
    )
    return f"""{front}
# A segmentation model that learned its classes step by step

{_plain(what)}, {num_weights:,} numbers, {len(classes.names)} classes and
{_plain(classes.background)}.

```python
import comastre

model = comastre.load("{ADDRESS}")
prediction = model.predict("photo.jpg")
```

## Classes

| step | classes |
|---|---|
{rows}

## Lineage

{_lineage(classes.lineage)}
The folder holds tensors as safetensors and text; nothing in it is executed when it is loaded.
"""


def _lineage(steps: tuple[LineageStep, ...]) -> str:
    if not steps:
        return "Not recorded.\n"
    rows = [f"| {each.step} | {each.date} | {_plain(each.data)} | {_scores(each)} |" for each in steps]
    warning = [] if steps[-1].status == "passed" else [f"**The last lesson: {_verdict(steps[-1])}.**", ""]
    return "\n".join([*warning, "| step | date | data | scores |", "|---|---|---|---|", *rows, ""])


def _verdict(step: LineageStep) -> str:
    """What the gate said of a lesson that it did not let pass."""
    what = "refused, because it forgot too much" if step.status == "refused" else "nothing was learned"
    return f"{what} ({_plain(step.note)})" if step.note else what


def _scores(step: LineageStep) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in step.scores.items() if value is not None) or "-"


def _plain(text: str) -> str:
    """Text that cannot break out of a table's cell."""
    return " ".join(text.replace("|", "/").split())
