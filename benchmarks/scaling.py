"""Time and memory of a prediction against what may grow, and the exponent of each: nothing may outgrow its arithmetic.

Run by hand: `python benchmarks/scaling.py`; it takes some minutes. One thing grows, all others stay; the
model has random weights and the size `small`, and everything that a prediction does is timed: the network, the merge
at the image's size, and for tasks and classes recognition of all proposals. An exponent is the slope of a line through
logarithms; `of the upper half` is that of the larger values alone, where what does not grow no longer hides what does.
The arithmetic's exponent is of the part that grows fastest; a measured one above it by more than the tolerance is told.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from comastre.allocator import keeping_freed_memory
from comastre.methods.comastre.config import ModelConfig
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter

SIDE, QUERIES, TASKS, CLASSES = 256, 20, 2, 20
TOLERANCE = 0.15
"""How far a measured exponent may lie above the arithmetic's: caches end and pages are faulted in as things grow."""


@dataclass(frozen=True)
class Growth:
    """One thing that grows."""

    name: str
    values: Sequence[int]
    arithmetic: float
    """The largest exponent of anything that is computed."""
    why: str
    prepare: Callable[[int], Callable[[], object]]


def model(queries: int = QUERIES, tasks: int = TASKS, classes: int = CLASSES) -> Segmenter:
    torch.manual_seed(0)
    config = ModelConfig.model_validate(
        {
            "size": "small",
            "backbone": {"weights": "none"},
            "mask_decoder": {"num_queries": queries},
            "inference": {"alpha": 0.0},
        }
    )
    sizes = [classes // tasks + (place < classes % tasks) for place in range(tasks)]
    return build_segmenter(config, sizes).eval()


def images(side: int = SIDE, batch: int = 1) -> Tensor:
    return torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(1))


def predicts(segmenter: Segmenter, batch: Tensor) -> Callable[[], object]:
    return lambda: segmenter.segment(batch)


GROWTHS = (
    Growth(
        "image side",
        (256, 512, 1024, 2048),
        2.0,
        "every layer, and attention of N queries to the pixels, is linear in pixels",
        lambda side: predicts(model(), images(side)),
    ),
    Growth(
        "queries",
        (20, 50, 100, 200, 400),
        2.0,
        "queries attend to each other (N^2); masks, attention to pixels and the merge are linear in N",
        lambda queries: predicts(model(queries), images()),
    ),
    Growth(
        "tasks",
        (1, 3, 10, 30, 100),
        1.0,
        "each task has a query per proposal; classes are as many in all",
        lambda tasks: predicts(model(tasks=tasks, classes=100), images()),
    ),
    Growth(
        "classes",
        (10, 30, 100, 300, 1000),
        1.0,
        "each class is a row of a classifier",
        lambda classes: predicts(model(classes=classes), images()),
    ),
    Growth(
        "batch",
        (1, 2, 4, 8, 16),
        1.0,
        "images do not meet",
        lambda batch: predicts(model(), images(batch=batch)),
    ),
)


def slope(values: Sequence[float], results: Sequence[float]) -> float:
    """Of the line through the logarithms that fits best."""
    x, y = [math.log(value) for value in values], [math.log(max(result, 1e-9)) for result in results]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - middle_x) ** 2 for a in x)


def measure(work: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Median processor seconds of a call, and the bytes that it needs at its worst beside what is there before."""
    work()  # what is kept from call to call is there now
    gc.collect()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < 3 or (time.perf_counter() - began < seconds and len(taken) < 30):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
        if time.perf_counter() - began > 4 * seconds:
            break
    return median(taken), max(resident("VmHWM") - before, 1.0)


def resident(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return 1024.0 * int(next(line.split()[1] for line in status.splitlines() if line.startswith(field)))


def report(growth: Growth, seconds: float) -> bool:
    """Print a table; whether nothing grows faster than its arithmetic."""
    print(f"\n{growth.name}: arithmetic {growth.arithmetic:.0f} ({growth.why})")
    found = []
    for value in growth.values:
        work = growth.prepare(value)
        found.append(measure(work, seconds))
        print(f"  {value:6,}{1000 * found[-1][0]:10.1f} ms{found[-1][1] / 2**20:10.1f} MiB", flush=True)
        del work
    half = len(growth.values) // 2
    fine = True
    for place, what in enumerate(("time", "memory")):
        results = [each[place] for each in found]
        whole, upper = slope(growth.values, results), slope(growth.values[half:], results[half:])
        within = upper <= growth.arithmetic + TOLERANCE
        fine &= within
        print(f"  {what:8} exponent {whole:5.2f}, of the upper half {upper:5.2f}: {'within' if within else 'ABOVE'}")
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; their waiting counts, too")
    parser.add_argument("--seconds", type=float, default=0.5, help="spent on each value, about")
    parser.add_argument("--only", choices=[growth.name for growth in GROWTHS], help="one of them")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"small, {SIDE} x {SIDE}, {QUERIES} queries, {TASKS} tasks, {CLASSES} classes, {arguments.threads} threads")
    chosen = [growth for growth in GROWTHS if arguments.only in (None, growth.name)]
    with torch.no_grad(), keeping_freed_memory():  # as every command does
        fine = [report(growth, arguments.seconds) for growth in chosen]
    print(f"\nnothing grows faster than its arithmetic: {'true' if all(fine) else 'FALSE'}")


if __name__ == "__main__":
    main()
