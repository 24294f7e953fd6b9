"""Who starts when: a scheduler whose workers are pretended, and processes that end with their study."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from comastre.config.settings import load_config
from comastre.errors import UserError
from comastre.live_line import LiveLine
from comastre.studies import jobs as jobs_module
from comastre.studies.directory import claimed, folder_of
from comastre.studies.jobs import train_all
from comastre.studies.plan import Plan, plan
from comastre.studies.spec import study_of_methods
from comastre.studies.workers import Job, Share, share_of
from comastre.training.stopping import Interrupted


class Pretended:
    """Workers whose runs take a few looks: after the first they have their first step, after the last they end."""

    def __init__(self, out: Path, dies: Sequence[str] = (), looks: int = 3) -> None:
        self.out, self.dies, self.looks = out, dies, looks
        self.started: list[tuple[str, str | None]] = []
        self.at_once, self.most = 0, 0
        self.stopped: list[str] = []

    def start(self, name: str, arguments: Sequence[str], log: Path, slot: int) -> Job:
        base = arguments[arguments.index("--base") + 1] if "--base" in arguments else None
        self.started.append((name, Path(base).name if base else None))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        return PretendedJob(self, name, log)


class PretendedJob:
    def __init__(self, workers: Pretended, name: str, log: Path) -> None:
        self.workers, self.name, self.log, self.looked = workers, name, log, 0

    def ended(self) -> int | None:
        self.looked += 1
        folder = self.workers.out / "runs" / self.name
        if self.name in self.workers.dies:
            self.workers.at_once -= 1
            self.log.write_text("--- began\ncomastre: the loss became NaN\n")
            return 1
        if self.looked == 1:
            (folder / "steps" / "00").mkdir(parents=True)
            write_results(folder, learned=False)
        if self.looked < self.workers.looks:
            return None
        write_results(folder, learned=True)
        self.workers.at_once -= 1
        return 0

    def stop(self) -> None:
        self.workers.stopped.append(self.name)

    def wait(self) -> None:
        assert self.workers.stopped


def write_results(folder: Path, learned: bool) -> None:
    """As much of the file as a scheduler looks at."""
    order = ["a"] if learned else ["a", "b"]
    text = json.dumps({"version": 1, "class_order": order, "steps": [{"new_classes": ["a"]}]})
    (folder / "results.json").write_text(text)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "_SECONDS_BETWEEN", 0.0)


def planned(methods: str, seeds: tuple[int, ...] = (0,)) -> Plan:
    return plan(replace(study_of_methods("shapes-6-2", methods.split(",")), seeds=seeds))


def conducted(
    out: Path, methods: str, most: int = 1, seeds: tuple[int, ...] = (0,), dies: Sequence[str] = ()
) -> tuple[Pretended, jobs_module.Outcome]:
    made, workers = planned(methods, seeds), Pretended(out, dies)
    with claimed(out, made):
        return workers, train_all(made, out, workers, most, LiveLine(Console(quiet=True), quiet=True))


def test_one_run_learns_the_first_step_and_others_take_it_over(tmp_path: Path) -> None:
    workers, outcome = conducted(tmp_path, "comastre,finetune,mib", seeds=(0, 1))
    assert workers.started == [
        ("comastre--6-2--seed-0", None),
        ("fine-tuning--6-2--seed-0", "comastre--6-2--seed-0"),
        ("mib--6-2--seed-0", None),
        ("comastre--6-2--seed-1", None),
        ("fine-tuning--6-2--seed-1", "comastre--6-2--seed-1"),
        ("mib--6-2--seed-1", None),
    ]
    assert workers.most == 1
    assert not outcome.died


def test_several_at_once_wait_only_for_a_first_step_of_theirs(tmp_path: Path) -> None:
    workers, _ = conducted(tmp_path, "comastre,finetune,mib", most=2)
    assert [name for name, _ in workers.started[:2]] == ["comastre--6-2--seed-0", "mib--6-2--seed-0"]
    assert dict(workers.started)["fine-tuning--6-2--seed-0"] == "comastre--6-2--seed-0"
    assert workers.most == 2


def test_a_run_that_dies_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    workers, outcome = conducted(tmp_path, "comastre,finetune,mib", dies=["comastre--6-2--seed-0"])
    assert [death.run.name for death in outcome.died] == ["comastre--6-2--seed-0"]
    assert outcome.died[0].reason == "the loss became NaN"
    # The first step, which nobody has yet, is learned by the next run that needs it.
    assert ("fine-tuning--6-2--seed-0", None) in workers.started
    assert len(workers.started) == 3
    again, outcome = conducted(tmp_path, "comastre,finetune,mib")
    assert again.started == [("comastre--6-2--seed-0", "fine-tuning--6-2--seed-0")]
    assert not outcome.died


def test_a_first_step_is_taken_only_from_a_run_that_begins_alike_seen_from_there(tmp_path: Path) -> None:
    """The exact method has fields that CoMasTRe does not know: it may start from CoMasTRe, and not the other way."""
    workers, _ = conducted(tmp_path, "finetune,comastre-exact,comastre", dies=["fine-tuning--6-2--seed-0"])
    assert workers.started == [
        ("fine-tuning--6-2--seed-0", None),
        ("comastre-exact--6-2--seed-0", None),
        ("comastre--6-2--seed-0", None),
    ]
    again, _ = conducted(tmp_path, "finetune,comastre-exact,comastre")
    assert again.started == [("fine-tuning--6-2--seed-0", "comastre--6-2--seed-0")]


def test_a_first_step_that_died_twice_is_not_tried_by_all(tmp_path: Path) -> None:
    dies = ["mib--6-2--seed-0", "plop--6-2--seed-0"]
    workers, outcome = conducted(tmp_path, "mib,plop,deeplab-finetune,comastre", dies=dies)
    assert [run.name for run in outcome.untried] == ["deeplabv3-fine-tuning--6-2--seed-0"]
    assert ("comastre--6-2--seed-0", None) in workers.started


def test_a_signal_stops_all_and_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, workers = planned("comastre,mib"), Pretended(tmp_path, looks=10**6)
    looks = iter([lambda: None] * 3 + [lambda: os.kill(os.getpid(), signal.SIGTERM)] + [lambda: None] * 9)
    monkeypatch.setattr(jobs_module.time, "sleep", lambda seconds: next(looks)())
    with claimed(tmp_path, made), pytest.raises(Interrupted, match="0 of 2 runs finished") as raised:
        train_all(made, tmp_path, workers, 2, LiveLine(Console(quiet=True), quiet=True))
    assert raised.value.exit_code == 143
    assert workers.stopped == ["comastre--6-2--seed-0", "mib--6-2--seed-0"]


def test_cores_and_gpus_are_divided_and_never_promised_twice() -> None:
    config = load_config("shapes-6-2")
    assert share_of(2, config, 8, ()) == Share(4)
    assert share_of(2, config, 8, ("0", "3")) == Share(4, (("0",), ("3",)))
    loading = load_config("voc-15-1")  # two loader processes
    assert share_of(2, loading, 8, ()) == Share(2)
    assert share_of(2, loading, 2, ()) == Share(1)
    with pytest.raises(UserError, match="at most 2"):
        share_of(3, config, 2, ())
    with pytest.raises(UserError, match="2 GPUs"):
        share_of(3, config, 8, ("0", "1"))


# --- processes -------------------------------------------------------------------------------------------------------

WATCHED = "import threading, time; from comastre.studies.child import watch; "
WATCHED += "threading.Thread(target=watch, daemon=True).start(); print('ready', flush=True); time.sleep(60)"
PARENT = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {WATCHED!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_nothing_outlives_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
    assert within(20, lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_child_stops_as_after_sigterm_when_its_pipe_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", WATCHED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        child.stdin.close()
        assert child.wait(20) == -signal.SIGTERM


def test_folders_are_those_of_the_plan(tmp_path: Path) -> None:
    made = planned("comastre")
    assert folder_of(tmp_path, made.runs[0]) == tmp_path / "runs" / "comastre--6-2--seed-0"
