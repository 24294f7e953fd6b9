"""Time from one image to its label map: our small model beside torchvision's DeepLabv3 on MobileNetV3-Large.

    python benchmarks/small_speed.py

Both have random weights and 21 classes and see the same image; ours proposes, recognises every proposal and merges,
theirs takes the class of the largest logit. They run in turn in one process, so that whatever else the machine does
falls on both. Times are medians; processor time is printed too, which on a busy machine says more of one thread. Ours
keeps freed memory during a call, as `Model.predict` does; `--keep-memory both` lets theirs do so, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median

import torch
from torch import Tensor

from comastre.allocator import keeping_freed_memory
from comastre.config.settings import load_config
from comastre.methods.build import build_method, setup_of

TARGET = 0.75
CLASSES = (15, 5)


def ours() -> Callable[[Tensor], object]:
    config = load_config("voc-15-5-cpu", {"backbone": {"weights": "none"}, "comastre": {"inference": {"alpha": 0.0}}})
    torch.manual_seed(0)
    model = build_method(config.method, setup_of(config)).build(CLASSES).eval()

    def segment(image: Tensor) -> object:
        with torch.inference_mode():
            return model.segment(image, None, [tuple(image.shape[-2:])])  # type: ignore[operator]

    return segment


def theirs() -> Callable[[Tensor], object]:
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large  # type: ignore[import-untyped]

    torch.manual_seed(0)
    model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=1 + sum(CLASSES)).eval()

    def segment(image: Tensor) -> object:
        with torch.inference_mode():
            return model(image)["out"].argmax(1)

    return segment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="image side in pixels")
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds; the median counts")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of CPU threads")
    parser.add_argument("--keep-memory", choices=("ours", "both", "neither"), default="ours", help="freed memory")
    arguments = parser.parse_args()
    image = torch.rand(1, 3, arguments.size, arguments.size, generator=torch.Generator().manual_seed(0))
    works = {"ours": ours(), "torchvision": theirs()}
    print(f"one image of {arguments.size} x {arguments.size} to its label map; processor time in brackets")
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for turn in range(arguments.repeats + 2):  # two warm up
            for name, work in works.items():
                began, cpu = time.perf_counter(), time.process_time()
                kept = arguments.keep_memory == "both" or (arguments.keep_memory == "ours" and name == "ours")
                with keeping_freed_memory() if kept else nullcontext():
                    work(image)
                if turn > 1:
                    times[name].append((time.perf_counter() - began, time.process_time() - cpu))
        wall = {name: median(seconds for seconds, _ in values) for name, values in times.items()}
        spent = {name: median(seconds for _, seconds in values) for name, values in times.items()}
        ratio, of_cpu = wall["ours"] / wall["torchvision"], spent["ours"] / spent["torchvision"]
        columns = "   ".join(f"{name} {1e3 * wall[name]:6.1f} ms [{1e3 * spent[name]:6.1f}]" for name in works)
        met = "met" if ratio <= TARGET else "MISSED"
        plural = "s" if threads > 1 else " "
        print(f"{threads} thread{plural}  {columns}   ratio {ratio:.2f} [{of_cpu:.2f}] (target <= {TARGET}: {met})")


if __name__ == "__main__":
    main()
