"""The page in a real browser: nothing missing, nothing loaded from elsewhere, the slider and the tips work."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, browser, installed
from made_runs import make_joint, make_run

from comastre.report.write import write_report

pytestmark = pytest.mark.skipif(installed() is None, reason="no browser is installed (Debian's package: chromium)")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    runs = [make_run(folder / "a"), make_run(folder / "b", (60.0, 20.0, 10.0), method="finetune")]
    write_report([*runs, make_joint(folder / "joint")], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_it_is_whole_at_any_width(page: Page, report: Path, width: int, dark: bool) -> None:
    page.open(report, width, dark=dark)
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("data:", "file:"))] == []
    assert sum(url.startswith("file:") for url in page.requests) == 1
    # Pictures of other steps are hidden, but must be there too.
    missing = "[...document.images].filter((image) => !image.complete || !image.naturalWidth).length"
    assert page.run("document.images.length") > 0
    assert page.run(missing) == 0
    assert page.run("document.documentElement.scrollWidth") <= width
    shade = page.run("getComputedStyle(document.body).backgroundColor")
    assert shade == ("rgb(16, 22, 29)" if dark else "rgb(255, 255, 255)")


def shown(page: Page) -> list[str]:
    images = "[...document.querySelectorAll('.card:first-child img.labels')]"
    return list(page.run(f"{images}.filter((image) => image.checkVisibility()).map((image) => image.alt)"))


def test_the_slider_goes_over_the_steps_by_keyboard(page: Page, report: Path) -> None:
    page.open(report, 1280)
    assert shown(page)[1:] == [f"image-0, predicted by {who} after step 3" for who in ("CoMasTRe", "fine-tuning")]
    page.run("document.querySelector('input.step').focus()")
    page.press("ArrowLeft")
    assert all(alt.endswith("after step 2") for alt in shown(page)[1:])
    assert page.run("document.querySelector('output').innerText") == "After step 2 of 3: now also cow"
    later = "[...document.querySelectorAll('.chips .later')].map((chip) => chip.innerText.trim())"
    assert page.run(later) == ["bus"]
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    assert len(shown(page)) == 3 and shown(page)[1].endswith("after step 1")
    assert page.complaints == []


def test_tips_of_cells_points_and_pictures(page: Page, report: Path) -> None:
    page.open(report, 1280)
    tip = "document.getElementById('tip').checkVisibility() ? document.getElementById('tip').innerText : ''"
    assert page.run(tip) == ""
    page.hover("table.heat tbody tr:nth-child(3) td:nth-of-type(4)")
    assert page.run(tip) == "cat, CoMasTRe, after step 3: 40.0 % IoU (-10.0 in this step)"
    page.hover("svg.chart .hit")
    # Both runs begin at the same score, so their points lie on one another.
    lines = ["Base classes, after step 1", "CoMasTRe: 60.0", "fine-tuning: 60.0", "joint training (ceiling): 88.3"]
    assert page.run(tip).splitlines() == lines
    # The middle of the picture is where the right half, background, begins.
    page.hover(".card img.labels")
    assert page.run(tip) == "truth: background"
    page.hover("h1")
    assert page.run(tip) == ""
    assert page.complaints == []


def test_the_theme_can_be_chosen(page: Page, report: Path) -> None:
    page.open(report, 1280)
    page.run("document.getElementById('theme').focus()")
    shade = "getComputedStyle(document.body).backgroundColor"
    for name, colour in (
        ("light", "rgb(255, 255, 255)"),
        ("dark", "rgb(16, 22, 29)"),
        ("system", "rgb(255, 255, 255)"),
    ):
        page.run("document.getElementById('theme').click()")
        assert page.run("document.getElementById('theme').innerText") == f"Theme: {name}"
        assert page.run(shade) == colour
