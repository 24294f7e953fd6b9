"""Which runs can share a chart, and what each is called there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comastre.config.datasets import datasets
from comastre.config.methods import title_of
from comastre.config.settings import flatten
from comastre.report.gather import Run


@dataclass(frozen=True)
class Entry:
    """A run with its name and place in the legend."""

    label: str
    place: int
    """Counts the runs of the report, not of the group: a run keeps its colour."""
    run: Run


@dataclass(frozen=True)
class Group:
    """Runs that learned the same classes in the same steps and were tested on the same images."""

    title: str
    entries: tuple[Entry, ...]
    """The runs of the stream; where there is none, joint runs."""
    ceilings: tuple[Entry, ...] = ()
    """Joint runs on the same data: what could be reached with all classes at once."""

    @property
    def everybody(self) -> tuple[Entry, ...]:
        return self.entries + self.ceilings

    @property
    def scored(self) -> tuple[Entry, ...]:
        """The runs of the stream that have finished a step."""
        return tuple(entry for entry in self.entries if entry.run.results is not None)

    @property
    def longest(self) -> Entry | None:
        """The run that has finished most steps."""
        return max(self.scored, key=lambda entry: len(_results(entry).steps), default=None)


def labelled(runs: Sequence[Run], titles: Sequence[str] | None = None) -> list[Entry]:
    """Names by method, with the seed or the folder where the method alone does not tell runs apart."""
    if titles is None:
        names = [title_of(run.method) for run in runs]
        seeds = [f"{name}, seed {run.config.get('seed', 0)}" for name, run in zip(names, runs, strict=True)]
        folders = [f"{name} ({run.folder.resolve().name})" for name, run in zip(names, runs, strict=True)]
        paths = [f"{name} ({run.folder})" for name, run in zip(names, runs, strict=True)]
        titles = _first_that_differ(names, seeds, folders, paths)
    return [Entry(title, place, run) for place, (title, run) in enumerate(zip(titles, runs, strict=True))]


def grouped(entries: Sequence[Entry]) -> list[Group]:
    """Comparable runs together, in the order given; joint runs are the ceiling of every group of their data."""
    streams = [entry for entry in entries if not entry.run.is_joint]
    joint = [entry for entry in entries if entry.run.is_joint]
    members: dict[Any, list[Entry]] = {}
    for entry in streams:
        members.setdefault(_stream(entry.run), []).append(entry)
    groups = []
    claimed: set[int] = set()
    for found in members.values():
        data = {_data(entry.run) for entry in found}
        ceilings = tuple(entry for entry in joint if _data(entry.run) in data and entry.run.results is not None)
        claimed |= {entry.place for entry in ceilings}
        groups.append(Group(_title(found[0].run), tuple(found), ceilings))
    alone: dict[Any, list[Entry]] = {}
    for entry in joint:
        if entry.place not in claimed:
            alone.setdefault(_data(entry.run), []).append(entry)
    groups += [Group(_title(found[0].run), tuple(found)) for found in alone.values()]
    return groups


def _first_that_differ(*ways: list[str]) -> list[str]:
    """Each run's name in the first way of naming in which it is the only one of that name."""
    counts = [Counter(names) for names in ways]
    titles: list[str] = []
    for each in zip(*ways, strict=True):
        unique = [name for name, count in zip(each, counts, strict=True) if count[name] == 1]
        titles.append(unique[0] if unique else f"{each[-1]} #{len(titles) + 1}")
    return titles


def _stream(run: Run) -> tuple[Any, ...]:
    if run.results is not None:
        results = run.results
        return (*_data(run), run.proposes_only, results.setting, results.protocol, results.tradition)
    tradition = "protocol" if run.setting("continual", "partition") is None else "partition"
    setting, protocol = run.setting("continual", "setting"), run.setting("continual", "protocol")
    return (*_data(run), run.proposes_only, str(setting), str(protocol), tradition)


def _data(run: Run) -> tuple[Any, ...]:
    dataset = dataset_of(run)
    order = run.setting("continual", "class_order")
    spec = datasets().get(dataset)  # None: of a package that is not installed here
    section = run.config.get("data")
    given = flatten(section) if isinstance(section, Mapping) else {}
    values = [json.dumps(given.get(name), default=str) for name in (spec.validation_fields if spec else ())]
    # As text: the configuration is as somebody wrote it, and a list is no name of a group.
    return (dataset, json.dumps(order, default=str) if order else None, *values)


def dataset_of(run: Run) -> str:
    """Short name, as in `data.dataset`."""
    return run.results.dataset if run.results is not None else str(run.setting("data", "dataset", "?"))


def _title(run: Run) -> str:
    dataset = dataset_of(run)
    spec = datasets().get(dataset)
    name = spec.title if spec is not None else dataset
    if run.proposes_only:
        return f"{name}, stage 1 alone"
    if run.is_joint:
        return f"{name}, all classes at once"
    *_, setting, protocol, tradition = _stream(run)
    return f"{name} {setting}, {protocol}" + (", fixed partition" if tradition == "partition" else "")


def _results(entry: Entry) -> Any:
    return entry.run.results
