"""Reading run directories: finished, going on, interrupted, damaged, and what is none."""

import json
import os
import socket
from pathlib import Path

import pytest
from made_runs import make_joint, make_run

from comastre.config.datasets import DatasetSpec
from comastre.config.run_files import HOLDER
from comastre.errors import UserError
from comastre.report import groups as groups_module
from comastre.report.gather import read_run
from comastre.report.groups import grouped, labelled
from comastre.report.write import read_groups, write_report


def test_a_finished_run(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    assert run.state == "finished"
    assert run.position == (2, 20)
    assert run.boundaries == (100, 120)
    total = next(curve for curve in run.losses if curve.name == "total")
    assert (total.iterations[0], total.iterations[-1]) == (10, 140)
    assert {curve.name for curve in run.losses} == {"total", "mask_bce"}
    assert [example.name for example in run.examples.images] == ["image-0", "image-1"]
    assert sorted(run.examples.images[0].predictions) == [0, 1, 2]


def test_a_run_from_another_runs_first_step_keeps_its_place(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    lines = [line for line in (folder / "metrics.jsonl").read_text().splitlines() if json.loads(line)["step"] > 0]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = read_run(folder)
    assert run.losses[0].iterations[0] == 110  # after the 100 iterations that the base run took
    assert run.boundaries == (100, 120)


@pytest.mark.parametrize("end", ['{"step": 2, "iter', "\x00\x00", '{"step": 2}\n', "[]\n"])
def test_a_damaged_last_line_is_left_out(tmp_path: Path, end: str) -> None:
    folder = make_run(tmp_path / "run")
    before = read_run(folder)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(end)
    after = read_run(folder)
    assert (after.losses, after.remarks) == (before.losses, ())


def test_damage_elsewhere_is_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[0], "oops", *lines[1:]]))
    (folder / "examples" / "truth" / "00.png").unlink()
    run = read_run(folder)
    assert "1 damaged" in run.remarks[0]
    assert "00.png is missing" in run.remarks[1]
    assert [example.name for example in run.examples.images] == ["image-1"]


@pytest.mark.parametrize("name", ["image/00.jpg", "truth/00.png", "step-01/00.png"])
def test_a_damaged_picture_costs_itself_alone(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "run")
    file = folder / "examples" / name
    file.write_bytes(file.read_bytes()[:40])
    run = read_run(folder)
    if name.startswith("step"):
        assert [sorted(example.predictions) for example in run.examples.images] == [[0, 2], [0, 1, 2]]
    else:
        assert [example.name for example in run.examples.images] == ["image-1"]
        assert f"{file} is missing or damaged" in run.remarks[0]
    write_report([folder], folder / "report.html", figures=tmp_path / "figures" if "truth" in name else None)


@pytest.mark.parametrize(
    ("holder", "state"),
    [
        (f"process {os.getpid()} on {socket.gethostname()}", "running"),
        (f"process 999999999 on {socket.gethostname()}", "stopped"),
        (f"process {os.getpid()} on another-machine", "stopped"),
        ("", "stopped"),
    ],
    ids=["a living process", "a dead process", "another machine", "nobody"],
)
def test_whether_it_still_trains(tmp_path: Path, holder: str, state: str) -> None:
    folder = make_run(tmp_path / "run", (60.0,))
    (folder / HOLDER).write_text(f"{holder}\n")
    assert read_run(folder).state == state


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing does not exist"):
        read_run(tmp_path / "missing")
    with pytest.raises(UserError, match=r"is not a run, it has no config\.yaml: give the folder of a run"):
        read_run(tmp_path)
    make_run(tmp_path / "one")
    with pytest.raises(UserError, match=r"comastre report \S+one`"):
        read_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        read_run(tmp_path / "file")
    (tmp_path / "one" / "results.json").unlink()
    (tmp_path / "one" / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="has not begun"):
        read_run(tmp_path / "one")


def test_runs_given_twice_or_not_at_all_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match="is given twice"):
        read_groups([run, tmp_path / "." / "run"])
    with pytest.raises(UserError, match="no run given"):
        read_groups([])


def test_comparable_runs_share_a_group_and_joint_is_the_ceiling_of_all(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", method="finetune"),
        make_run(tmp_path / "c", setting="2-2", seed=1),
        make_run(tmp_path / "d", dataset="voc"),
        make_joint(tmp_path / "e"),
    ]
    groups = read_groups(folders)
    assert [[entry.run.folder.name for entry in group.entries] for group in groups] == [["a", "b"], ["c"], ["d"]]
    assert [[entry.run.folder.name for entry in group.ceilings] for group in groups] == [["e"], ["e"], []]
    assert [group.title for group in groups] == [
        "Shapes 2-1, overlapped",
        "Shapes 2-2, overlapped",
        "Pascal VOC 2-1, overlapped",
    ]


def test_what_recognises_nothing_is_told_by_its_results(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", (60.0,), setting="joint", examples=False)
    assert not read_run(folder).proposes_only and read_run(folder).is_joint
    document = json.loads((folder / "results.json").read_text())
    document["steps"][0] |= {"per_class": {}, "errors": {}, "task_confusion": []}
    (folder / "results.json").write_text(json.dumps(document))
    assert read_run(folder).proposes_only and not read_run(folder).is_joint
    # Before a step is finished nothing but the name tells.
    assert read_run(make_run(tmp_path / "new", (), method="objectness")).proposes_only


def test_runs_on_a_dataset_of_another_package_are_compared_by_its_own_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [make_run(tmp_path / name, dataset="stripes") for name in ("a", "b", "c")]
    for folder, options in zip(folders, ("{year: 2019}", "{year: 2020}", "{year: 2019, colour: red}"), strict=True):
        config = (folder / "config.yaml").read_text()
        assert config.count("  options: {}\n") == 1
        (folder / "config.yaml").write_text(config.replace("  options: {}\n", f"  options: {options}\n"))
    (group,) = read_groups(folders)  # where the package is not installed, its name is all that is known
    assert group.title == "stripes 2-1, overlapped"
    spec = DatasetSpec("stripes", "Stripes", "stripes", "stripes:build", validation_fields=("options.year",))
    monkeypatch.setattr(groups_module, "datasets", lambda: {"stripes": spec})
    groups = read_groups(folders)
    assert [[entry.run.folder.name for entry in group.entries] for group in groups] == [["a", "c"], ["b"]]
    assert groups[0].title == "Stripes 2-1, overlapped"


def test_a_joint_run_alone_is_a_group(tmp_path: Path) -> None:
    (group,) = read_groups([make_joint(tmp_path / "joint")])
    assert [entry.label for entry in group.entries] == ["joint training"]
    assert group.ceilings == ()


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", seed=1),
        make_run(tmp_path / "x" / "b"),
        make_run(tmp_path / "f", method="finetune"),
    ]
    entries = labelled([read_run(folder) for folder in folders])
    labels = [entry.label for entry in entries]
    assert labels[0] == "CoMasTRe (a)"
    assert labels[1] == "CoMasTRe, seed 1"
    assert labels[3] == "fine-tuning"
    assert len(set(labels)) == 4
    assert [entry.place for entry in grouped(entries)[0].entries] == [0, 1, 2, 3]
