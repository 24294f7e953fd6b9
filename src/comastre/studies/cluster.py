"""Runs of a study as jobs of a cluster, by submitit: its queue decides when each starts, and on which machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comastre.config.run import RunConfig
from comastre.config.yaml_text import NotYaml, parse_yaml
from comastre.documents import json_bytes, read_json
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.studies.child import PATIENCE
from comastre.studies.workers import Job

try:
    import submitit
except ImportError:
    raise UserError("--cluster needs the package submitit: pip install 'comastre[cluster]'") from None

KINDS = ("slurm", "local")
_QUEUE = ".cluster"
"""What submitit keeps of its jobs; hidden, as it is there before the folder is known to be a study's."""
_JOBS = ".cluster.json"
"""Which job each run was given: a study that starts again finds those that are still in the queue."""


class Training(submitit.helpers.Checkpointable):
    """One run as a job: where the cluster takes the machine away, the run saves, and is put into the queue again."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.arguments, self.log = list(arguments), log
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """The ordinary command; it stops, too, when this job does."""
        with self.log.open("ab") as file:
            command = [sys.executable, "-m", "comastre.studies.child", *self.arguments]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT)
        try:
            code = self._process.wait()
        finally:
            self._stop()
        if code:
            raise RuntimeError(f"the run ended with code {code}: see {self.log}")
        return code

    def checkpoint(self) -> Any:
        """Called by submitit before the job is ended: what is to be put into the queue in its place."""
        self._stop()
        return submitit.helpers.DelayedSubmission(Training(self.arguments, self.log))

    def _stop(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            process.wait(PATIENCE + 10.0)
        except subprocess.TimeoutExpired:
            process.kill()


class Cluster:
    """A cluster that starts runs; `local` is submitit's own, processes of this machine."""

    def __init__(self, kind: str, options: str, out: Path, config: RunConfig) -> None:
        if kind not in KINDS:
            raise UserError(f"--cluster is {kind!r} but must be {' or '.join(KINDS)}")
        self._kind, self._file = kind, out / _JOBS
        self._folder = out / _QUEUE
        training = config.training
        parameters = {"name": "comastre", "nodes": training.nodes, "tasks_per_node": training.devices}
        try:
            self._executor = submitit.AutoExecutor(folder=str(self._folder), cluster=kind)
            self._executor.update_parameters(**{**parameters, **_read(options)})
        except (RuntimeError, NameError, TypeError, ValueError, AssertionError) as error:
            raise UserError(f"--cluster {kind} cannot be used: {' '.join(str(error).split())[:300]}") from None

    def start(self, name: str, arguments: Sequence[str], log: Path, slot: int) -> Job:
        """Hand the run to the queue, or find the job that an earlier start of the study handed over."""
        known = self._known()
        if self._kind == "slurm" and name in known:
            before: Any = submitit.SlurmJob(self._folder, known[name])
            if not before.done(force_check=True):
                return _ClusterJob(before)
        job = self._executor.submit(Training(arguments, log))
        write_whole(self._file, json_bytes({**known, name: str(job.job_id)}))
        return _ClusterJob(job)

    def _known(self) -> dict[str, str]:
        try:
            content = read_json(self._file)
        except (OSError, ValueError):
            return {}
        return {str(name): str(number) for name, number in content.items()} if isinstance(content, dict) else {}


class _ClusterJob:
    def __init__(self, job: Any) -> None:
        self._job = job

    def ended(self) -> int | None:
        if not self._job.done():
            return None
        return 0 if self._job.exception() is None else 1

    def stop(self) -> None:
        self._job.cancel(check=False)

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE + 20.0
        while not self._job.done(force_check=True) and time.monotonic() < until:
            time.sleep(1.0)


def _read(options: str) -> Mapping[str, Any]:
    """Options for submitit, as YAML."""
    try:
        content = parse_yaml(options) if options else {}
    except NotYaml as error:
        raise UserError(f"--cluster-options is not valid YAML{error}") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UserError("--cluster-options must be names and values, as in '{slurm_partition: gpu, timeout_min: 600}'")
    return content
