"""The numbers and sentences of a report, by hand."""

import json
import re
from pathlib import Path

import pytest
from made_runs import make_joint, make_run, step_result

from comastre.report.charts import loss_charts, score_charts, thinned
from comastre.report.gather import LossCurve
from comastre.report.numbers import (
    average,
    ceiling,
    class_rows,
    confusion,
    exchange,
    later_rows,
    looking_ahead,
    mean_forgetting,
    results_of,
)
from comastre.report.paper import reference
from comastre.report.sentences import headline, state_words, verdict
from comastre.report.svg import Chart, Line, draw, percent_axis, round_axis
from comastre.report.write import read_groups


def test_scores_kept_and_averaged(tmp_path: Path) -> None:
    (group,) = read_groups([make_run(tmp_path / "run", (60.0, 50.0, 45.0))])
    (entry,) = group.scored
    assert results_of(entry).kept == 75.0
    assert average(entry, "paper") == pytest.approx((60 + 40 + 37.5) / 3)
    assert mean_forgetting(entry) == pytest.approx((15 + 15 + 0) / 3)  # cat, dog, cow
    assert (
        "kept 75 % of its base classes (60.0 → 45.0 mIoU without background) and scores 30.0 on the 2 classes"
        in headline(group, "paper")[0]
    )


def test_the_ceiling_is_split_as_the_stream_is(tmp_path: Path) -> None:
    (group,) = read_groups([make_run(tmp_path / "run"), make_joint(tmp_path / "joint", (90.0, 80.0, 70.0, 60.0))])
    best = ceiling(group.ceilings[0], group, "paper")
    assert (best.base, best.inc, best.all) == pytest.approx(((95 + 90 + 80) / 3, 65.0, 79.0))
    best = ceiling(group.ceilings[0], group, "no_background")
    assert (best.base, best.inc, best.all) == pytest.approx((85.0, 65.0, 75.0))
    charts = score_charts(group, "paper", None)
    assert [chart.levels[0].value for chart in charts] == pytest.approx([265 / 3, 65.0, 79.0])


def test_classes_in_learning_order_with_what_they_lost(tmp_path: Path) -> None:
    (group,) = read_groups([make_run(tmp_path / "a"), make_run(tmp_path / "b", (60.0,), method="finetune")])
    rows = class_rows(group)
    assert [(row.name, row.step) for row in rows] == [
        ("background", None),
        ("cat", 0),
        ("dog", 0),
        ("cow", 1),
        ("bus", 2),
    ]
    assert rows[3].ious == ((None, 30.0, 30.0), (None,))
    assert [row.forgetting[0] for row in rows] == [None, 20.0, 20.0, 0.0, None]


