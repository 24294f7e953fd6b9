"""The page of a study in a real browser: nothing fetched, nothing complained about, no sideways scrolling."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import browser, installed, open_file

from comastre.report.study_page import render_study
from studies.made_studies import made_study

pytestmark = pytest.mark.skipif(installed() is None, reason="no browser is installed (Debian's package: chromium)")


def test_a_study_is_drawn_on_any_screen_and_tells_its_numbers(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    rows = {f"a row with a long name {number}": [40.0 + number, 41.0, 43.0 - number] for number in range(9)}
    file.write_text(render_study(made_study({**rows, "joint": [60.0]}, at_once=["joint"]), "paper"), encoding="utf-8")
    with browser() as started:
        for width in (1280, 390):
            with open_file(started, file, width, dark=width == 390) as opened:
                opened.settle()
                assert opened.complaints == []
                assert opened.requests == [file.resolve().as_uri()]
                assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
                assert opened.page.locator("svg .dot").count() == 3 * (27 + 1)  # all, base and inc
        with open_file(started, file, 1280) as opened:
            opened.page.locator("svg .hit").first.hover()
            assert "runs: 40.0, 41.0, 43.0" in opened.page.locator("#tip").inner_text()
