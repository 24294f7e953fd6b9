"""The page in a real browser: nothing missing, nothing loaded from elsewhere, the slider and the tips work."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from browser import Opened, browser, installed, open_file
from made_runs import make_joint, make_run

from comastre.report.write import write_report

pytest.importorskip("playwright.sync_api", reason="playwright is not installed (it comes with the extra dev)")
pytestmark = pytest.mark.skipif(installed() is None, reason="no browser is installed (Debian's package: chromium)")
Open = Callable[..., AbstractContextManager[Opened]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    runs = [make_run(folder / "a"), make_run(folder / "b", (60.0, 20.0, 10.0), method="finetune")]
    write_report([*runs, make_joint(folder / "joint")], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def open_report(report: Path) -> Iterator[Open]:
    """Opens the report; whatever a test does with it, the page complains about nothing and asks for nothing more."""
    with browser() as started:

        @contextmanager
        def opening(width: int = 1280, dark: bool = False) -> Iterator[Opened]:
            with open_file(started, report, width, dark=dark) as opened:
                yield opened
                opened.settle()
                assert opened.complaints == []
                assert [url for url in opened.requests if not url.startswith("data:")] == [report.resolve().as_uri()]

        yield opening


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_it_is_whole_at_any_width(open_report: Open, width: int, dark: bool) -> None:
    with open_report(width, dark) as opened:
        page = opened.page
        # Pictures of other steps are hidden, but must be there too.
        missing = "[...document.images].filter((image) => !image.complete || !image.naturalWidth).length"
        assert page.locator("img").count() > 0
        assert page.evaluate(missing) == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert shade(opened) == ("rgb(16, 22, 29)" if dark else "rgb(255, 255, 255)")


def shade(opened: Opened) -> str:
    return str(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def shown(opened: Opened) -> list[str]:
    images = opened.page.locator(".card:first-child img.labels").locator("visible=true")
    return [image.get_attribute("alt") or "" for image in images.all()]


def test_the_slider_goes_over_the_steps_by_keyboard(open_report: Open) -> None:
    with open_report() as opened:
        page = opened.page
        assert shown(opened)[1:] == [f"image-0, predicted by {who} after step 3" for who in ("CoMasTRe", "fine-tuning")]
        page.focus("input.step")
        page.keyboard.press("ArrowLeft")
        assert len(shown(opened)) == 3 and all(alt.endswith("after step 2") for alt in shown(opened)[1:])
        assert page.inner_text("output") == "After step 2 of 3: now also cow"
        assert [chip.strip() for chip in page.locator(".chips .later").all_inner_texts()] == ["bus"]
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        assert len(shown(opened)) == 3 and shown(opened)[1].endswith("after step 1")


def test_tips_of_cells_points_and_pictures(open_report: Open) -> None:
    with open_report() as opened:

        def tip(selector: str, across: float = 0.5) -> str:
            """What the tip says with the pointer that far across the first element that fits."""
            element = opened.page.locator(selector).first
            element.scroll_into_view_if_needed()
            opened.settle()  # scrolling hides the tip
            box = element.bounding_box()
            assert box is not None
            opened.page.mouse.move(box["x"] + across * box["width"], box["y"] + 0.5 * box["height"])
            found = opened.page.locator("#tip")
            return found.inner_text() if found.is_visible() else ""

        assert not opened.page.locator("#tip").is_visible()
        cell = tip("table.heat tbody tr:nth-child(3) td:nth-of-type(4)")
        assert cell == "cat, CoMasTRe, after step 3: 40.0 % IoU (-10.0 in this step)"
        # Both runs begin at the same score, so their points lie on one another.
        lines = ["Base classes, after step 1", "CoMasTRe: 60.0", "fine-tuning: 60.0", "joint training (ceiling): 88.3"]
        assert tip("svg.chart .hit").splitlines() == lines
        # The left half of the picture is a cat, the right one background.
        assert tip(".card img.labels", across=0.25) == "truth: cat"
        assert tip(".card img.labels", across=0.75) == "truth: background"
        assert tip("h1") == ""


def test_the_theme_can_be_chosen(open_report: Open) -> None:
    with open_report() as opened:
        for name, colour in (
            ("light", "rgb(255, 255, 255)"),
            ("dark", "rgb(16, 22, 29)"),
            ("system", "rgb(255, 255, 255)"),
        ):
            opened.page.click("#theme")
            assert opened.page.inner_text("#theme") == f"Theme: {name}"
            assert shade(opened) == colour