def test_recall_of_classes_before_they_are_learned(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", (60.0,), method="finetune", proposals=False)]
    (group,) = read_groups([*runs, make_joint(tmp_path / "joint")])
    assert [entry.label for entry in looking_ahead(group)] == ["CoMasTRe"]
    assert [(row.name, row.recalls) for row in later_rows(group)] == [
        ("all not learned yet", ((40.0, 41.0),)),
        ("cow", ((41.0, None),)),
        ("bus", ((41.0, 42.0),)),
    ]
    (without,) = read_groups(runs[1:])
    assert later_rows(without) == []


def test_confusion_between_steps() -> None:
    # Each row: 70 on the diagonal, 10 elsewhere.
    found = confusion(step_result(2, 40.0, 30.0))
    assert found is not None
    assert found.names == ("background", "step 1", "step 2", "step 3")
    assert found.rows[1] == (10.0, 70.0, 10.0, 10.0)
    taken = exchange(step_result(2, 40.0, 30.0))
    assert taken is not None
    assert (taken.old_as_new, taken.old_as_background) == (10.0, 10.0)
    assert (taken.new_as_old, taken.new_as_background) == (20.0, 10.0)
    assert exchange(step_result(0, 40.0, None)) is None


@pytest.mark.parametrize(("base", "words"), [(90.0, "mostly objectness"), (20.0, "mostly recognition")])
def test_the_verdict_counts_the_masks(tmp_path: Path, base: float, words: str) -> None:
    (group,) = read_groups([make_run(tmp_path / "run", (90.0, 60.0, base))])
    said = verdict(group.scored[0])
    # Two base classes with 13 masks each; one of them is not proposed and two are below alpha.
    right = round(base / 10) * 2
    assert f"recognises {right} of the 26 base-class masks (18 after the first step)" in said
    assert "2 are not proposed, 4 are proposed with an objectness of at most 0.8" in said
    assert words in said


@pytest.mark.parametrize(("recorded", "shown"), [(0.65, "0.65"), (None, "0.8")])
def test_the_verdict_takes_alpha_from_the_results_and_of_older_runs_from_the_settings(
    tmp_path: Path, recorded: float | None, shown: str
) -> None:
    folder = make_run(tmp_path / "run")
    document = json.loads((folder / "results.json").read_text())
    document["steps"][-1]["alpha"] = recorded
    (folder / "results.json").write_text(json.dumps(document))
    (group,) = read_groups([folder])
    assert f"with an objectness of at most {shown}, and" in verdict(group.scored[0])


def test_an_unfinished_run_says_how_to_go_on(tmp_path: Path) -> None:
    (group,) = read_groups([make_run(tmp_path / "run", (60.0,))])
    words = state_words(group.entries[0].run)
    assert words.startswith("was stopped in step 1 after 100 iterations (1 step is finished, 2 of 4 classes)")
    assert f"comastre train {tmp_path / 'run' / 'config.yaml'} --out {tmp_path / 'run'}" in words


def test_the_papers_numbers_go_with_its_settings_only(tmp_path: Path) -> None:
    (group,) = read_groups([make_run(tmp_path / "voc", dataset="voc", setting="15-1")])
    found = reference(group.scored[0].run)
    assert found is not None and found.ours is not None
    assert (found.ours.base, found.ours.inc, found.ours.all, found.ours.avg) == (69.77, 43.62, 63.54, 70.63)
    assert found.per_class["tvmonitor"] == 52.7
    (group,) = read_groups([make_run(tmp_path / "ade", dataset="ade20k", setting="100-10")])
    found = reference(group.scored[0].run)
    assert found is not None and found.ours is not None and found.ours.all == 34.41
    for number, other in enumerate(({"setting": "2-1"}, {"setting": "15-1"}, {"dataset": "voc", "setting": "10-1"})):
        (group,) = read_groups([make_run(tmp_path / str(number), **other)])
        assert reference(group.scored[0].run) is None


@pytest.mark.parametrize("setting", ["100-50", "100-10", "100-5", "50-50"])
def test_the_papers_rows_stand_under_the_convention_that_their_own_numbers_fit(tmp_path: Path, setting: str) -> None:
    """`all` is the mean over base and inc, weighed by how many labels each has: with background 151, without 150."""
    (group,) = read_groups([make_run(tmp_path / "ade", dataset="ade20k", setting=setting)])
    found = reference(group.scored[0].run)
    assert found is not None
    num_base = int(setting.split("-")[0])
    for row in found.rows:
        off = {}
        for convention, background in (("paper", 1), ("no_background", 0)):
            labels = num_base + background
            off[convention] = abs((labels * row.base + (150 - num_base) * row.inc) / (150 + background) - row.all)
        if row.method in (
            "SDR",
            "PLOP",
            "REMINDER",
            "Joint (per-pixel)",
            "CoMasTRe",
            "Joint (CoMasTRe)",
        ):  # two decimals
            assert off[row.convention] < 0.01 < min(value for name, value in off.items() if name != row.convention), row
        elif row.method == "Joint (CoMFormer)":  # one decimal: nearer by this much in all settings
            assert off["no_background"] < 0.04 < off["paper"]
    shown = {name: found.under(name) for name in ("paper", "no_background", "future_ignored")}
    assert {row.method for row in shown["no_background"].rows} == {"Joint (CoMFormer)", "Joint (CoMasTRe)"}
    assert {row.method for row in shown["paper"].rows} >= {"CoMasTRe", "Joint (per-pixel)", "CoMFormer"}
    assert len(shown["paper"].rows) + 2 == len(found.rows)
    assert shown["future_ignored"] is None
    assert found.elsewhere("paper") == {"no_background": ["Joint (CoMFormer)", "Joint (CoMasTRe)"]}


def test_axes_are_round_and_hold_everything() -> None:
    assert percent_axis([8.0, 71.2, None])[0] == (0.0, 80.0)
    assert percent_axis([100.0])[0] == (0.0, 100.0)
    assert percent_axis([])[0] == (0.0, 100.0)
    for largest in (0.003, 0.9, 1.0, 7.0, 31.0, 4200.0):
        (low, high), ticks = round_axis([largest])
        assert low == 0 and largest <= high <= 3 * largest
        assert 2 <= len(ticks) <= 6
    assert round_axis([0.0])[0] == (0.0, 1.0)


def test_long_curves_are_thinned_by_means() -> None:
    curve = LossCurve("total", tuple(range(1, 1001)), tuple(float(value) for value in range(1, 1001)))
    points = thinned(curve, most=10)
    assert len(points) == 10
    assert points[0] == (100.0, 50.5)


def test_loss_lines_are_cut_between_steps(tmp_path: Path) -> None:
    (group,) = read_groups([make_run(tmp_path / "run")])
    total = loss_charts(group)[0]
    assert total.title == "total"
    assert total.dividers == (100.0, 120.0)
    (path,) = re.findall(r'class="line run-0" d="([^"]+)"', str(draw(total)))
    assert path.count("M") == 3


def test_a_chart_escapes_its_words() -> None:
    line = Line("<b>", 0, ((1.0, 50.0), (2.0, None)))
    chart = Chart("a & b", (line,), ((1.0, "1"),), (0.0, 100.0), (), tips=((1.0, '"><script>'),))
    drawn = str(draw(chart))
    assert "<script>" not in drawn and "<b>" not in drawn
    assert "a &amp; b: &lt;b&gt; from 50 to 50" in drawn
