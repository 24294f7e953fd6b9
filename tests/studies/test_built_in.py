"""The paper's tables as studies: every row resolves at every scale, and stands beside the paper's own number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comastre.errors import UserError
from comastre.report.paper import tables
from comastre.report.study_numbers import papers_number
from comastre.stream.scenario import Task
from comastre.studies.found import RowFound, SettingFound
from comastre.studies.plan import Plan, plan
from comastre.studies.spec import SCALES, built_in_names, read_study, study_of_methods
from comastre.training.schedule import iterations_of_task

NEEDED = {"data": {"root": "data"}, "init": "runs/objectness"}


def planned(name: str, scale: str) -> Plan:
    study = read_study(name, scale)
    return plan(study, {key: NEEDED[key] for key in ("data", *study.needs)})


def test_all_tables_are_there() -> None:
    tables_of_the_paper = {f"table-{number}" for number in range(1, 8)} | {"table-a2", "table-a3", "figure-1"}
    assert set(built_in_names()) == tables_of_the_paper


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", built_in_names())
def test_every_row_resolves_at_every_scale(name: str, scale: str) -> None:
    made = planned(name, scale)
    assert (made.study.name, made.study.scale) == (name, scale)
    assert len({run.name for run in made.runs}) == len(made.runs)
    assert not any("," in row.name for row in made.study.rows)  # --rows has commas between names
    for run in made.runs:
        on_a_cpu = {"paper": ("r50", "r101"), "voc-small": ("small",), "shapes": ("tiny",)}[scale]
        assert run.config.size in on_a_cpu, run.name
        assert run.config.data.dataset == "shapes" or scale != "shapes"


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name in built_in_names() if name != "figure-1"])
def test_rows_of_the_paper_have_its_numbers(name: str, scale: str) -> None:
    """A row's place in paper.json is written by hand: a slip would leave its cell empty."""
    study = read_study(name, scale)
    metric = study.metric
    for setting in study.settings:
        label = study.paper_setting.get(setting.label, "")
        found = SettingFound(setting.label, setting.source, {}, label)
        for row in study.rows:
            if not row.paper:
                continue
            known = [
                papers_number(RowFound(row.name, "", "", paper=row.paper), found, metric, convention)
                for convention in ("paper", "no_background")
            ]
            if (row.paper[-1], label) != ("RCIL", "19-1"):  # the paper has none
                assert sum(number is not None for number in known) >= 1, (row.name, setting.label)


def test_numbers_are_those_of_the_paper() -> None:
    voc = SettingFound("15-1", "voc-15-1", {}, "15-1")
    assert papers_number(RowFound("a", "", "", paper=("voc", "CoMasTRe")), voc, "all", "paper") == 63.54
    full = tables()["ablations"]["stage2 (voc 15-1)"]["none"]
    place = ("ablations", "stage2 (voc 15-1)", "none")
    assert papers_number(RowFound("a", "", "", paper=place), voc, "base", "paper") == full["base"]
    assert papers_number(RowFound("a", "", "", paper=place), voc, "base", "no_background") is None
    ade = SettingFound("100-50", "ade20k-100-50", {}, "100-50")
    joint = RowFound("a", "", "", paper=("ade20k", "Joint (CoMasTRe)"))
    assert papers_number(joint, ade, "all", "paper") is None
    assert papers_number(joint, ade, "all", "no_background") == 44.36


def test_ablations_that_act_later_share_the_first_step_and_others_do_not() -> None:
    for name, groups in (("table-5", 1), ("table-6", 1), ("table-a3", 1), ("table-7", 4)):
        assert len({run.group for run in planned(name, "paper").runs}) == groups, name


def test_joint_training_is_learned_once_for_all_settings_of_its_preset() -> None:
    runs = [run for run in planned("table-1", "shapes").runs if run.row.name == "CoMasTRe joint"]
    assert len(runs) == 2
    assert len({run.group for run in runs}) == 1


def test_joint_rows_see_as_many_images_as_the_streams_beside_them() -> None:
    """15-5 on a CPU: 3,000 iterations, then 200 for each of five classes; a row may say otherwise."""
    study = read_study("table-1", "voc-small")
    joint = {
        run.setting.label: run for run in plan(study, {"data": {"root": "x"}}).runs if run.row.name == "CoMasTRe joint"
    }
    task = Task(0, tuple(range(1, 21)), (), (), ())
    assert iterations_of_task(joint["15-5"].config, task) == 3000 + 5 * 200
    assert (
        iterations_of_task(joint["15-1"].config, task) == 3000 + 5 * joint["15-1"].config.training.iterations_per_class
    )
    row = replace(joint["15-5"].row, fields={"training.iterations": 70})
    alone = plan(replace(study, rows=(row,)), {"data": {"root": "x"}}).runs[0].config
    assert iterations_of_task(alone, task) == 70


def test_joint_rows_of_unlike_length_are_not_shared() -> None:
    study = study_of_methods("shapes-6-2", ["joint"], ["6-2", "6-1", "4-2"])
    assert [run.group for run in plan(study).runs] == [0, 0, 1]


def test_a_scale_is_asked_for_and_what_a_study_needs_is_named() -> None:
    with pytest.raises(UserError, match="choose one with --scale paper"):
        read_study("table-1")
    with pytest.raises(UserError, match="has no scale 'huge'"):
        read_study("table-1", "huge")
    with pytest.raises(UserError, match="table-4 needs --init, the run of stage 1"):
        plan(read_study("table-4", "shapes"))
