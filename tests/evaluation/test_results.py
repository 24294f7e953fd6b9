from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comastre.config.conventions import CONVENTIONS
from comastre.errors import UserError
from comastre.evaluation.recall import Recall
from comastre.evaluation.results import ClassErrors, Results, StepResult
from comastre.evaluation.scores import Miou

FIRST = StepResult(
    step=0,
    new_classes=("disk", "ring"),
    images=965,
    conventions=dict.fromkeys(CONVENTIONS, Miou(60.0, None, 62.0)) | {"no_background": Miou(50.0, None, 51.0)},
    per_class={"background": 95.1, "disk": 60.0, "ring": None},
    recall=Recall(55.8, 48.8),
    recall_per_class={"disk": Recall(50.0, 40.0), "ring": Recall(61.0, 57.0)},
    later_recall=Recall(33.0, 11.0),
    later_recall_per_class={"star": Recall(33.0, 11.0)},
    errors={"disk": ClassErrors(1, 2, 3, 4), "ring": ClassErrors(0, 0, 0, 9)},
    alpha=0.8,
    task_confusion=((90, 1), (2, 30)),
    seconds=120.5,
)
SECOND = replace(
    FIRST,
    step=1,
    new_classes=("star",),
    images=40,
    conventions=dict.fromkeys(CONVENTIONS, Miou(50.0, 30.0, 49.0)) | {"no_background": Miou(40.0, 30.0, 39.0)},
    per_class={"background": 90.0, "disk": 55.5, "ring": 1 / 3, "star": 30.0},
    later_recall=None,
    later_recall_per_class={},
)
EMPTY = Results(
    method="comastre",
    dataset="shapes",
    setting="2-1",
    protocol="overlapped",
    seed=0,
    background=True,
    class_order=("disk", "ring", "star"),
)
RESULTS = EMPTY.add(FIRST).add(SECOND)
WITHOUT_PROPOSALS = replace(
    RESULTS,
    steps=tuple(
        replace(
            step,
            recall=None,
            recall_per_class={},
            later_recall=None,
            later_recall_per_class={},
            errors={},
            alpha=None,
        )
        for step in RESULTS.steps
    ),
)


def test_the_document_has_designs_keys_and_numbers() -> None:
    document = RESULTS.as_json()
    required = "version method dataset setting protocol seed background class_order steps avg forgetting conventions"
    assert set(required.split()) <= document.keys()
    assert document.keys() - set(required.split()) == {"tradition", "convention"}
    assert document["version"] == 1
    assert document["class_order"] == ["disk", "ring", "star"]
    step = document["steps"][0]
    required_of_step = {"step", "new_classes", "images", "miou", "per_class", "recall", "seconds"}
    assert required_of_step <= step.keys()
    later = {"later_recall", "later_recall_per_class"}
    assert step.keys() - required_of_step == {"recall_per_class", "errors", "alpha", "task_confusion", *later}
    assert step["miou"] == {"base": 60.0, "inc": None, "all": 62.0}
    assert step["per_class"] == {"background": 95.1, "disk": 60.0, "ring": None}
    assert step["recall"] == {"all": 55.8, "confident": 48.8}
    assert document["avg"] == 55.5
    assert document["forgetting"] == {"disk": 4.5, "ring": 0.0}  # neither background nor what was learned just now
    assert document["conventions"].keys() == CONVENTIONS.keys()
    assert document["conventions"]["no_background"] == {
        "steps": [{"base": 50.0, "inc": None, "all": 51.0}, {"base": 40.0, "inc": 30.0, "all": 39.0}],
        "avg": 45.0,
    }


def test_headline_numbers_follow_the_named_convention() -> None:
    document = replace(RESULTS, convention="no_background").as_json()
    assert document["convention"] == "no_background"
    assert document["steps"][1]["miou"] == {"base": 40.0, "inc": 30.0, "all": 39.0}
    assert document["avg"] == 45.0


