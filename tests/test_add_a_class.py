"""`benchmarks/add_a_class.py`: which cells it has, and the tables that are made of them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("add_a_class")


@pytest.fixture(scope="module")
def tables(benchmark: ModuleType) -> ModuleType:
    return importlib.import_module("lesson_tables")


def test_every_lesson_is_there_once_seconds_first_and_what_is_given_last(benchmark: ModuleType) -> None:
    every = list(benchmark.cells((0, 1), list(benchmark.ROWS)))
    assert len(set(every)) == len(every) == 10 * 5 * 2 + 9 * 4 * 2
    assert [cell.row for cell in every[-10:]] == ["joint"] * 10 and all(cell.row != "joint" for cell in every[:-10])
    assert {cell.row for cell in every[:20]} == {"learn --instant", "learn --guarantee exact"}
    # What `learn` keeps aside is known before it would be trained again.
    rows = [cell.row for cell in every]
    assert len(rows) - 1 - rows[::-1].index("learn") < rows.index("learn --no-instant")
    assert set(benchmark.ROWS) == set(importlib.import_module("lesson_tables").ROWS)


def test_a_folder_that_two_want_is_made_whole_by_one(benchmark: ModuleType, tmp_path: Path) -> None:
    def make(out: Path, text: str, meanwhile: Path | None = None) -> None:
        out.mkdir()
        (out / "file").write_text(text)
        if meanwhile:
            make(meanwhile, "faster")

    place = tmp_path / "test-sheep"
    assert benchmark.made_once(place, lambda out: make(out, "slower", meanwhile=place)) == place
    assert (place / "file").read_text() == "faster" and [each.name for each in tmp_path.iterdir()] == ["test-sheep"]
    benchmark.made_once(place, lambda out: pytest.fail("it is there"))


def cell(new: float, kept: float, refused: bool | None = False, **more: object) -> dict[str, object]:
    return {"new": new, "kept": kept, "old": kept / 2, "seconds": 1800.0, "chosen": "", "refused": refused, **more}


def test_tables_have_means_spread_the_worst_lesson_and_the_gates_word(tables: ModuleType, tmp_path: Path) -> None:
    known = {
        "base | sheep | 0": {"old": 50.0},
        "base | sheep | 1": {"old": 52.0},
        "learn | sheep | 40 | 0": cell(50.0, 98.0, chosen="trained"),
        "learn | sheep | 40 | 1": cell(60.0, 96.0, chosen="instant"),
        "learn | sofa | 10 | 0": cell(20.0, 99.0, chosen="instant"),
        "fine-tuning | sheep | 40 | 0": cell(10.0, 20.0, refused=True),
        "learn --guarantee exact | sheep | 40 | 0": cell(30.0, 100.0, largest_change=0.0),
        "joint | sheep | 40 | 0": {"new": 70.0, "kept": 104.0, "old": 52.0, "seconds": 0.0},
    }
    known["machine"] = {"torch": "2.15.0", "cores": "2"}
    file = tmp_path / "cells.json"
    file.write_text(json.dumps(known))
    assert tables.lessons_table(tables.read_cells([file])).splitlines()[2:] == [
        "| the model before | | – | 51.0 | 100 % | | |",
        "| learn | 2 | 55.0 ± 7.1 | 48.5 ± 0.7 | 97.0 % | 96.0 % | 0 of 2 |",
        "| learn --guarantee exact | 1 | 30.0 | 50.0 | 100.0 % | 100.0 % | 0 of 1 |",
        "| fine-tuning | 1 | 10.0 | 10.0 | 20.0 % | 20.0 % | 1 of 1 |",
        "| joint | 1 | 70.0 | 52.0 | 104.0 % | 104.0 % | – |",
        "| learn, 10 images | 1 | 20.0 | 49.5 | 99.0 % | 99.0 % | 0 of 1 |",
    ]
    lines = tables.classes_table(known).splitlines()
    assert lines[0] == "| training | pottedplant | sheep | sofa | train | tvmonitor |"
    assert lines[2] == "| learn |  | 55.0 / 97 % |  |  |  |"
    assert lines[-1] == "| learn, 10 images |  |  | 20.0 / 99 % |  |  |"
    assert tables.facts(known) == (
        "6 lessons, 2.5 hours of processor time. `learn` handed over the trained model in 1 of 3 lessons, else the "
        "instant one. Largest change of any old score under the guarantee, in all lessons: 0. torch 2.15.0; cores 2.\n"
    )
