"""Calls in processes of their own that take turns: whatever else the machine does falls on all, and none on another.

What one leaves behind in a process, such as memory that its allocator keeps, would be another's advantage or burden.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

WARM_UP = 2


def serve(work: Callable[[], object], greeting: object = "ready") -> None:
    """In the child: a call per line that comes in, its seconds and processor seconds per line out."""
    print(greeting, flush=True)
    for _ in sys.stdin:
        began, cpu = time.perf_counter(), time.process_time()
        work()
        print(time.perf_counter() - began, time.process_time() - cpu, flush=True)


class Child:
    """A process that makes a call when it is its turn."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.greeting = self._answer().strip()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process ended before its time; its error is above")
        return line

    def call(self) -> tuple[float, float]:
        """Seconds and processor seconds of one call."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, cpu = map(float, self._answer().split())
        return seconds, cpu


@contextmanager
def children(
    commands: Mapping[str, Sequence[str]], environments: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[dict[str, Child]]:
    """Processes by name; they end with the block."""
    found: dict[str, Child] = {}
    try:
        for name, command in commands.items():
            found[name] = Child(command, (environments or {}).get(name, {}))
        yield found
    finally:
        for child in found.values():
            assert child.process.stdin is not None
            child.process.stdin.close()
            child.process.wait()


def take_turns(found: Mapping[str, Child], repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds and processor seconds of a call of each, after some that warm up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    for turn in range(repeats + WARM_UP):
        for name, child in found.items():
            taken = child.call()
            if turn >= WARM_UP:
                times[name].append(taken)
    return {
        name: (median(seconds for seconds, _ in values), median(cpu for _, cpu in values))
        for name, values in times.items()
    }
