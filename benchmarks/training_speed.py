"""Images per second of a preset's real training step, at the first task and at the second with all that remembers.

    python benchmarks/training_speed.py --data.root VOC --backbone.weights FILE --against ANOTHER_CHECKOUT

A step is what the loop does: reading and augmenting the batch, both models, losses, backward, clipping, optimiser. The
second task starts from a model that has learned nothing: its masks cost what others cost. With `--against` the same is
measured with the source of another checkout, both in processes of their own that take turns, a step at a time, so that
whatever else the machine does falls on both; the ratio is that of medians. Processor time is printed beside it: on a
busy machine it says more of one thread.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from turns import children, serve, take_turns

TARGET = 1.6  # images per second over those of the other checkout


def make_step(preset: str, overrides: list[str], number: int) -> tuple[Callable[[], None], int]:
    """One iteration of task `number` (0-based) as a function, and the images it sees."""
    from comastre.config.overrides import split_overrides
    from comastre.config.settings import load_config
    from comastre.training.checkpoint import Position
    from comastre.training.finiteness import LossWatch
    from comastre.training.iteration import begin_step, iterate, set_up
    from comastre.training.launch import Team, build_fabric
    from comastre.training.parts import default_parts, prepare
    from comastre.training.schedule import iterations_of_step
    from comastre.training.session import Session

    given, rest = split_overrides(overrides, ())
    if rest:
        raise SystemExit(f"not a field of the configuration: {' '.join(rest)}")
    config = load_config(preset, given)
    fabric, parts = build_fabric(config.training), default_parts()
    prepared, method = prepare(config, parts), parts.method(config)
    tasks = prepared.scenario.tasks
    totals = tuple(iterations_of_step(config.training, task.step, len(task.new_classes)) for task in tasks)
    session = Session(fabric, Team(fabric), config, Path(), totals, method, None, None, None)  # type: ignore[arg-type]
    model = None
    for task in tasks[: number + 1]:
        model = begin_step(session, task, model)
    module, optimiser, plain = set_up(fabric, method, model, config, tasks[number])
    batches = parts.batches(prepared.training_set, tasks[number], config, 0, 0, 1)
    watch, done = LossWatch(), iter(range(sys.maxsize))

    def step() -> None:
        iterate(session, module, optimiser, plain, next(batches), Position(number, next(done)), watch)

    return step, config.training.batch_size


def serve_steps(arguments: argparse.Namespace, overrides: list[str]) -> None:
    """In a process of its own: a step per turn."""
    import torch

    torch.set_num_threads(arguments.threads)
    step, images = make_step(arguments.preset, overrides, arguments.task)
    with as_the_loop_allocates():
        serve(step, images)


def as_the_loop_allocates() -> AbstractContextManager[object]:
    """Memory is kept between iterations where the loop of this checkout does so; earlier ones did not."""
    try:
        from comastre.allocator import keeping_freed_memory
    except ModuleNotFoundError:
        return nullcontext()
    return keeping_freed_memory()


def measure(arguments: argparse.Namespace, overrides: list[str]) -> None:
    here = Path(__file__).resolve().parent.parent / "src"
    sources = {"here": here}
    if arguments.against:
        sources["there"] = arguments.against / "src" if (arguments.against / "src").is_dir() else arguments.against
    print(f"{arguments.preset}, {arguments.repeats} steps each; images/s, processor seconds of a step in brackets")
    for threads in arguments.all_threads:
        for task in arguments.tasks:
            command = [sys.executable, __file__, "--serve", "--threads", str(threads), "--task", str(task)]
            command += ["--preset", arguments.preset, *overrides]
            environments = {
                name: {"PYTHONPATH": str(source), "OMP_NUM_THREADS": str(threads)} for name, source in sources.items()
            }
            with children(dict.fromkeys(sources, command), environments) as pair:
                images = int(pair["here"].greeting)
                print(row(threads, task, images, take_turns(pair, arguments.repeats)), flush=True)


def row(threads: int, task: int, images: int, times: dict[str, tuple[float, float]]) -> str:
    text = f"t = {task + 1}, {threads} thread{'s' if threads > 1 else ' '}"
    for name, (wall, cpu) in times.items():
        text += f"   {name} {images / wall:6.2f} [{cpu:.3f}s]"
    if "there" in times:
        ratio, of_cpu = (there / here for there, here in zip(times["there"], times["here"], strict=True))
        met = "met" if ratio >= TARGET else "MISSED"
        text += f"   ratio {ratio:.2f} [{of_cpu:.2f}] (target >= {TARGET}: {met})"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--preset", default="voc-15-5-cpu", help="what is trained; more fields as --section.field value"
    )
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="another checkout, or the folder of its source"
    )
    parser.add_argument("--repeats", type=int, default=7, help="timed steps; the median counts")
    parser.add_argument("--all-threads", type=int, nargs="+", default=[1, 2], help="numbers of CPU threads")
    parser.add_argument("--tasks", type=int, nargs="+", default=[0, 1], help="0-based tasks")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--task", type=int, default=0, help=argparse.SUPPRESS)
    arguments, overrides = parser.parse_known_args()
    if arguments.serve:
        serve_steps(arguments, overrides)
    else:
        measure(arguments, overrides)


if __name__ == "__main__":
    main()
