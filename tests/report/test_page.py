"""The page as text: one file with everything in it, whatever state the runs are in."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_runs import make_examples, make_joint, make_run

from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.report.pictures import gallery
from comastre.report.write import read_groups, report_after, write_report

QUESTIONS = ["Did it forget?", "Which classes?", "Was it objectness or recognition?", "How it looks", "Losses"]


def page_of(tmp_path: Path, *runs: Path, convention: str | None = None) -> str:
    write_report(runs, tmp_path / "report.html", convention=convention)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Checks that every opened tag is closed, and collects attributes."""

    EMPTY = ("meta", "link", "img", "input", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"


def test_it_answers_the_questions_in_order_from_one_file(tmp_path: Path) -> None:
    runs = make_run(tmp_path / "a"), make_run(tmp_path / "b", (60.0, 20.0, 10.0), method="finetune")
    page = page_of(tmp_path, *runs, make_joint(tmp_path / "joint"))
    headings = re.findall(r"<h2[^>]*>([^<]+)</h2>", page)
    assert headings == [*QUESTIONS, "Settings and environment"]
    tags = Tags(page)
    assert tags.open == []
    assert {"img", "svg"} <= {tag for tag, _ in tags.found}
    for tag, attributes in tags.found:
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#")), (tag, attributes)
        assert tag != "img" or attributes["alt"]
        assert tag != "svg" or attributes.get("aria-label") or attributes.get("aria-hidden")
    assert not re.search(r"url\((?!data:)", page)
    assert len(page.encode()) < 5_000_000
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_a_run_in_its_first_step_has_losses_and_settings(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_run(tmp_path / "run", ()))
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", page) == ["How it looks", "Losses", "Settings and environment"]
    assert "was stopped in step 1 after 100 iterations (no step is finished)" in page
    assert "has no example pictures" in page


def test_a_run_with_one_step_and_one_without_a_step_share_a_page(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_run(tmp_path / "a", (60.0,)), make_run(tmp_path / "b", (), method="finetune"))
    assert "what it forgets shows after the second" in page
    assert "Classes learned later" not in page
    assert Tags(page).open == []


def test_a_run_of_stage_1_alone_shows_its_recall(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", (60.0,), method="objectness", setting="joint", examples=False)
    document = json.loads((folder / "results.json").read_text())
    document["steps"][0] |= {"per_class": {}, "errors": {}, "task_confusion": []}
    for scores in document["conventions"].values():
        scores["steps"][0] |= {"base": None, "all": None}
    (folder / "results.json").write_text(json.dumps(document))
    page = page_of(tmp_path, folder, make_run(tmp_path / "other", dataset="shapes"))
    assert "Shapes, stage 1 alone" in page
    assert "its average recall is 80.0 %, and 70.0 % with confident proposals alone" in page
    assert page.count("Did it forget?") == 1 and page.count("Average recall of proposals") == 2
    assert "ceiling" not in page.partition("<body>")[2]


NO_PROPOSALS = "labels pixels and proposes no masks: there is no recall and no split into objectness and recognition."


def test_runs_with_and_without_proposals_share_a_page(tmp_path: Path) -> None:
    with_them = make_run(tmp_path / "a")
    without = make_run(tmp_path / "b", (60.0, 20.0, 10.0), method="finetune", proposals=False)
    page = page_of(tmp_path, with_them, without)
    assert Tags(page).open == []
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", page) == [*QUESTIONS, "Settings and environment"]
    assert page.count("proposes no masks") == 1 and f"Fine-tuning {NO_PROPOSALS}" in page
    section = page.partition("Was it objectness or recognition?")[2].partition("<h2")[0]
    # Bars, verdict, legend and curves of the one; of the other only the sentence.
    assert "CoMasTRe recognises 8 of the 26 base-class masks" in section
    assert "fine-tuning" not in section
    assert len(re.findall("<h4>", section)) == 2
    # It still has its own lines in every other chart.
    assert "fine-tuning: 10.0" in page


def test_a_page_of_runs_without_proposals_has_one_sentence_about_them(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_run(tmp_path / "a", proposals=False))
    assert Tags(page).open == []
    section = page.partition("Was it objectness or recognition?")[2].partition("<h2")[0]
    assert f"CoMasTRe {NO_PROPOSALS}" in section
    assert "<svg" not in section and "<h3" not in section


def test_an_old_run_without_examples_or_environment_says_so(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_run(tmp_path / "run", examples=False))
    assert "CoMasTRe has no example pictures: they are recorded at the end of each step" in page
    assert "The environment of CoMasTRe was not recorded" in page
    (tmp_path / "run" / "environment.json").write_text(json.dumps({"torch": "2.99"}))
    assert "<dt>torch</dt><dd>2.99</dd>" in page_of(tmp_path, tmp_path / "run")


def test_runs_of_other_settings_get_a_part_of_their_own(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_run(tmp_path / "a"), make_run(tmp_path / "b", setting="2-2"))
    assert page.count("Did it forget?") == 2
    assert '<a href="#g1">Shapes 2-2, overlapped</a>' in page


def test_words_of_the_user_cannot_break_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    for file in (folder / "results.json", folder / "examples" / "index.json"):
        file.write_text(file.read_text().replace('"cat"', '"<script>alert(1)</script>"'))
    page = page_of(tmp_path, folder)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_papers_numbers_are_labelled(tmp_path: Path) -> None:
    run = make_run(tmp_path / "voc", dataset="voc", setting="15-1")
    page = page_of(tmp_path, run)
    assert "Beside the paper's numbers" in html.unescape(page)
    assert re.search(r"<th scope=\"row\">CoMasTRe</th><td class=\"words\">the paper</td><td>69.8</td>", page)
    page = page_of(tmp_path, run, convention="no_background")
    assert "69.8" not in page and "--convention paper" in page


def test_the_papers_joint_rows_of_ade20k_stand_beside_scores_without_background(tmp_path: Path) -> None:
    run = make_run(tmp_path / "ade", dataset="ade20k", setting="100-10")
    joint = r"<th scope=\"row\">Joint \(CoMasTRe\)</th><td class=\"words\">the paper</td><td>48.5</td>"
    with_it, without = (html.unescape(page_of(tmp_path, run, convention=name)) for name in ("paper", "no_background"))
    assert not re.search(joint, with_it) and re.search(joint, without)
    assert "numbers of Joint (CoMFormer), Joint (CoMasTRe) follow the convention" in with_it
    assert "--convention no_background" in with_it and "--convention paper" in without
    own = r"<th scope=\"row\">CoMasTRe</th><td class=\"words\">the paper</td><td>42.3</td>"
    assert re.search(own, with_it) and not re.search(own, without)


def test_examples_stay_within_the_budget(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=False)
    make_examples(folder, steps=3, count=6)
    (group,) = read_groups([folder])
    assert len(gallery(group).cards) == 6
    assert len({colour for _, colour in gallery(group).labels}) == 5
    whole = gallery(group).cards[0].bytes
    small = gallery(group, budget=2 * whole + 10)
    assert len(small.cards) == 2
    assert small.remarks == ("2 of 6 examples are shown, to keep the page small.",)


def test_other_images_are_not_shown_side_by_side(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", method="finetune")
    index = second / "examples" / "index.json"
    index.write_text(index.read_text().replace("image-1", "image-9"))
    (group,) = read_groups([first, second])
    found = gallery(group)
    assert [entry.label for entry in found.entries] == ["CoMasTRe"]
    assert "fine-tuning recorded other images than CoMasTRe" in found.remarks[0]


def test_a_file_that_is_no_report_is_left_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "thesis.html").write_text("<html>precious</html>")
    with pytest.raises(UserError, match="is not a report"):
        write_report([run], tmp_path / "thesis.html")
    assert (tmp_path / "thesis.html").read_text() == "<html>precious</html>"
    with pytest.raises(UserError, match="is a folder"):
        write_report([run], tmp_path)
    write_report([run], tmp_path / "new" / "report.html")
    write_report([run], tmp_path / "new" / "report.html")  # an older report may be replaced


def test_a_failing_report_costs_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    monkeypatch.setattr("comastre.report.write.render", lambda *_: 1 / 0)
    assert report_after([run], run / "report.html") is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "the training is finished, but not its report (ZeroDivisionError" in said


def test_results_that_cannot_be_scored_are_no_numbers(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    document = json.loads((folder / "results.json").read_text())
    document["steps"][2]["per_class"]["cat"] = None
    for scores in document["conventions"].values():
        scores["steps"][2]["base"] = None
    (folder / "results.json").write_text(json.dumps(document))
    assert Results.load(folder / "results.json").forgetting["cat"] is None
    page = page_of(tmp_path, folder)
    assert "nan" not in re.sub(r"base64,[^\"')]+", "", page).replace("finance", "")
    assert "has no base score" in page
