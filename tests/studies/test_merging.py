"""A study that is trained part by part, on made-up numbers."""

from __future__ import annotations

from dataclasses import replace

from comastre.studies.found import SettingFound
from comastre.studies.merging import shared_fields, with_earlier
from comastre.studies.study import Study
from studies.made_studies import made_study

WHOLE = Study("made", (), (), all_rows=("first", "second", "third"), all_settings=("2-1",))


def test_what_is_trained_again_replaces_and_the_rest_stays_in_the_studys_order() -> None:
    earlier = made_study({"third": [30.0, 31.0], "first": [10.0, 11.0]})
    now = made_study({"second": [20.0], "first": [12.0]})
    found, left_out = with_earlier(now, earlier, WHOLE)
    assert [row.name for row in found.rows] == ["first", "second", "third"]
    last = {(run.row, run.seed): run.steps[-1].scores["paper"].all for run in found.runs}
    assert last == {("first", 0): 12, ("first", 1): 11, ("second", 0): 20, ("third", 0): 30, ("third", 1): 31}
    assert found.seeds == (0, 1) and not left_out
    # In whichever order the parts came, the file is the same.
    in_order = [("first", 0), ("second", 0), ("third", 0), ("first", 1), ("third", 1)]
    assert [(run.row, run.seed) for run in found.runs] == in_order


def test_a_row_or_setting_that_means_something_else_now_is_left_out() -> None:
    earlier = made_study({"first": [10.0, 11.0], "third": [30.0]})
    now = made_study({"first": [12.0]})
    other = replace(now, rows=tuple(replace(row, fields={"distillation.mask": False}) for row in now.rows))
    found, left_out = with_earlier(other, earlier, WHOLE)
    assert [(run.row, run.seed) for run in left_out] == [("first", 1)]
    assert [row.name for row in found.rows] == ["first", "third"]
    unlike = SettingFound("2-1", "shapes-6-2", {"data.dataset": "voc"}, "15-1")
    found, left_out = with_earlier(replace(now, settings=(unlike,)), earlier, WHOLE)
    assert len(left_out) == 2 and [row.name for row in found.rows] == ["first"]


def test_a_run_of_a_row_that_the_file_does_not_know_is_left_out() -> None:
    earlier = made_study({"third": [30.0]})
    found, left_out = with_earlier(made_study({"first": [12.0]}), replace(earlier, rows=()), WHOLE)
    assert [row.name for row in found.rows] == ["first"] and len(left_out) == 1


def test_runs_that_never_finished_are_not_kept() -> None:
    earlier = made_study({"third": [30.0]})
    earlier = replace(earlier, runs=tuple(replace(run, finished=False) for run in earlier.runs))
    now = made_study({"first": [12.0]})
    assert with_earlier(now, earlier, WHOLE) == (now, [])


def test_what_parts_do_not_share_is_told_and_what_is_unknown_is_not_made_up() -> None:
    earlier = made_study({"first": [1.0], "second": [2.0]}, alike={"training.batch_size": 16, "data.crop": 64})
    now = made_study({"third": [3.0]}, alike={"training.batch_size": 8, "data.crop": 64, "data.flip": True})
    found, _ = with_earlier(now, earlier, WHOLE)
    assert found.unlike == {"training.batch_size": {"first": 16, "second": 16, "third": 8}}
    assert found.alike == {"data.crop": 64}
    machines = replace(now, environment={"device": "a", "torch": "2"}), replace(earlier, environment={"device": "b"})
    both = with_earlier(*machines, WHOLE)[0]
    assert both.environment == {"device": "b and a", "torch": "2"}
    assert with_earlier(machines[0], both, WHOLE)[0].environment == both.environment  # the same command again
    assert shared_fields({"a": {"x": 1}, "b": {"x": 2}}, ["a", "b"]) == ({}, {"x": {"a": 1, "b": 2}})
