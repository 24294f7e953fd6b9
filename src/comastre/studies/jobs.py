"""The runs of a study, several at a time: who may start when, what died, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comastre.config.first_step import begin_alike
from comastre.live_line import LiveLine
from comastre.studies.directory import config_file, folder_of, has_first_step, is_finished, lies_in, log_file
from comastre.studies.pace import time_left
from comastre.studies.plan import Plan, PlannedRun
from comastre.studies.workers import Job, Workers
from comastre.text import readable_time
from comastre.training.stopping import Interrupted, StopRequest

_SECONDS_BETWEEN = 0.2
_SECONDS_BETWEEN_LOOKS = 5.0
"""At what the runs have logged."""
_MOST_DEATHS = 2
"""Runs of a group that may die in their first step, which is the same for all of them, before the rest is not tried."""


@dataclass(frozen=True)
class Death:
    """A run that ended before its end."""

    run: PlannedRun
    code: int
    reason: str
    """The last line of its log."""


@dataclass(frozen=True)
class Outcome:
    """What became of all runs."""

    died: tuple[Death, ...] = ()
    untried: tuple[PlannedRun, ...] = ()
    """Runs whose first step died with others."""


def train_all(plan: Plan, out: Path, workers: Workers, most: int, line: LiveLine) -> Outcome:
    """Train every run that is not finished, at most so many at a time.

    Runs of a group share their first step: one of them learns it, the others wait for it and take it over. Raises
    `Interrupted` on SIGTERM and Ctrl-C, when all runs have saved and stopped.
    """
    round_of_jobs = _Round(plan, out, workers, most, line)
    with StopRequest().listening() as stop:
        try:
            while round_of_jobs.goes_on(stop):
                time.sleep(_SECONDS_BETWEEN)
        finally:
            round_of_jobs.stop()
    if stop.signal_number:
        done = sum(is_finished(folder_of(out, run)) for run in plan.runs)
        raise Interrupted(
            f"stopped with {done} of {len(plan.runs)} runs finished; everything is saved, the same command goes on",
            stop.signal_number,
        )
    return Outcome(tuple(round_of_jobs.died), tuple(round_of_jobs.untried))


class _Round:
    """One start of a study."""

    def __init__(self, plan: Plan, out: Path, workers: Workers, most: int, line: LiveLine) -> None:
        self._plan, self._out, self._workers, self._most, self._line = plan, out, workers, most, line
        self._waiting = [run for run in plan.runs if not is_finished(folder_of(out, run))]
        self._total = len(self._waiting)
        self._running: dict[int, tuple[PlannedRun, Job, float]] = {}
        """By slot, with when it began."""
        self._looked = time.monotonic()
        self._told = False
        self.died: list[Death] = []
        self.untried: list[PlannedRun] = []

    def goes_on(self, stop: StopRequest) -> bool:
        """Start what may start, note what has ended; whether anything is left to do."""
        if stop.signal_number:
            return False
        self._note_ended()
        for run in list(self._waiting):
            if len(self._running) >= self._most:
                break
            self._start_if_ready(run)
        self._look()
        return bool(self._running)

    def stop(self) -> None:
        """Ask all at once, then wait for each."""
        for _, job, _ in self._running.values():
            job.stop()
        for _, job, _ in self._running.values():
            job.wait()
        self._running.clear()

    def _start_if_ready(self, run: PlannedRun) -> None:
        members = [each for each in self._plan.runs if each.group == run.group and each is not run]
        learned = (each for each in members if has_first_step(folder_of(self._out, each)))
        # Alike in this direction: a method that extends another may start from it, but not the other way round.
        base = next((each for each in learned if begin_alike(each.config, run.config)), None)
        begun = has_first_step(folder_of(self._out, run))
        if base is None and not begun:
            if any(each is other for each, _, _ in self._running.values() for other in members):
                return  # it is learning the first step now
            if sum(death.run.group == run.group for death in self.died) >= _MOST_DEATHS:
                self._waiting.remove(run)
                self.untried.append(run)
                return
        arguments = ["train", str(config_file(self._out, run)), "--out", str(folder_of(self._out, run))]
        if base is not None and not begun:
            arguments += ["--base", str(folder_of(self._out, base))]
        slot = min(set(range(self._most)) - set(self._running))
        self._waiting.remove(run)
        job = self._workers.start(run.name, arguments, log_file(self._out, run), slot)
        self._running[slot] = run, job, time.monotonic()
        shared = f", from the first step of {base.label}" if "--base" in arguments and base is not None else ""
        self._line.say(f"started   {run.label}{shared}")

    def _note_ended(self) -> None:
        for slot, (run, job, began) in list(self._running.items()):
            code = job.ended()
            if code is None:
                continue
            del self._running[slot]
            if is_finished(folder_of(self._out, run)):
                self._line.say(f"finished  {run.label}, in {readable_time(time.monotonic() - began)}")
            else:
                reason = last_line(log_file(self._out, run))
                self.died.append(Death(run, code, reason))
                self._line.say(f"died      {run.label}: {reason}")

    def _look(self) -> None:
        """Every few seconds: how far it is, and once how long it will take."""
        if time.monotonic() - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = time.monotonic()
        running = [run for run, _, _ in self._running.values()]
        left = time_left([*running, *self._waiting], self._plan.runs, self._out, min(self._most, self._total))
        done = self._total - len(self._waiting) - len(running) - len(self.untried)
        words = () if left is None else (f"about {readable_time(left)} left",)
        self._line.show("runs", done, self._total, words)
        if left is not None and not self._told:
            self._told = True
            self._line.say(
                f"about {readable_time(left)} to go at the pace of the first iterations, without evaluations"
            )


def last_line(log: Path) -> str:
    """What a run said last."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "it left no log"
    said = [line.strip() for line in lines if line.strip() and not line.startswith("---")]
    return said[-1].removeprefix("comastre: ")[:400] if said else "it said nothing"


def announcement(plan: Plan, out: Path) -> list[str]:
    """Before anything starts: how many runs, which are done, and what they share."""
    study, runs = plan.study, plan.runs
    done = [run for run in runs if is_finished(lies_in(out, run))]
    begun = [run for run in runs if run not in done and has_first_step(lies_in(out, run))]
    counts = [
        _count(len(study.rows), "row"),
        _count(len(study.settings), "setting"),
        _count(len(study.seeds), "seed"),
        _count(len(study.orders), "class order"),
    ]
    lines = [f"{_count(len(runs), 'run')}: {', '.join(counts)}; {len(done)} finished, {len(begun)} begun."]
    if plan.shared:
        take = "takes" if plan.shared == 1 else "take"
        lines.append(f"{_count(plan.shared, 'run')} {take} the first step of another, which is the same:")
        lines += [f"  {words}" for words in _sharing(runs)]
    return lines


def _sharing(runs: Sequence[PlannedRun]) -> list[str]:
    """Which rows share, for the first seed and order: it is alike in the others."""
    first = [run for run in runs if (run.seed, run.order.number) == (runs[0].seed, runs[0].order.number)]
    several = len({run.setting.label for run in runs}) > 1
    groups: dict[int, list[str]] = {}
    for run in first:
        name = f"{run.row.name} ({run.setting.label})" if several else run.row.name
        groups.setdefault(run.group, []).append(name)
    return ["; ".join(names) for names in groups.values() if len(names) > 1]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
