"""Tables, sentences and the page of a study, from numbers that were made up."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from comastre.errors import UserError
from comastre.report.study_numbers import agreements, cells, value
from comastre.report.study_page import render_study
from comastre.report.study_tables import as_csv, as_latex, as_markdown, differences_csv, study_tables
from comastre.report.study_terminal import show_study
from comastre.report.study_words import agreement_words, difference_words, missing_words, order_words
from comastre.report.study_write import write_study
from comastre.studies.found import StudyFound, read_found
from studies.made_studies import made_run, made_study

ROWS = {"ours": [41.0, 42.0, 43.0], "theirs": [40.0, 41.0, 41.5], "floor": [10.0, 12.0, 11.0], "joint": [60.0]}
STUDY = made_study(ROWS, at_once=["joint"])
HOSTILE = {"</script><b>&": [40.0, 41.0], "a|b": [30.0, 31.0], "=1+1": [20.0, 20.5], "50 % of _x_": [10.0, 10.0]}


def test_the_best_is_bold_the_second_underlined_and_a_ceiling_is_not_ranked() -> None:
    scores = study_tables(STUDY, "paper")[0]
    lines = as_markdown(scores).splitlines()
    assert "| ours | **52.0 ± 1.0** | **32.0 ± 1.0** | **42.0 ± 1.0** | **42.0 ± 1.0** | 80.0 ± 0.0 |" in lines
    assert (
        "| theirs | <u>50.8 ± 0.8</u> | <u>30.8 ± 0.8</u> | <u>40.8 ± 0.8</u> | <u>40.8 ± 0.8</u> | 80.0 ± 0.0 |"
        in lines
    )
    assert "| joint | 70.0 | 50.0 | 60.0 | 60.0 | 80.0 |" in lines
    latex = as_latex(scores)
    assert r"ours & \textbf{52.0 $\pm$ 1.0}" in latex
    assert r"\underline{50.8 $\pm$ 0.8}" in latex
    assert r"\cmidrule(lr){2-6}" in latex


def test_where_all_rows_are_ceilings_they_are_ranked() -> None:
    study = made_study({"a": [60.0], "b": [61.0]}, at_once=["a", "b"])
    found = cells(study, study.settings[0], ("all",), "paper")
    assert (found["a"]["all"].rank, found["b"]["all"].rank) == (2, 1)


def test_a_csv_has_every_number_with_all_digits() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(study_tables(STUDY, "paper")[0]))))
    found = next(row for row in rows if (row["row"], row["column"]) == ("theirs", "all"))
    assert found["values"] == "40.0 41.0 41.5"
    assert float(found["mean"]) == pytest.approx(122.5 / 3)
    assert (found["runs"], found["rank"], found["paper"]) == ("3", "2", "")


def test_differences_are_paired_and_said_with_their_verdict() -> None:
    # ours - theirs: 1, 1, 1.5, mean 1.17, t interval 0.72; ours - floor: 31, 30, 32
    words = " ".join(difference_words(STUDY, STUDY.settings[0], "paper"))
    assert "2-1: ours is first on all." in words
    assert "Behind it beyond the spread: theirs (-1.2 ± 0.3 over 3 pairs), floor (-31.0 ± 1.0 over 3 pairs)." in words
    rows = list(csv.DictReader(io.StringIO(differences_csv(STUDY, "paper"))))
    assert len(rows) == 6  # without the ceiling
    single = made_study({"a": [1.0], "b": [2.0]})
    assert "One pair alone says nothing" in " ".join(difference_words(single, single.settings[0], "paper"))
    level = made_study({"a": [1.0, 2.0], "b": [1.01, 2.01]})
    assert "a (+0.0 ± 0.0 over 2 pairs)" in " ".join(difference_words(level, level.settings[0], "paper")), "no -0.0"


def test_the_order_of_rows_is_compared_with_the_papers() -> None:
    papers = {"ours": ("voc", "CoMasTRe"), "theirs": ("voc", "PLOP"), "floor": ("voc", "CoMFormer")}
    study = made_study(ROWS, at_once=["joint"], papers=papers)  # the paper's 15-1: 63.5, 54.6, 48.2
    assert all(not each.turned for each in agreements(study, study.settings[0], "all", "paper"))
    assert "3 of 3 pairs" in " ".join(agreement_words(study, study.settings[0], "paper"))
    turned = made_study({**ROWS, "ours": [20.0, 30.0, 60.0]}, at_once=["joint"], papers=papers)
    said = " ".join(agreement_words(turned, turned.settings[0], "paper"))
    assert "2 of 3 pairs stand here as there. Turned within the spread: theirs above ours." in said
    assert not agreements(study, study.settings[0], "all", "no_background")  # the paper has no such numbers


def test_the_papers_numbers_are_of_its_own_stream() -> None:
    papers = {"ours": ("voc", "CoMasTRe"), "theirs": ("voc", "PLOP")}
    study = made_study(ROWS, at_once=["joint"], papers=papers, scale="paper")
    assert "(63.5)" in as_markdown(study_tables(study, "paper")[0])
    streams = ({"continual.protocol": "disjoint"}, {"continual.class_order": [2, 1, 3]})
    for stream in streams:
        setting = replace(study.settings[0], conventions=stream)
        other = replace(study, settings=(setting,))
        assert "(63.5)" not in as_markdown(study_tables(other, "paper")[0])
        assert not agreement_words(other, setting, "paper")
    drawn = replace(study, orders=(0, 1))
    assert "(63.5)" not in as_markdown(study_tables(drawn, "paper")[0])
    assert not agreements(drawn, drawn.settings[0], "all", "paper")


def test_class_orders_are_held_against_seeds() -> None:
    scores = {
        ("wild", 0): (40.0, 41.0),
        ("wild", 2): (60.0, 61.0),
        ("calm", 0): (50.0, 54.0),
        ("calm", 2): (52.0, 53.0),
    }
    runs = [
        made_run(row, seed, number, order=order)
        for (row, order), numbers in scores.items()
        for seed, number in enumerate(numbers)
    ]
    study = replace(made_study({"wild": [0.0], "calm": [0.0]}), orders=(0, 2), runs=tuple(runs))
    table = next(each for each in study_tables(study, "paper") if each.name == "orders")
    # sd of 40.5 and 60.5, and of numbers half a point off their mean with two degrees of freedom
    assert "| wild | 40.5 ± 0.7 | 60.5 ± 0.7 | 14.1 | 0.7 |" in as_markdown(table)
    assert "own order & order 2 & between orders & within an order" in as_latex(table)
    wild, calm = order_words(study, study.settings[0], "paper")
    assert wild.startswith("Class orders differ by more than seeds do") and "wild (14.1 between orders" in wild
    assert calm.startswith("Class orders do not differ visibly more") and "calm (0.4 between orders" in calm
    assert "Does the order of the classes matter?" in render_study(study, "paper")
    # One seed alone cannot tell orders from chance, and a study of one order has nothing to say.
    alone = replace(study, runs=tuple(run for run in runs if run.seed == 0))
    assert order_words(alone, study.settings[0], "paper") == [
        "One seed alone does not say whether class orders matter: wild, calm."
    ]
    assert not order_words(STUDY, STUDY.settings[0], "paper")
    assert "Does the order of the classes matter?" not in render_study(STUDY, "paper")
    assert all(each.name != "orders" for each in study_tables(STUDY, "paper"))


def test_a_row_that_lacks_a_bad_seed_of_another_is_not_called_ahead_of_it() -> None:
    study = made_study({"a": [60.0, 61.0], "b": [61.0, 62.001, 30.0]})
    words = " ".join(difference_words(study, study.settings[0], "paper"))
    assert "a is first on all." in words and "Behind it" not in words
    assert "Ahead of it beyond the spread in the seeds that both have: b (+1.0" in words


def test_what_the_paper_found_and_what_is_kept_are_shown() -> None:
    study = made_study(ROWS, at_once=["joint"])
    rows = tuple(replace(row, found="resists forgetting of masks") for row in study.rows)
    page = render_study(replace(study, rows=rows, metric="later_recall"), "paper")
    assert page.count("resists forgetting of masks") == len(rows)
    assert "Base classes (s &gt; 0)" in page
    table = as_markdown(study_tables(study, "paper")[0])
    assert "| base kept |" in table and "80.0 ± 0.0" in table


def test_the_papers_number_stands_beside_a_cell() -> None:
    study = made_study(ROWS, at_once=["joint"], papers={"ours": ("voc", "CoMasTRe")}, scale="paper")
    assert "**42.0 ± 1.0** (63.5)" in as_markdown(study_tables(study, "paper")[0])
    assert "(63.5)" in render_study(study, "paper")
    assert "(63.5)" not in as_markdown(study_tables(study, "future_ignored")[0])
    assert "(63.5)" not in as_markdown(study_tables(replace(study, scale="shapes"), "paper")[0])


def test_recall_is_of_rows_that_propose_masks() -> None:
    runs = (made_run("a", 0, 40.0), made_run("b", 0, 30.0, proposes=False))
    study = replace(made_study({"a": [1.0], "b": [1.0]}), runs=runs, metric="later_recall")
    found = cells(study, study.settings[0], ("later_recall", "recall"), "paper")
    assert found["a"]["later_recall"].mean == 30.0
    assert found["b"]["recall"].mean is None
    assert value(runs[0], "confident_recall", "paper") == 40.0
    assert study_tables(study, "paper")[0].title.startswith("A made study: average recall (AR) of proposals, and mIoU")
    assert study_tables(STUDY, "paper")[0].title.startswith("A made study: mIoU in percent")


def test_what_is_missing_is_named() -> None:
    runs = (*STUDY.runs[:-1], replace(STUDY.runs[-1], finished=False, steps=()))
    study = replace(STUDY, runs=runs)
    assert missing_words(study, study.settings[0]) == ["Not finished in 2-1: joint, seed 0."]
    assert "joint, seed 0" in render_study(study, "paper")
    nothing = replace(STUDY, runs=tuple(replace(run, finished=False, steps=()) for run in STUDY.runs))
    assert "0 of 10 runs" in render_study(nothing, "paper")


def test_names_of_rows_are_text_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    study = made_study(HOSTILE)
    page = render_study(study, "paper")
    assert "<b>&" not in page
    assert page.count("</script>") == 1
    tables = study_tables(study, "paper")
    assert r"| a\|b |" in as_markdown(tables[0])
    assert "'=1+1" in as_csv(tables[0])
    assert r"50 \% of \_x\_" in as_latex(tables[0])
    show_study(made_study({"[red]x": [1.0], "b": [2.0]}), "paper", Console(width=100))
    assert "[red]x" in capsys.readouterr().out


def test_a_study_comes_back_from_its_file_and_damage_is_a_sentence(tmp_path: Path) -> None:
    STUDY.write(tmp_path / "study.json")
    assert read_found(tmp_path) == STUDY
    text = (tmp_path / "study.json").read_text()
    assert len(text) < 40_000
    for change, sentence in (
        (("{", "["), "not valid JSON"),
        (('"version": 1', '"version": 9'), "upgrade comastre"),
        (('"version": 1', '"other": 1'), "has no version"),
        (('"convention": "paper"', '"convention": "x"'), "unknown conventions"),
        (('"seed": 0', '"seed": "zero"'), "malformed"),
    ):
        (tmp_path / "study.json").write_text(text.replace(change[0], change[1], 1))
        with pytest.raises(UserError, match=sentence):
            read_found(tmp_path)


def test_all_files_of_a_study_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(STUDY, tmp_path, "no_background")
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "convention no_background" in said
    assert "42.0 ± 1.0" in said
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == {
        f"{name}.{kind}" for name in ("scores", "proposals", "classes") for kind in ("csv", "md", "tex")
    } | {"differences.csv", "differences.md"}


def several_settings() -> StudyFound:
    first = STUDY.settings[0]
    runs = tuple(replace(run, setting="other", steps=run.steps[:1]) for run in STUDY.runs)
    return replace(STUDY, settings=(first, replace(first, label="other")), runs=(*STUDY.runs, *runs))


def test_a_setting_without_a_finished_run_has_no_table_of_classes() -> None:
    both = several_settings()
    assert [table.name for table in study_tables(both, "paper")] == ["scores", "proposals", "classes-1", "classes-2"]
    stopped = [replace(run, finished=False, steps=()) if run.setting == "2-1" else run for run in both.runs]
    tables = study_tables(replace(both, runs=tuple(stopped)), "paper")
    assert [table.name for table in tables] == ["scores", "proposals", "classes-2"]  # each keeps its number
    nothing = replace(STUDY, runs=tuple(replace(run, finished=False, steps=()) for run in STUDY.runs))
    for table in (*tables, *study_tables(nothing, "paper")):
        latex = as_latex(table)
        assert r"\multicolumn{0}" not in latex
        for first, last in re.findall(r"\\cmidrule\(lr\)\{(\d+)-(\d+)\}", latex):
            assert int(first) <= int(last), table.name


def test_settings_stand_side_by_side_in_latex() -> None:
    latex = as_latex(study_tables(several_settings(), "paper")[0])
    assert r" & \multicolumn{5}{c}{2-1} & \multicolumn{5}{c}{other} \\" in latex
    assert r"\cmidrule(lr){2-6} \cmidrule(lr){7-11}" in latex
    page = render_study(several_settings(), "paper")
    assert page.count('class="group"') == 2
