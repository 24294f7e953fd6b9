"""Time and memory of our r50 model beside transformers' Mask2Former of the same depth, and what more tasks cost.

    python benchmarks/model_speed.py

Both have random weights, 100 queries and the same images, and take turns in processes of their own. Inference is from
the image to mask logits and class logits of all queries (our stage 2 recognises all 100, as alpha = 0 would), ours also
in bfloat16 against theirs in float32; training is forward, losses and backward, ours also with activations recomputed.
Times are medians; with one thread they are CPU time of the process, which a busy machine changes least. Memory is the
peak that one call adds to a process that holds nothing but the model, measured in a process of its own. Ours keeps
freed memory, as our commands do; `--keep-memory both` lets theirs do so, too, and `neither` nobody.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median

import psutil
import torch
from torch import Tensor

from comastre.allocator import keeping_freed_memory
from comastre.data.targets import Targets
from comastre.losses.points import PointSource
from comastre.methods.comastre.config import LossConfig, ModelConfig
from comastre.methods.comastre.objective import compute_terms
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.methods.comastre.step import StepInputs
from comastre.methods.comastre.terms import total_loss
from comastre.nets.precision import predicting_in
from comastre.nets.recompute import set_recompute
from turns import children, serve, take_turns

NUM_QUERIES = 100
NUM_CLASSES = 150
NUM_MASKS = 8
TASKS = {1: (150,), 11: (100, *[5] * 10), 50: (3,) * 50}
INFERENCE, BFLOAT16, TRAINING, RECOMPUTING = "inference", "inference in bfloat16", "training", "training, recomputing"
TIME_TARGETS = {INFERENCE: 0.40, BFLOAT16: 0.25, TRAINING: 0.55}
MEMORY_TARGETS = {TRAINING: 0.55, RECOMPUTING: 0.40}
THEIRS = {INFERENCE: INFERENCE, BFLOAT16: INFERENCE, TRAINING: TRAINING, RECOMPUTING: TRAINING}
"""What of transformers' model stands beside ours."""
GROWTH_TARGET = 1.15  # total inference at t = 11 over t = 1
MIB = 2**20

Work = Callable[[], object]


def make_images(size: int) -> Tensor:
    return torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))


