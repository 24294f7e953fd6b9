"""Studies that nobody trained: numbers made up, so that every table has an expectation from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from comastre.config.conventions import CONVENTIONS
from comastre.studies.found import RowFound, RunFound, Scores, SettingFound, StepFound, StudyFound


def made_run(row: str, seed: int, everything: float, proposes: bool = True, **other: Any) -> RunFound:
    """Two steps; base is 10 above `all` and inc 10 below, under every convention."""
    steps = []
    for step in range(2):
        scores = Scores(everything + 10, everything - 10 if step else None, everything)
        steps.append(
            StepFound(
                new_classes=2 - step,
                scores=dict.fromkeys(CONVENTIONS, scores),
                recall=(50.0 + seed, 40.0) if proposes else None,
                base_recall=45.0 if proposes else None,
                later_recall=30.0 if proposes and step == 0 else None,
                errors={"base": (3, 1, 0, 2), "later": (1, 0, 1, 0)} if proposes else {},
            )
        )
    per_class = {"background": 90.0, "disk": everything + 10, "star": None, "ring": everything - 10}
    given = {"setting": "2-1", "order": 0, "finished": True, "steps": tuple(steps), "per_class": per_class}
    return RunFound(row=row, seed=seed, kept=80.0, seconds=60.0, **{**given, **other})


def made_study(
    scores: Mapping[str, Sequence[float]],
    at_once: Sequence[str] = (),
    papers: Mapping[str, tuple[str, ...]] | None = None,
    **other: Any,
) -> StudyFound:
    """A row per name with a run per number, seeds 0, 1, ..."""
    papers = papers or {}
    rows = tuple(
        RowFound(name, "comastre", "CoMasTRe", at_once=name in at_once, paper=papers.get(name, ())) for name in scores
    )
    runs = tuple(made_run(name, seed, value) for name, values in scores.items() for seed, value in enumerate(values))
    given: dict[str, Any] = {
        "name": "made",
        "title": "A made study",
        "about": "",
        "scale": "",
        "metric": "all",
        "convention": "paper",
        "rows": rows,
        "settings": (SettingFound("2-1", "shapes-6-2", {"data.dataset": "shapes"}, "15-1"),),
        "seeds": tuple(range(max(map(len, scores.values())))),
        "orders": (0,),
        "runs": runs,
    }
    return StudyFound(**{**given, **other})
