"""A report on a run whose files hold anything is a page, or one sentence."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_runs import make_run

from any_values import ANYTHING, LARGE, LIMIT, few, places_in, replaced, write_json
from comastre.errors import UserError
from comastre.report.write import write_report

pytestmark = LIMIT


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run")


def report(run: Path) -> None:
    with suppress(UserError):
        write_report([run], run / "report.html")


@pytest.mark.parametrize("name", ["results.json", "examples/index.json", "config.yaml"])
def test_any_json_in_a_run(name: str, run: Path) -> None:
    import yaml

    file = run / name
    original = file.read_bytes()
    content = yaml.safe_load(original) if name.endswith("yaml") else json.loads(original)

    @few(8)
    @given(st.sampled_from(places_in(content)), ANYTHING)
    @example(("steps", 2, "task_confusion", 1), [])
    @example(("steps", 2, "task_confusion"), [[]])
    def check(place: tuple[Any, ...], value: Any) -> None:
        if place not in places_in(content):
            return  # an example of another file
        write_json(file, replaced(content, place, value))
        report(run)

    try:
        check()
    finally:
        file.write_bytes(original)


@few(6)
@given(ANYTHING)
@example({"step": 10**10, "iteration": 1, "total": 1.0})
@example({"step": 0, "iteration": LARGE, "total": 10**400})
@example({"step": -1, "iteration": 1, "total": 1.0})
@example({"step": 0, "iteration": 7, "total": float("nan"), "other": True})
def test_any_line_in_the_log(run: Path, value: Any) -> None:
    file = run / "metrics.jsonl"
    original = file.read_text()
    try:
        file.write_text(original + json.dumps(value) + "\n" + original)
        report(run)
    finally:
        file.write_text(original)


@few(6)
@given(st.sampled_from(["image/00.jpg", "truth/00.png", "step-00/01.png", "../.holder"]), st.binary(max_size=200))
@example("../.holder", b"process 99999999999999999999 on here")
@example("../.holder", "process \u00b2 on here".encode())
def test_any_bytes_in_a_picture_or_the_holder(run: Path, name: str, content: bytes) -> None:
    file = run / "examples" / name
    original = file.read_bytes() if file.exists() else None
    try:
        file.write_bytes(content)
        report(run)
    finally:
        if original is None:
            file.unlink()
        else:
            file.write_bytes(original)
