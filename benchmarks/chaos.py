"""Kill, fill, flip and race `train`, `learn` and `predict` for as long as one likes, and count how each ended.

Whatever happens to a command, the same command again must end as if nothing had happened, or say in one sentence what
is wrong: the same weights bit for bit, the same scores, the same results. Nothing may be lost, hang, be silently
different, or end in "this should not happen".

    python benchmarks/chaos.py --minutes 30

Ctrl-C ends it after the trial that runs. Every start is a fork of this process, so that torch is imported once. Needs
Linux or macOS; a small disk that is really full needs the right to mount one, and a limit on the size of files serves
where that is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.utils.tensorboard import SummaryWriter  # noqa: F401 (imported before forking, to save time)

import comastre.learning.learn
import comastre.prediction.run
import comastre.report.write
import comastre.training.run  # noqa: F401
from comastre.cli.main import main as command_line

RUN = """
base: shapes-6-2
data: {crop: 32, train_images: 40, val_images: 4}
comastre: {matching: {points: 32}, masks: {points: 32}, mask_decoder: {num_queries: 8}}
training: {iterations: 4, iterations_per_class: 1, batch_size: 2, accelerator: cpu, checkpoint_every: 1, log_every: 1}
evaluation: {batch_size: 6}
"""
LONGEST = 600.0
"""Seconds after which a start counts as hanging."""
TIMES = ("seconds", "images_per_second")


@dataclass
class Start:
    """How one start of a command ended."""

    code: int | None
    """None where it hung; minus the signal that killed it."""
    said: str

    @property
    def complaints(self) -> list[str]:
        """Sentences about what is wrong."""
        return [line for line in self.said.splitlines() if line.startswith("comastre: ")]

    def got_through(self, job: Job) -> bool:
        return self.code == job.ends_with and not self.complaints

    @property
    def internal(self) -> bool:
        return "this should not happen" in self.said or "Traceback" in self.said


@dataclass
class Job:
    """A command whose end can be compared."""

    name: str
    arguments: Sequence[str]
    out: Callable[[Path], Path]
    """What is compared, in the folder of a trial."""
    fingerprint: Callable[[Path], dict[str, Any]]
    ends_with: int = 0
    """The code of an undisturbed start."""
    seconds: float = 0.0
    """Of an undisturbed start."""
    expected: dict[str, Any] = field(default_factory=dict)

    def command(self, place: Path) -> list[str]:
        return [each.replace("PLACE", str(place)) for each in self.arguments]


def begin(arguments: Sequence[str], log: Path, limit: int | None = None) -> int:
    """Start a command in a fork; gives its process."""
    process = os.fork()
    if process:
        return process
    try:
        os.setpgid(0, 0)  # a Ctrl-C is not for it
        signal.signal(signal.SIGINT, signal.default_int_handler)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        command_line(arguments)
    except SystemExit as stop:
        sys.stdout.flush()
        os._exit(stop.code if isinstance(stop.code, int) else 1)
    except BaseException as error:
        with suppress(OSError):
            sys.stderr.write(f"Traceback: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
    os._exit(1)


def end(process: int, log: Path, kill_after: float | None = None) -> Start:
    """Wait for a start, or kill it after so many seconds."""
    began, limit = time.monotonic(), LONGEST if kill_after is None else kill_after
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            code: int | None = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() - began > limit:
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            code = None if kill_after is None else os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.005)
    said = log.read_text(errors="replace") if log.exists() else ""
    return Start(code, said)


# --- what is compared ------------------------------------------------------------------------------------------------


def tensors(file: Path) -> str:
    """A name for the exact numbers of a weights file."""
    loaded = load_file(file)
    return str(hash(tuple((name, loaded[name].numpy().tobytes()) for name in sorted(loaded))))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(each) for name, each in value.items() if name not in TIMES}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def of_run(out: Path) -> dict[str, Any]:
    """Weights of every step, scores and logs of a run."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return {
        **{f"steps/{step:02d}": tensors(out / "steps" / f"{step:02d}" / "model.safetensors") for step in range(3)},
        "results": without_times(json.loads((out / "results.json").read_text())),
        "metrics": [without_times(json.loads(line)) for line in lines],
    }


def of_model(out: Path) -> dict[str, Any]:
    """Weights and classes of a new model."""
    classes = json.loads((out / "classes.json").read_text())["classes"]
    return {"weights": tensors(out / "model.safetensors"), "classes": [each["name"] for each in classes]}


