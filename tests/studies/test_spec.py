"""Study files and command lines: what they mean, and one sentence for each mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from comastre.cli.main import dispatch
from comastre.errors import UserError
from comastre.studies.plan import Plan, conventions, plan
from comastre.studies.spec import read_orders, read_study, study_of_methods
from comastre.studies.study import Order

GOOD = """
title: What masks are worth
preset: shapes-6-1
seeds: [0, 1]
fields: {training.iterations: 7, comastre: {weights: {mask_kd: 3.0}}}
rows:
  - {name: whole, method: comastre}
  - {name: no masks, method: comastre, fields: {distillation.mask: false}}
  - {name: ceiling, method: deeplab-joint, seeds: [0]}
  - plop
"""


def read(tmp_path: Path, text: str) -> Plan:
    file = tmp_path / "study.yaml"
    file.write_text(text)
    return plan(read_study(str(file)))


def test_rows_times_seeds_with_fields_of_the_study_and_of_rows(tmp_path: Path) -> None:
    made = read(tmp_path, GOOD)
    assert [run.name for run in made.runs] == [
        "whole--6-1--seed-0",
        "no-masks--6-1--seed-0",
        "ceiling--6-1--seed-0",
        "plop--6-1--seed-0",
        "whole--6-1--seed-1",
        "no-masks--6-1--seed-1",
        "plop--6-1--seed-1",
    ]
    whole, no_masks, ceiling, plop = made.runs[:4]
    assert [run.config.training.iterations for run in made.runs] == [7] * 7
    assert whole.config.method_settings.weights.mask_kd == 3.0  # type: ignore[attr-defined]
    assert no_masks.config.method_settings.distillation.mask is False  # type: ignore[attr-defined]
    assert (ceiling.config.method, plop.config.method) == ("deeplab-joint", "plop")
    assert whole.group == no_masks.group != plop.group
    assert made.runs[4].group != whole.group  # another seed
    assert whole.config.continual.setting == "6-1"


def test_the_command_line_lies_over_the_study_and_rows_over_both(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(GOOD.replace("{distillation.mask: false}", "{training.iterations: 5}"))
    made = plan(read_study(str(file)), {"training": {"iterations": 6}, "comastre": {"optimiser": {"clip": 0.5}}})
    assert [run.config.training.iterations for run in made.runs[:2]] == [6, 5]
    assert made.runs[0].config.method_settings.optimiser.clip == 0.5
    assert made.runs[3].config.method_settings.optimiser.clip != 0.5  # PLOP's section is another


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("name: no masks", "name: whole"), "the row whole is given twice"),
        (
            ("method: deeplab-joint", "method: deeplab-jont"),
            "there is no method 'deeplab-jont': did you mean deeplab-joint",
        ),
        (
            ("{distillation.mask: false}", "{distillation.msk: false}"),
            "row no masks: there is no field --distillation.msk",
        ),
        (("title:", "titel:"), "there is no field titel: did you mean title"),
        (("seeds: [0, 1]", "seeds: [0, 0]"), "the seed 0 is given twice"),
        (("seeds: [0, 1]", "seeds: []"), "seeds is"),
        (("seeds: [0, 1]", "seeds: [-1]"), "seeds"),
        (("preset: shapes-6-1", "preset: shapes-6-3"), "shapes-6-3"),
        (("preset: shapes-6-1", ""), "names no preset"),
        (("  - {name: whole, method: comastre}", "  - {method: comastre}"), "rows[0].name is missing"),
        (("name: whole", r'name: "a\nb"'), r"rows[0].name is 'a\nb' but must be one line of text without control"),
        (("name: whole", r'name: "a\eb"'), r"rows[0].name is 'a\x1bb' but must be one line of text without control"),
        (("name: whole", r'name: "a\Lb"'), r"rows[0].name is 'a\u2028b' but must be one line of text"),
        (("  - {name: whole, method: comastre}", "  - {name: whole, fields: 3}"), "rows[0].fields is 3"),
        (("title: What masks are worth", "orders: [[1, 2, 2]]"), "class order 1 is [1, 2, 2], which is no permutation"),
        (("title: What masks are worth", "orders: [[3, 1, 2]]"), "class order 1 names 3 classes, but the data has 10"),
        (("title: What masks are worth", "orders: 0"), "orders is 0"),
        (("title: What masks are worth", "settings: [6-2, 6-2]"), "the setting 6-2 is given twice"),
        (("title: What masks are worth", "a: [" + "[" * 200), "not valid YAML"),
        (("{distillation.mask: false}", "{view.short_side: 96}"), "cannot stand side by side, view.short_side differs"),
        (("{distillation.mask: false}", "{continual.protocol: disjoint}"), "continual.protocol differs"),
        (("{distillation.mask: false}", "{evaluation.convention: no_background}"), "evaluation.convention differs"),
        (("{distillation.mask: false}", "{data.val_images: 7}"), "data.val_images differs"),
        (("{distillation.mask: false}", "{data.root: elsewhere}"), "data.root differs (None and 'elsewhere')"),
        (("{distillation.mask: false}", "{continual.setting: 6-2}"), "row no masks: the field continual.setting is"),
        (("fields: {training", "fields: {seed: 3, training"), "the field seed is for one run: name it in `seeds`"),
        (("fields: {training", "fields: {method: mib, training"), "the field method is for one run"),
        (("title: What masks are worth", "orders: true"), "orders is True but orders must be how many"),
        (("title: What masks are worth", "settings: 3"), "settings is 3 but settings must be a list"),
        (
            ("title: What masks are worth", "settings: {x: {preset: shapes-6-2, seting: 6-1}}"),
            "there is no field settings.x.seting: did you mean setting?",
        ),
        (("method: deeplab-joint,", "method: deeplab-joint, scales: [smal],"), "row ceiling: there is no scale 'smal'"),
    ],
)
def test_mistakes_in_a_file_are_one_sentence(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(UserError) as raised:
        read(tmp_path, GOOD.replace(*change))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("shapes-6-2 --methods comastre,plob --out x", "there is no method 'plob': did you mean plop"),
        ("shapes-6-2 --methods plop,plop --out x", "the method PLOP is given twice"),
        ("shapes-6-2 --out x", "shapes-6-2 is no study: name methods"),
        ("shapes-6-9 --out x", "shapes-6-9 is neither a study, a preset nor a file: did you mean shapes-6"),
        ("tabel-1 --out x", "did you mean table-1"),
        ("shapes-6-2 --methods plop", "--out is missing"),
        ("shapes-6-2 --methods plop --seeds a --out x", "--seeds is 'a' but must be whole numbers"),
        ("shapes-6-2 --methods plop --seeds 1,1 --out x", "a number twice"),
        ("shapes-6-2 --methods plop --seed 1 --out x", "--seed is for one run: give --seeds"),
        ("shapes-6-2 --methods plop --method mib --out x", "--method is for one run: give --methods"),
        ("shapes-6-2 --methods plop --orders 0 --out x", "orders is 0"),
        ("shapes-6-2 --methods plop --scale paper --out x", "--scale is for studies"),
        ("shapes-6-2 --methods plop --rows a --out x", "--rows is for studies"),
        ("shapes-6-2 --methods plop --jobs 0 --out x", "--jobs is 0"),
        ("shapes-6-2 --methods plop --jobs 5000 --out x", "--jobs is 5000 but this machine has"),
        ("shapes-6-2 --methods plop --cluster-options {} --out x", "is for --cluster slurm"),
        ("shapes-6-2 --methods plop --convention mine --out x", "--convention is mine"),
        ("shapes-6-2 --methods plop --settings 60-1 --out x --dry-run", "60-1"),
        ("shapes-6-2 --methods plop --training.iterations 0 --out x", "training.iterations is 0"),
        ("shapes-6-2 --methods plop --training.iteration 5 --out x", "did you mean"),
        ("table-5 --scale shapes --methods plop --out x", "leave out --methods"),
        ("table-5 --scale shapes --rows masks --out x", "has no row 'masks': there are mask; score"),
        ("table-5 --out x", "choose one with --scale"),
        ("shapes-6-2 --methods plop --continual.setting 6-1 --out x", "is for one run: give --settings"),
        ("table-4 --scale shapes --init nowhere --out x", "--init nowhere does not exist"),
        ("shapes-6-2 --methods plop --training.loggers wandb --out x --dry-run", "pip install wandb"),
    ],
)
def test_mistakes_on_the_command_line_are_one_sentence(
    arguments: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as raised:
        dispatch(["compare", *arguments.split()])
    assert sentence in str(raised.value)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rows: [", "mine.yaml is not valid YAML"),
        ("row: [comastre]\npreset: shapes-6-2\n", "there is no field row: did you mean rows?"),
        ("", "mine.yaml is no study: name methods to compare"),
        ("- comastre\n", "must hold `field: value` lines"),
        ("base: shapes-6-2\n", "mine.yaml is no study: name methods to compare"),
    ],
)
def test_a_file_that_is_no_study_is_told_what_it_lacks(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as raised:
        dispatch(["compare", "mine.yaml", "--out", "x"])
    assert sentence in str(raised.value)


def test_folders_that_are_no_study_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for out, sentence in (("mine", "holds other files and is not a study"), ("file", "is a file: name a folder")):
        with pytest.raises(UserError, match=sentence):
            dispatch(["compare", "shapes-6-2", "--methods", "plop", "--out", out])
    with pytest.raises(UserError, match=r"mine is a folder without a study\.json"):
        dispatch(["compare", "mine"])


# --- orders and settings ---------------------------------------------------------------------------------------------


def test_orders_are_permutations_drawn_by_number_whatever_their_count() -> None:
    study = replace(study_of_methods("shapes-6-1", ["comastre", "joint"]), orders=read_orders(3, "--orders"))
    runs = plan(study).runs
    orders = {run.order.number: run.config.continual.class_order for run in runs}
    assert orders[0] is None
    assert all(sorted(orders[number] or ()) == list(range(1, 11)) for number in (1, 2))
    assert orders[1] != orders[2]
    alone = plan(replace(study, orders=(Order(2),))).runs[0]
    assert alone.config.continual.class_order == orders[2]
    assert alone.name == "comastre--6-1--seed-0--order-2"
    assert len({run.group for run in runs}) == 6


def test_orders_that_are_given_keep_clear_of_those_that_are_drawn() -> None:
    orders = read_orders((tuple(range(10, 0, -1)), 1), "--orders")
    assert [order.number for order in orders] == [2, 1]


def test_settings_that_begin_alike_share_a_first_step_and_others_do_not() -> None:
    runs = plan(study_of_methods("shapes-6-2", ["comastre"], ["6-2", "6-1", "4-2"])).runs
    assert [run.config.continual.setting for run in runs] == ["6-2", "6-1", "4-2"]
    assert [run.group for run in runs] == [0, 0, 1]
    assert [run.name for run in runs] == ["comastre--6-2--seed-0", "comastre--6-1--seed-0", "comastre--4-2--seed-0"]


def test_what_scores_mean_is_written_down() -> None:
    run = plan(study_of_methods("voc-15-1", ["plop"])).runs[0]
    found = conventions(run.config)
    assert found["continual.protocol"] == "overlapped"
    assert found["view.short_side"] == [512]
    assert found["evaluation.convention"] == "paper"
