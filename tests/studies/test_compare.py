"""A whole study by the command: two rows that share a first step, stopped by nothing, shown again from its file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from comastre.cli.main import dispatch
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.studies.found import read_found

TINY = [
    "--training.iterations=2",
    "--training.iterations_per_class=1",
    "--training.batch_size=2",
    "--training.log_every=1",
    "--data.train_images=40",
    "--data.val_images=6",
    "--training.accelerator=cpu",
]


def compare(*arguments: str) -> int:
    return dispatch(["compare", *arguments])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    assert compare("shapes-6-2", "--methods", "comastre,finetune", "--out", str(out), *TINY) == 0
    return out


def test_a_study_has_tables_a_page_and_runs_with_a_first_step_in_common(study: Path) -> None:
    first = study / "runs" / "comastre--6-2--seed-0" / "steps" / "00" / "model.safetensors"
    other = study / "runs" / "fine-tuning--6-2--seed-0" / "steps" / "00" / "model.safetensors"
    assert first.read_bytes() == other.read_bytes()
    assert "--base" in (study / "logs" / "fine-tuning--6-2--seed-0.log").read_text()
    assert "--base" not in (study / "logs" / "comastre--6-2--seed-0.log").read_text()
    for name in ("scores.csv", "scores.md", "scores.tex", "classes.csv", "differences.md", "proposals.tex"):
        assert (study / "tables" / name).stat().st_size
    assert "fine-tuning" in (study / "report.html").read_text(encoding="utf-8")
    found = json.loads((study / "study.json").read_text(encoding="utf-8"))
    results = Results.load(study / "runs" / "comastre--6-2--seed-0" / "results.json")
    scores = found["runs"][0]["steps"][-1]["scores"]["paper"]
    assert scores["all"] == round(results.steps[-1].conventions["paper"].all, 3)
    assert [run["finished"] for run in found["runs"]] == [True, True]


def test_a_finished_study_is_shown_again_without_its_runs(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(study / "study.json", tmp_path / "study.json")
    assert compare(str(tmp_path)) == 0
    assert (tmp_path / "tables" / "scores.md").read_text() == (study / "tables" / "scores.md").read_text()
    assert "fine-tuning" in capsys.readouterr().out
    (tmp_path / "report.html").unlink()
    assert dispatch(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").is_file()
    with pytest.raises(UserError, match="leave out --tables"):
        dispatch(["report", str(tmp_path), "--tables", "x"])
    with pytest.raises(UserError, match="leave out --seeds"):
        compare(str(tmp_path), "--seeds", "3")


def test_the_same_command_trains_nothing_again_and_another_study_is_refused(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (study / "logs" / "comastre--6-2--seed-0.log").read_text()
    assert compare("shapes-6-2", "--methods", "comastre,finetune", "--out", str(study), *TINY) == 0
    assert "2 finished" in capsys.readouterr().out
    assert (study / "logs" / "comastre--6-2--seed-0.log").read_text() == before
    with pytest.raises(UserError, match="holds another study"):
        compare("shapes-6-1", "--methods", "comastre", "--out", str(study), *TINY)
    with pytest.raises(UserError, match=r"other settings \(training\.iterations: 2 -> 3\)"):
        compare("shapes-6-2", "--methods", "comastre", "--out", str(study), *TINY, "--training.iterations=3")


def test_settings_and_seeds_that_come_later_stand_beside_what_is_there(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(study, out)
    begin = ["shapes-6-2", "--methods", "comastre", "--out", str(out), *TINY]
    assert compare(*begin, "--settings", "6-2,6-4") == 0
    assert "1 finished" in capsys.readouterr().out
    found = read_found(out)
    assert [setting.label for setting in found.settings] == ["6-2", "6-4"]
    # fine-tuning, of which this command knew nothing, is there as before
    assert {(run.row, run.setting, run.seed) for run in found.runs if run.finished} == {
        ("CoMasTRe", "6-2", 0),
        ("CoMasTRe", "6-4", 0),
        ("fine-tuning", "6-2", 0),
    }
    assert found.of("fine-tuning", "6-2") == read_found(study).of("fine-tuning", "6-2")
    assert "fine-tuning" in (out / "tables" / "scores.md").read_text()
    with pytest.raises(UserError, match=r"its run comastre--6-2--seed-0 .*training\.iterations: 2 -> 3"):
        compare(*begin, "--seeds", "5", "--training.iterations=3")


def test_runs_of_a_version_that_did_not_name_the_setting_are_found(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(study, out)
    for path in [*out.glob("runs/*"), *out.glob("logs/*"), *out.glob("configs/*")]:
        path.rename(path.with_name(path.name.replace("--6-2", "")))
    assert compare("shapes-6-2", "--methods", "comastre,finetune", "--out", str(out), *TINY) == 0
    assert "2 finished" in capsys.readouterr().out
    assert sorted(path.name for path in out.glob("runs/*")) == sorted(path.name for path in study.glob("runs/*"))
    assert not list(out.glob("*/comastre--seed-0*"))


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert (
        compare("shapes-6-1", "--methods", "mib,plop,comastre", "--seeds", "0,1", "--out", str(out), "--dry-run") == 0
    )
    said = capsys.readouterr().out
    assert "6 runs: 3 rows, 1 setting, 2 seeds, 1 class order; 0 finished" in said
    assert "MiB; PLOP" in said
    assert not out.exists()
