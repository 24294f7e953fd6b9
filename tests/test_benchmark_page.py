"""The page of measured comparisons says what its studies say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from comastre.studies.found import read_found
from studies.made_studies import made_study

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_tables", DOCS / "benchmark_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_is_as_its_study_has_it(tables: ModuleType) -> None:
    page = (DOCS / "benchmark.md").read_text(encoding="utf-8")
    found = [match["study"] for match in tables.BLOCK.finditer(page)]
    assert page.count("<!-- end -->") == len(found) > 0
    measured = [*DOCS.glob("studies/*/study.json"), *DOCS.glob(f"studies/*/{tables.CELLS}")]
    assert {path.parent.name for path in measured} == set(found)
    assert tables.filled(page, DOCS / "studies") == page, "python docs/benchmark_tables.py writes it again"


def test_studies_are_small_and_name_no_place_of_a_machine() -> None:
    for path in DOCS.glob("studies/*/study.json"):
        assert path.stat().st_size < 400_000, path
        text = path.read_text(encoding="utf-8")
        assert "/tmp/" not in text and "/home/" not in text and "/work/" not in text, path
        assert any(run.finished for run in read_found(path).runs), path


def test_a_table_is_filled_from_its_study_and_the_rest_of_the_page_stays(tables: ModuleType, tmp_path: Path) -> None:
    study = made_study(
        {"ours": [50.0, 52.0], "theirs": [40.0, 41.0]}, environment={"device": "a laptop"}, orders=(0, 3)
    )
    (tmp_path / "some").mkdir()
    study.write(tmp_path / "some" / "study.json")
    page = (
        "before\n\n"
        + "\n\n".join(f"<!-- some: {part} -->\nformer\n<!-- end -->" for part in tables.PARTS)
        + "\n\nafter"
    )
    filled = tables.filled(page, tmp_path)
    assert (
        filled.startswith("before\n\n<!-- some: scores -->\n")
        and filled.endswith("\n\nafter")
        and "former" not in filled
    )
    assert "| ours | **61.0 ± 1.4** |" in filled
    assert "ours is first on all" in filled
    assert "4 runs, 0.1 hours by their own clocks" in filled and "device a laptop" in filled
    # 3, 1, 0 and 2 of a run's six masks of base classes, 1, 0, 1 and 0 of its later ones
    assert "| ours | 50 % | 17 % | 0 % | 33 % | 50 % | 0 % | 50 % | 0 % |" in filled
    # No run of order 3 is finished.
    assert "| ours | 51.0 ± 1.4 | – | – | 1.4 |" in filled
    assert tables.filled(filled, tmp_path) == filled