@pytest.mark.parametrize(
    "results",
    [RESULTS, EMPTY, WITHOUT_PROPOSALS, replace(RESULTS, tradition="partition", convention="no_background")],
)
def test_round_trip(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.write(path)
    assert Results.load(path) == results
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_without_proposals_there_is_null_and_nothing_else_changes() -> None:
    ours, theirs = WITHOUT_PROPOSALS.as_json(), RESULTS.as_json()
    for step in ours["steps"]:
        assert (step["recall"], step["alpha"], step["recall_per_class"], step["errors"]) == (None, None, {}, {})
    lacking = {"recall": None, "alpha": None, "recall_per_class": {}, "errors": {}}
    lacking |= {"later_recall": None, "later_recall_per_class": {}}
    assert ours == {**theirs, "steps": [{**step, **lacking} for step in theirs["steps"]]}


def test_files_written_before_alpha_was_recorded_still_load() -> None:
    document = RESULTS.as_json()
    for step in document["steps"]:
        del step["alpha"]
    loaded = Results.from_json(document)
    assert loaded.steps == tuple(replace(step, alpha=None) for step in RESULTS.steps)


def test_files_written_before_later_classes_were_counted_still_load() -> None:
    document = RESULTS.as_json()
    for step in document["steps"]:
        del step["later_recall"], step["later_recall_per_class"]
    loaded = Results.from_json(document)
    assert loaded.steps == tuple(replace(step, later_recall=None, later_recall_per_class={}) for step in RESULTS.steps)


def test_a_later_class_in_no_image_is_null_and_comes_back() -> None:
    nowhere = Recall(math.nan, math.nan)
    results = EMPTY.add(replace(FIRST, later_recall=nowhere, later_recall_per_class={"star": nowhere}))
    document = results.as_json()
    assert document["steps"][0]["later_recall"] == {"all": None, "confident": None}
    (step,) = Results.from_json(document).steps
    assert step.later_recall is not None and math.isnan(step.later_recall.all)
    assert math.isnan(step.later_recall_per_class["star"].confident)
    assert "not learned yet" not in step.summary("paper")


def test_nan_becomes_null_and_comes_back(tmp_path: Path) -> None:
    nothing = replace(
        FIRST, conventions=dict.fromkeys(CONVENTIONS, Miou(math.nan, None, math.nan)), recall=Recall(math.nan, math.nan)
    )
    path = tmp_path / "results.json"
    EMPTY.add(nothing).write(path)
    assert "NaN" not in path.read_text()
    document = json.loads(path.read_text())
    assert document["avg"] is None
    assert document["steps"][0]["miou"] == {"base": None, "inc": None, "all": None}
    loaded = Results.load(path)
    assert math.isnan(loaded.steps[0].conventions["paper"].all)
    assert loaded.steps[0].recall is not None and math.isnan(loaded.steps[0].recall.confident)
    assert loaded.steps[0].conventions["paper"].inc is None


def test_a_step_run_again_replaces_itself_and_what_came_after() -> None:
    again = replace(FIRST, images=7)
    assert RESULTS.add(again).steps == (again,)
    with pytest.raises(ValueError, match=r"steps\[0\] says that it is step 1"):
        EMPTY.add(SECOND)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    EMPTY.write(path)

    def full_disk(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match=r"results\.json: No space left on device"):
        RESULTS.write(path)
    assert Results.load(path) == EMPTY
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def changed(**changes: Any) -> str:
    return json.dumps(RESULTS.as_json() | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[1, 2]", "has no version"),
        ("{}", "has no version"),
        (changed(version=2), "version 2 but this comastre reads up to 1; upgrade"),
        (changed(steps=5), "malformed"),
        (changed(steps=[{}]), "malformed .*recall"),
        (changed(seed="many"), "malformed .*seed"),
        (changed(conventions={}), "malformed .*'paper'"),
        (changed(conventions={"paper": {"steps": []}}), "malformed"),
        (changed(convention="mine"), "malformed .*'mine' is not one of paper"),
        (json.dumps({key: value for key, value in RESULTS.as_json().items() if key != "method"}), "malformed .*method"),
    ],
)
def test_a_bad_file_gives_one_sentence_with_its_name(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        Results.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*absent\.json"):
        Results.load(tmp_path / "absent.json")


def test_kept_is_of_the_base_classes_without_background_whatever_the_convention() -> None:
    first = {"paper": Miou(70.0, None, 70.0), "no_background_in_base": Miou(60.0, None, 70.0)}
    last = {"paper": Miou(63.0, 20.0, 50.0), "no_background_in_base": Miou(45.0, 20.0, 50.0)}

    def results(*steps: dict[str, Miou], convention: str = "paper") -> Results:
        done = [StepResult(number, (f"c{number}",), 1, each, {}, None) for number, each in enumerate(steps)]
        return Results("m", "d", "1-1", "overlapped", 0, True, ("c0", "c1"), convention=convention, steps=tuple(done))

    assert results(first, last).kept == results(first, last, convention="no_background_in_base").kept == 75.0
    assert results(first).kept is None
    assert results({**first, "no_background_in_base": Miou(0.0, None, 0.0)}, last).kept is None