def of_results(out: Path) -> dict[str, Any]:
    """The bytes of every result."""
    files = sorted(file for file in out.iterdir() if not file.name.startswith("."))
    contents = {file.name: file.read_bytes() for file in files}
    # Where an image lies is written in its list of segments, and differs between two trials' copies only.
    return {name: hash(content) for name, content in contents.items()}


# --- what happens to a command ---------------------------------------------------------------------------------------


def kill(job: Job, place: Path, luck: random.Random) -> list[Start]:
    """SIGKILL at random moments, up to three times."""
    starts = []
    for number in range(luck.randint(1, 3)):
        log = place / f"kill-{number}.log"
        starts.append(end(begin(job.command(place), log), log, luck.uniform(0, 1.3 * job.seconds)))
    return starts


def fill(job: Job, place: Path, luck: random.Random) -> list[Start]:
    """No room for a file of random size, or a small disk that is full."""
    log = place.with_name(f"{place.name}.log")
    if mounted(place, luck.randint(150, 4000)):
        starts = [end(begin(job.command(place), log), log)]
        kept = place.with_name(f"{place.name}.kept")
        shutil.copytree(place, kept, symlinks=True)
        subprocess.run(["umount", str(place)], check=True)
        shutil.copytree(kept, place, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(kept)
    else:
        starts = [end(begin(job.command(place), log, limit=int(10 ** luck.uniform(2.5, 6))), log)]
    log.unlink(missing_ok=True)
    return starts


def mounted(place: Path, kilobytes: int) -> bool:
    """Whether a disk of that size could be mounted there."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def flip(job: Job, place: Path, luck: random.Random) -> list[Start]:
    """Stopped somewhere or finished; then a bit of one of its files is another."""
    log = place / "before.log"
    starts = [end(begin(job.command(place), log), log, luck.uniform(0.5, 3) * job.seconds)]
    patterns = ("**/*.safetensors", "**/results.json", "**/metrics.jsonl", "**/*.segments.json", "**/plan.json")
    files = [file for pattern in patterns for file in place.glob(pattern) if file.is_file() and file.stat().st_size]
    if files:
        chosen = luck.choice(sorted(files))
        content = bytearray(chosen.read_bytes())
        content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
        chosen.write_bytes(bytes(content))
        (place / "flipped.txt").write_text(str(chosen.relative_to(place)))
    return starts


def race(job: Job, place: Path, luck: random.Random) -> list[Start]:
    """Two or three at once on one --out, started a moment apart."""
    logs = [place / f"race-{number}.log" for number in range(luck.randint(2, 3))]
    processes = []
    for log in logs:
        processes.append(begin(job.command(place), log))
        time.sleep(luck.uniform(0, 0.4 * job.seconds))
    return [end(process, log) for process, log in zip(processes, logs, strict=True)]


DISTURBANCES = {"kill": kill, "fill": fill, "flip": flip, "race": race}


def judge(job: Job, place: Path, name: str, starts: Sequence[Start]) -> str:
    """How a disturbed command ended, after it was started once more and left alone."""
    log = place / "last.log"
    last = end(begin(job.command(place), log), log)
    if any(start.internal for start in (*starts, last)):
        return "internal"
    if last.code is None or any(start.code is None for start in starts):
        return "hung"
    if name == "race" and not any(start.got_through(job) for start in starts):
        return "lost"  # one of them must get through
    flipped = (place / "flipped.txt").read_text() if (place / "flipped.txt").exists() else ""
    if not last.got_through(job):
        # A damaged file may be refused, in a sentence; whatever else happened, the same command must do.
        return "refused in a sentence" if flipped and len(last.complaints) == 1 else "lost"
    try:
        found = job.fingerprint(job.out(place))
    except Exception as error:
        with suppress(OSError):
            (place / "why.txt").write_text(f"{type(error).__name__}: {error}")
        return "named" if flipped and "missing or damaged" in last.said else "lost"
    wrong = [part for part, value in job.expected.items() if found.get(part) != value]
    if not wrong and found.keys() == job.expected.keys():
        return "the same"
    with suppress(OSError):
        (place / "why.txt").write_text(f"differs: {wrong or sorted(found.keys() ^ job.expected.keys())}")
    # What the checkpoint does not hold is named; a log line whose text is damaged is left out.
    named = "missing or damaged" in last.said and all(part.startswith("steps/") for part in wrong)
    return "named" if flipped and (named or wrong == ["metrics"]) else "different"


# --- the whole -------------------------------------------------------------------------------------------------------


def prepare(folder: Path) -> list[Job]:
    """Data, a model to learn from and predict with, and how each command ends when it is left alone."""
    (folder / "run.yaml").write_text(RUN)
    generator = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / "data" / kind).mkdir(parents=True)
    for number in range(6):
        pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        mask = np.zeros((32, 32), np.uint8)
        mask[8:20, 8 + number : 20 + number] = 1
        pixels[mask == 1] = (250, 20, 20)
        Image.fromarray(pixels).save(folder / "data" / "images" / f"{number}.png")
        Image.fromarray(mask).save(folder / "data" / "masks" / f"{number}.png")
    (folder / "data" / "classes.txt").write_text("spot\n")
    train = Job("train", ("train", str(folder / "run.yaml"), "--out", "PLACE/run"), lambda place: place / "run", of_run)
    model = folder / "reference" / "train" / "run" / "steps" / "02"
    quick = ("--training.batch_size", "2", "--data.workers", "0", "--training.accelerator", "cpu")
    lesson = ("learn", str(model), "--data", str(folder / "data"), "--out", "PLACE/new", "--iterations", "3", *quick)
    # Three iterations teach nothing, which the code says; the model is there all the same, and is compared.
    learn = Job("learn", (*lesson, "--keep", "0"), lambda place: place / "new", of_model, ends_with=1)
    images = str(folder / "data" / "images")
    predict = Job(
        "predict",
        ("predict", str(model), images, "--out", "PLACE/results", "--batch-size", "1"),
        lambda place: place / "results",
        of_results,
    )
    for job in (train, learn, predict):
        place = folder / "reference" / job.name
        place.mkdir(parents=True)
        began = time.monotonic()
        start = end(begin(job.command(place), place / "log"), place / "log")
        job.seconds = time.monotonic() - began
        if not start.got_through(job):
            raise SystemExit(f"{job.name} failed without any disturbance:\n{start.said}")
        job.expected = job.fingerprint(job.out(place))
        print(f"{job.name}: undisturbed in {job.seconds:.1f} s", flush=True)
    return [train, learn, predict]


def show(tally: Counter[tuple[str, str, str]], starts: int, minutes: float) -> None:
    print(f"\n{sum(tally.values())} trials, {starts} starts in {minutes:.0f} minutes")
    outcomes = ("the same", "refused in a sentence", "named", "lost", "different", "internal", "hung")
    print(f"{'':16}" + "".join(f"{outcome:>23}" for outcome in outcomes))
    for name in DISTURBANCES:
        for job in ("train", "learn", "predict"):
            counts = [tally[name, job, outcome] for outcome in outcomes]
            print(f"{name + ' ' + job:16}" + "".join(f"{count:>23}" for count in counts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(DISTURBANCES), default=list(DISTURBANCES))
    parser.add_argument("--keep", type=Path, default=Path("chaos-failures"), help="where failed trials are kept")
    given = parser.parse_args()
    torch.set_num_threads(1)
    luck, tally, starts, bad = random.Random(given.seed), Counter[tuple[str, str, str]](), 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["COMASTRE_CACHE"] = str(folder / "cache")
        jobs, began, number = prepare(folder), time.monotonic(), 0
        stopped = False

        def stop(*_: Any) -> None:
            nonlocal stopped
            stopped = True

        signal.signal(signal.SIGINT, stop)  # after the trial that runs, with the tally
        while not stopped and time.monotonic() - began < 60 * given.minutes:
            name, job = luck.choice(given.only), luck.choice(jobs)
            place = folder / f"trial-{number}"
            place.mkdir()
            disturbed = DISTURBANCES[name](job, place, luck)
            outcome = judge(job, place, name, disturbed)
            tally[name, job.name, outcome] += 1
            number, starts = number + 1, starts + len(disturbed) + 1
            if outcome in ("lost", "different", "internal", "hung"):
                bad += 1
                kept = given.keep / f"{name}-{job.name}-{number}-{outcome}"
                shutil.copytree(place, kept, symlinks=True)
                for count, start in enumerate(disturbed):
                    (kept / f"start-{count}.txt").write_text(f"exit {start.code}\n{start.said}")
                print(f"{outcome}: {name} {job.name}, kept in {kept}", flush=True)
            shutil.rmtree(place)
        show(tally, starts, (time.monotonic() - began) / 60)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
