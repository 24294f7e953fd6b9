"""Time from one image to its label map: our small model beside torchvision's DeepLabv3 on MobileNetV3-Large.

    python benchmarks/small_speed.py

Both have random weights and 21 classes and see the same image; ours proposes, recognises every proposal and merges,
theirs takes the class of the largest logit. They take turns in processes of their own. Times are medians; processor
time is printed too, which on a busy machine says more of one thread. Ours keeps freed memory, as our commands do;
`--keep-memory both` lets theirs do so, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from comastre.allocator import keeping_freed_memory
from comastre.config.settings import load_config
from comastre.methods.build import build_method, setup_of
from turns import children, serve, take_turns

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


MODELS = {"ours": ours, "torchvision": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="image side in pixels")
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds; the median counts")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of CPU threads")
    parser.add_argument("--keep-memory", choices=("ours", "both", "neither"), default="ours", help="freed memory")
    parser.add_argument("--serve", choices=tuple(MODELS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        torch.set_num_threads(arguments.threads[0])
        image = torch.rand(1, 3, arguments.size, arguments.size, generator=torch.Generator().manual_seed(0))
        segment = MODELS[arguments.serve]()
        with keeping_freed_memory() if arguments.keep_memory in ("both", arguments.serve) else nullcontext():
            serve(lambda: segment(image))
        return
    print(f"one image of {arguments.size} x {arguments.size} to its label map; processor time in brackets")
    for threads in arguments.threads:
        command = [sys.executable, __file__, "--size", str(arguments.size), "--threads", str(threads)]
        command += ["--keep-memory", arguments.keep_memory, "--serve"]
        with children({name: [*command, name] for name in MODELS}) as pair:
            times = take_turns(pair, arguments.repeats)
        ratio, of_cpu = (here / there for here, there in zip(times["ours"], times["torchvision"], strict=True))
        columns = "   ".join(f"{name} {1e3 * wall:6.1f} ms [{1e3 * cpu:6.1f}]" for name, (wall, cpu) in times.items())
        met = "met" if ratio <= TARGET else "MISSED"
        plural = "s" if threads > 1 else " "
        print(f"{threads} thread{plural}  {columns}   ratio {ratio:.2f} [{of_cpu:.2f}] (target <= {TARGET}: {met})")


if __name__ == "__main__":
    main()