def make_masks(size: int) -> tuple[Tensor, Tensor]:
    """Rectangles (G, H, W) bool and their classes (G,)."""
    generator = torch.Generator().manual_seed(1)
    masks = torch.zeros(NUM_MASKS, size, size, dtype=torch.bool)
    for mask in masks:
        top, left = torch.randint(0, size // 2, (2,), generator=generator).tolist()
        mask[top : top + size // 2, left : left + size // 3] = True
    return masks, torch.randint(0, NUM_CLASSES, (NUM_MASKS,), generator=generator)


def our_model(tasks: tuple[int, ...] = TASKS[1]) -> Segmenter:
    config = ModelConfig.model_validate(
        {"size": "r50", "backbone": {"weights": "none"}, "mask_decoder": {"num_queries": NUM_QUERIES}}
    )
    torch.manual_seed(0)
    return build_segmenter(config, tasks)


def our_inference(model: Segmenter, images: Tensor) -> Work:
    def run() -> object:
        with torch.no_grad():
            stage_one = model.eval().propose(images, every_layer=False)
            return model.recognise(stage_one.pixels, stage_one.final.embeddings, stage_one.final.mask_logits)

    return run


def our_bfloat16(model: Segmenter, images: Tensor) -> Work:
    plain = our_inference(model, images)

    def run() -> object:
        with predicting_in("bf16-mixed", model):
            return plain()

    return run


def our_recomputing(model: Segmenter, images: Tensor) -> Work:
    plain = our_training(model, images)

    def run() -> object:
        set_recompute(model, True)
        try:
            return plain()
        finally:
            set_recompute(model, False)

    return run


def our_training(model: Segmenter, images: Tensor) -> Work:
    masks, labels = make_masks(images.shape[-1])
    targets = Targets.stack([masks], [labels], ["benchmark"])
    config = LossConfig()

    def run() -> object:
        model.train().zero_grad()
        points = PointSource(0, 0, slice(0, 1), 1, "cpu")
        loss = total_loss(compute_terms(StepInputs(model, None, images, None, targets, points, config)), config.weights)
        loss.backward()
        return loss.item()

    return run


def their_model() -> torch.nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()  # it warns of every backbone but Swin
    # transformers counts the prediction from the raw queries as a layer: 10 are our 9.
    backbone = transformers.ResNetConfig(out_features=["stage1", "stage2", "stage3", "stage4"])
    config = transformers.Mask2FormerConfig(
        backbone_config=backbone, num_queries=NUM_QUERIES, num_labels=NUM_CLASSES, decoder_layers=10
    )
    torch.manual_seed(0)
    return transformers.Mask2FormerForUniversalSegmentation(config)


def their_inference(model: torch.nn.Module, images: Tensor) -> Work:
    def run() -> object:
        with torch.no_grad():
            return model.eval()(images)

    return run


def their_training(model: torch.nn.Module, images: Tensor) -> Work:
    masks, labels = make_masks(images.shape[-1])

    def run() -> object:
        model.train().zero_grad()
        loss = model(images, mask_labels=[masks.float()], class_labels=[labels]).loss
        loss.backward()
        return loss.item()

    return run


MODELS = {"ours": our_model, "transformers": their_model}
WORK = {
    ("ours", INFERENCE): our_inference,
    ("ours", BFLOAT16): our_bfloat16,
    ("ours", TRAINING): our_training,
    ("ours", RECOMPUTING): our_recomputing,
    ("transformers", INFERENCE): their_inference,
    ("transformers", TRAINING): their_training,
}


def memory_kept(name: str, keep: str) -> AbstractContextManager[object]:
    """Around the calls of ours, or of theirs, the allocator's rule that was asked for."""
    kept = keep == "both" or (keep == "ours" and name != "transformers")
    return keeping_freed_memory() if kept else nullcontext()


def interleave(works: dict[str, Work], repeats: int) -> dict[str, float]:
    """Median seconds of each, run in turn; the first round warms up."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            start = clock()
            work()
            if turn:
                seconds[name].append(clock() - start)
    return {name: median(values) for name, values in seconds.items()}


def peak_resident() -> int:
    """Largest resident memory of this process so far, in bytes (a parent's peak would leak into getrusage)."""
    status = Path("/proc/self/status").read_text()
    kibibytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kibibytes) * 1024


def measure_memory(name: str, mode: str, size: int, keep: str) -> None:
    """What a child process prints: bytes that the work adds to the loaded model."""
    work = WORK[name, mode](MODELS[name](), make_images(size))  # type: ignore[operator]
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of building the model
    before = psutil.Process().memory_info().rss
    with memory_kept(name, keep):
        for _ in range(2):
            work()
    print(peak_resident() - before)


def child_command(task: str, name: str, mode: str, arguments: argparse.Namespace) -> list[str]:
    command = [sys.executable, __file__, task, name, mode, "--size", str(arguments.size)]
    return [*command, "--threads", str(arguments.threads), "--keep-memory", arguments.keep_memory]


def memory_in_child(name: str, mode: str, arguments: argparse.Namespace) -> float:
    command = child_command("--memory-of", name, mode, arguments)
    runs = [subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    return median(int(done.stdout.split()[-1]) for done in runs)  # how an allocator fills its gaps varies


def verdict(ratio: float, target: float | None) -> str:
    if target is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f} (target <= {target:.2f}: {'met' if ratio <= target else 'MISSED'})"


def compare(arguments: argparse.Namespace) -> None:
    print(f"{'':30}{'ours':>10}{'transformers':>15}   ratio")
    for theirs in (INFERENCE, TRAINING):
        commands = {
            mode if name == "ours" else name: child_command("--serve", name, mode, arguments)
            for name, mode in WORK
            if THEIRS[mode] == theirs
        }
        with children(commands) as found:
            times = take_turns(found, arguments.repeats)
        clock = 1 if arguments.threads == 1 else 0
        for mode in [each for each in commands if each != "transformers"]:
            ours, others = times[mode][clock], times["transformers"][clock]
            row = f"{ours:>9.2f}s{others:>14.2f}s"
            print(f"{mode + ': time':30}{row}   {verdict(ours / others, TIME_TARGETS.get(mode))}", flush=True)
    added = {key: memory_in_child(*key, arguments) / MIB for key in WORK if key != ("ours", BFLOAT16)}
    for (name, mode), ours in added.items():
        if name == "ours":
            theirs_added = added["transformers", THEIRS[mode]]
            row = f"{ours:>7.0f}MiB{theirs_added:>12.0f}MiB"
            print(f"{mode + ': memory':30}{row}   {verdict(ours / theirs_added, MEMORY_TARGETS.get(mode))}", flush=True)


@torch.no_grad()
def compare_tasks(arguments: argparse.Namespace) -> None:
    """Stage 2's share of inference as tasks are added, all proposals recognised."""
    images = make_images(arguments.size)
    models = {count: our_model(tasks).eval() for count, tasks in TASKS.items()}
    first = models[1]
    stage_one = first.propose(images, every_layer=False)
    works: dict[str, Work] = {"stage 1": lambda: first.propose(images, every_layer=False)}
    for count, model in models.items():
        works[str(count)] = lambda model=model: model.recognise(  # type: ignore[misc]
            stage_one.pixels, stage_one.final.embeddings, stage_one.final.mask_logits
        )
    seconds = interleave(works, 2 * arguments.repeats)
    totals = {count: seconds["stage 1"] + seconds[str(count)] for count in TASKS}
    print(f"\nstage 1 {seconds['stage 1']:.3f}s")
    for count, total in totals.items():
        share = seconds[str(count)] / total
        print(f"t = {count:<3} class decoder {seconds[str(count)]:.3f}s, {share:.1%} of inference {total:.3f}s")
    print(f"t = 11 over t = 1: {verdict(totals[11] / totals[1], GROWTH_TARGET)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="image side in pixels")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds; the median counts")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--keep-memory", choices=("ours", "both", "neither"), default="ours", help="freed memory")
    parser.add_argument("--memory-of", nargs=2, metavar=("MODEL", "MODE"), help="measure memory in this process only")
    parser.add_argument("--serve", nargs=2, metavar=("MODEL", "MODE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        measure_memory(*arguments.memory_of, size=arguments.size, keep=arguments.keep_memory)
        return
    if arguments.serve:
        name, mode = arguments.serve
        work = WORK[name, mode](MODELS[name](), make_images(arguments.size))  # type: ignore[operator]
        with memory_kept(name, arguments.keep_memory):
            serve(work)
        return
    print(f"r50, {NUM_QUERIES} queries, {arguments.size} x {arguments.size}, {arguments.threads} threads")
    compare(arguments)
    with memory_kept("ours", arguments.keep_memory):
        compare_tasks(arguments)


if __name__ == "__main__":
    main()
