"""Time and memory of our r50 model beside transformers' Mask2Former of the same depth, and what more tasks cost.

    python benchmarks/model_speed.py

Both have random weights, 100 queries and the same images, and run in turn in one process, so that whatever else the
machine does falls on both. Inference is from the image to mask logits and class logits of all queries (our stage 2
recognises all 100, as alpha = 0 would); training is forward, losses and backward. Times are medians. Memory is the
peak that one call adds to a process that holds nothing but the model, measured in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil
import torch
from torch import Tensor

from comastre.data.targets import Targets
from comastre.losses.points import PointSource
from comastre.methods.comastre.config import LossConfig, ModelConfig
from comastre.methods.comastre.objective import compute_terms
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.methods.comastre.step import StepInputs
from comastre.methods.comastre.terms import total_loss

NUM_QUERIES = 100
NUM_CLASSES = 150
NUM_MASKS = 8
TASKS = {1: (150,), 11: (100, *[5] * 10), 50: (3,) * 50}
TARGETS = {"inference": 0.70, "training": 0.75, "memory": 0.85}
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
    ("ours", "inference"): our_inference,
    ("ours", "training"): our_training,
    ("transformers", "inference"): their_inference,
    ("transformers", "training"): their_training,
}


def interleave(works: dict[str, Work], repeats: int) -> dict[str, float]:
    """Median seconds of each, run in turn; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


def peak_resident() -> int:
    """Largest resident memory of this process so far, in bytes (a parent's peak would leak into getrusage)."""
    status = Path("/proc/self/status").read_text()
    kibibytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kibibytes) * 1024


def measure_memory(name: str, mode: str, size: int) -> None:
    """What a child process prints: bytes that the work adds to the loaded model."""
    work = WORK[name, mode](MODELS[name](), make_images(size))  # type: ignore[operator]
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of building the model
    before = psutil.Process().memory_info().rss
    for _ in range(2):
        work()
    print(peak_resident() - before)


def memory_in_child(name: str, mode: str, arguments: argparse.Namespace) -> int:
    command = [sys.executable, __file__, "--memory-of", name, mode, "--size", str(arguments.size)]
    done = subprocess.run(
        [*command, "--threads", str(arguments.threads)], check=True, stdout=subprocess.PIPE, text=True
    )
    return int(done.stdout.split()[-1])


def verdict(ratio: float, target: float) -> str:
    return f"{ratio:.2f} (target <= {target:.2f}: {'met' if ratio <= target else 'MISSED'})"


def compare(arguments: argparse.Namespace) -> None:
    images = make_images(arguments.size)
    models = {name: build() for name, build in MODELS.items()}
    print(f"{'':20}{'ours':>10}{'transformers':>15}   ratio")
    for mode in ("inference", "training"):
        works = {name: WORK[name, mode](model, images) for name, model in models.items()}  # type: ignore[operator]
        seconds = interleave(works, arguments.repeats)
        ratio = seconds["ours"] / seconds["transformers"]
        row = f"{seconds['ours']:>9.2f}s{seconds['transformers']:>14.2f}s"
        print(f"{mode + ' time':20}{row}   {verdict(ratio, TARGETS[mode])}", flush=True)
    for mode in ("inference", "training"):
        added = {name: memory_in_child(name, mode, arguments) / MIB for name in MODELS}
        ratio = added["ours"] / added["transformers"]
        row = f"{added['ours']:>7.0f}MiB{added['transformers']:>12.0f}MiB"
        print(f"{mode + ' memory':20}{row}   {verdict(ratio, TARGETS['memory'])}", flush=True)


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
    parser.add_argument("--memory-of", nargs=2, metavar=("MODEL", "MODE"), help="measure memory in this process only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        measure_memory(*arguments.memory_of, size=arguments.size)
        return
    print(f"r50, {NUM_QUERIES} queries, {arguments.size} x {arguments.size}, {arguments.threads} threads")
    compare(arguments)
    compare_tasks(arguments)


if __name__ == "__main__":
    main()
