"""Where runs of a study are trained: as processes of this machine, each with its share of cores and GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.studies.child import PATIENCE

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Job(Protocol):
    """A run that was started."""

    def ended(self) -> int | None:
        """Its exit code; None while it goes on."""

    def stop(self) -> None:
        """Ask it to save and stop; does not wait."""

    def wait(self) -> None:
        """Until it has ended; where it does not in time, it is ended."""


class Workers(Protocol):
    """Something that starts runs."""

    def start(self, name: str, arguments: Sequence[str], log: Path, slot: int) -> Job:
        """Start `comastre` with these arguments; `slot` counts the jobs that run at the same time from 0."""


@dataclass(frozen=True)
class Share:
    """What one of several jobs may use."""

    threads: int
    gpus: tuple[tuple[str, ...], ...] = ()
    """By slot; empty where there are none."""


def share_of(jobs: int, config: RunConfig, cores: int, gpus: Sequence[str]) -> Share:
    """Cores and GPUs divided among `jobs`, with loader processes counted; refused where there are too few."""
    if jobs > cores:
        raise UserError(f"--jobs is {jobs} but this machine has {cores} cores: choose at most {cores}")
    threads = max(1, cores // jobs - config.data.workers)
    if not gpus or config.training.accelerator in ("cpu", "mps"):
        return Share(threads)
    needed = config.training.devices
    if jobs * needed > len(gpus):
        raise UserError(
            f"--jobs is {jobs} with training.devices {needed}, but this machine has {len(gpus)} GPUs: "
            f"choose at most {max(1, len(gpus) // needed)} jobs"
        )
    return Share(threads, tuple(tuple(gpus[slot * needed : (slot + 1) * needed]) for slot in range(jobs)))


def available_cores() -> int:
    """Cores that this process may use."""
    with suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_gpus() -> tuple[str, ...]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(name.strip() for name in given.split(",") if name.strip())
    import torch

    return tuple(str(number) for number in range(torch.cuda.device_count()))


class Processes:
    """Processes of this machine that end with this one, whatever ends it."""

    def __init__(self, share: Share, divide: bool) -> None:
        """`divide` limits threads to the share; a single job has what it would have without a study."""
        self._share = share
        self._divide = divide

    def start(self, name: str, arguments: Sequence[str], log: Path, slot: int) -> Job:
        environment = dict(os.environ)
        if self._divide:
            for variable in _THREADS:
                given = environment.get(variable, "")
                most = min(self._share.threads, int(given)) if given.isdecimal() else self._share.threads
                environment[variable] = str(max(1, most))
        if self._share.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self._share.gpus[slot])
        began = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        with log.open("ab") as file:
            file.write(f"--- {began}: comastre {' '.join(arguments)}\n".encode(errors="replace"))
            file.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", "comastre.studies.child", *arguments],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C in a terminal is for the study, which tells its runs.
                start_new_session=True,
            )
        return _Process(process)


class _Process:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._asked = 0.0

    def ended(self) -> int | None:
        code = self._process.poll()
        if code is not None:
            self._let_go()
        return code

    def stop(self) -> None:
        self._asked = time.monotonic()
        self._let_go()

    def wait(self) -> None:
        left = PATIENCE + 10.0 - (time.monotonic() - self._asked)
        try:
            self._process.wait(max(0.0, left))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _let_go(self) -> None:
        """Close the pipe, whose end is the sign to stop."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
