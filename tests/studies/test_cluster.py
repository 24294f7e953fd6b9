"""Runs as jobs of submitit: its local executor runs them here, and what SLURM would be asked is read."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from comastre.config.settings import load_config
from comastre.errors import UserError

submitit = pytest.importorskip("submitit", reason="needs the extra cluster: pip install 'comastre[cluster]'")

from comastre.studies import cluster as cluster_module  # noqa: E402
from comastre.studies.cluster import Cluster  # noqa: E402
from comastre.studies.workers import Job  # noqa: E402

CONFIG = load_config("shapes-6-2")


def ended(job: Job) -> int:
    until = time.monotonic() + 100
    while (code := job.ended()) is None:
        assert time.monotonic() < until
        time.sleep(0.1)
    return code


def test_local_jobs_run_the_ordinary_command_and_tell_its_code(tmp_path: Path) -> None:
    workers = Cluster("local", "{timeout_min: 2}", tmp_path, CONFIG)
    good = workers.start("good", ["presets"], tmp_path / "good.log", 0)
    bad = workers.start("bad", ["presetz"], tmp_path / "bad.log", 1)
    assert (ended(good), ended(bad)) == (0, 1)
    assert all(path.name.startswith(".") or path.suffix == ".log" for path in tmp_path.iterdir())
    assert "shapes-6-2" in (tmp_path / "good.log").read_text()
    assert "did you mean presets" in (tmp_path / "bad.log").read_text()


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("cloud", "", "--cluster is 'cloud' but must be slurm or local"),
        ("local", "{slurm_partitoin: gpu}", "Unknown argument 'partitoin'"),
        ("local", "{timeout_min: long}", "timeout_min"),
        ("local", "[1, 2]", "must be names and values"),
        ("local", "{a: [", "not valid YAML"),
        ("slurm", "", "cannot be used"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(kind: str, options: str, sentence: str, tmp_path: Path) -> None:
    if kind == "slurm" and submitit.AutoExecutor.which() == "slurm":
        pytest.skip("this machine has SLURM")
    with pytest.raises(UserError) as raised:
        Cluster(kind, options, tmp_path, CONFIG)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_study_that_starts_again_finds_its_job_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a queue that is pretended: there is none here."""
    asked: dict[str, Any] = {}
    waiting = {"7"}

    class Executor:
        def __init__(self, folder: str, cluster: str) -> None:
            asked["cluster"] = cluster

        def update_parameters(self, **given: Any) -> None:
            asked.update(given)

        def submit(self, training: Any) -> Any:
            asked.setdefault("submitted", []).append(training.arguments)
            return SimpleNamespace(job_id="7", done=lambda force_check=False: False)

    def known_job(folder: Path, number: str) -> Any:
        return SimpleNamespace(job_id=number, done=lambda force_check=False: number not in waiting)

    monkeypatch.setattr(cluster_module.submitit, "AutoExecutor", Executor)
    monkeypatch.setattr(cluster_module.submitit, "SlurmJob", known_job)
    options = "{slurm_partition: gpu, gpus_per_node: 2}"
    config = load_config("voc-15-1", {"training": {"devices": 2}})
    Cluster("slurm", options, tmp_path, config).start("a", ["train"], tmp_path / "a.log", 0)
    assert (asked["cluster"], asked["slurm_partition"], asked["tasks_per_node"]) == ("slurm", "gpu", 2)
    Cluster("slurm", options, tmp_path, config).start("a", ["train"], tmp_path / "a.log", 0)
    assert len(asked["submitted"]) == 1  # found again
    waiting.clear()
    Cluster("slurm", options, tmp_path, config).start("a", ["train"], tmp_path / "a.log", 0)
    assert len(asked["submitted"]) == 2  # it had ended unfinished


def test_without_submitit_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    monkeypatch.delitem(sys.modules, "comastre.studies.cluster")
    with pytest.raises(UserError, match=r"pip install 'comastre\[cluster\]'"):
        import comastre.studies.cluster  # noqa: F401
