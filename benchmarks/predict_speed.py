"""How long `comastre predict` takes beside its model: many photographs, one of 24 megapixels, and the start of it all.

Run by hand: `python benchmarks/predict_speed.py MODEL IMAGES [--num 200] [--threads 2]`, with a trained bundle and a
folder of photographs. Time in the model is the time in the forward passes of its network; the merge, reading and
writing are not. Processor time says the same on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

PHOTOGRAPHS, LARGE, MEMORY = 0.85, 2.0, 2_000_000_000
WIDTH, HEIGHT = 6000, 4000
SHORT_SIDES = (256, 512, 1024, 1365)
"""Of what the model sees; the last has a long side of 2048, the most that presets let it see."""


def predict_watched(arguments: argparse.Namespace) -> None:
    """What a child process does: the command, with a clock in the model; prints what it took as JSON."""
    import psutil
    import torch

    from comastre.prediction import run

    torch.set_num_threads(arguments.threads)
    spent = {"model": Spent(), "segmenting": Spent(), "files": Spent()}
    adjust, segment = run.Model.adjusted, run.Model._predict_batch

    def watched(model: Any, **fields: Any) -> Any:
        made = adjust(model, **fields)
        for part in made.segmenter.children():
            part.register_forward_pre_hook(lambda *_: spent["model"].begin())
            part.register_forward_hook(lambda *_: spent["model"].end())
        spent["files"].begin()  # everything is loaded now
        return made

    def segmented(*given: Any) -> Any:
        spent["segmenting"].begin()
        found = segment(*given)
        spent["segmenting"].end()
        return found

    run.Model.adjusted, run.Model._predict_batch = watched, segmented  # type: ignore[method-assign]
    run.predict_files(
        arguments.model, arguments.images, arguments.out, short_side=arguments.short_side, max_side=arguments.max_side
    )
    spent["files"].end()
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    found = {"command": time.time() - psutil.Process().create_time(), "peak": peak}
    for name, each in spent.items():
        found |= {name: each.wall, f"{name}, processor": each.processor}
    print(json.dumps(found))


class Spent:
    """Time in one part: on the clock, and of all processors."""

    def __init__(self) -> None:
        self.wall = self.processor = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def end(self) -> None:
        self.wall += time.perf_counter() - self._began[0]
        self.processor += time.process_time() - self._began[1]


def in_child(
    model: str, images: list[Path], out: Path, threads: int, short_side: int | None = None
) -> dict[str, float]:
    command = [sys.executable, __file__, model, *map(str, images), "--out", str(out), "--threads", str(threads)]
    if short_side is not None:
        command += ["--short-side", str(short_side)]
    done = subprocess.run(
        [*command, "--child"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def photographs(model: str, images: list[Path], out: Path, threads: int) -> None:
    found = in_child(model, images, out, threads)
    print(
        f"\n{len(images)} photographs: {len(images) / found['files']:.1f} images/s, peak {found['peak'] / 1e9:.2f} GB"
    )
    ratio = found["model"] / found["files"]
    print(f"  files to results{found['files']:8.2f} s, model {found['model']:.2f} s, ratio {ratio:.2f} ", end="")
    print(f"(target >= {PHOTOGRAPHS}: {verdict(ratio >= PHOTOGRAPHS)})")
    print(f"  whole command   {found['command']:8.2f} s, ratio {found['model'] / found['command']:.2f}")


def one_large(images: list[Path], file: Path) -> None:
    """A photograph of 24 megapixels: sixteen photographs side by side, enlarged."""
    from PIL import Image

    whole = Image.new("RGB", (WIDTH, HEIGHT))
    for number in range(16):
        with Image.open(images[number % len(images)]) as opened:
            part = opened.convert("RGB").resize((WIDTH // 4, HEIGHT // 4), Image.Resampling.BICUBIC)
        whole.paste(part, (number % 4 * WIDTH // 4, number // 4 * HEIGHT // 4))
    whole.save(file, quality=92)


def large(model: str, images: list[Path], folder: Path, threads: int) -> None:
    file = folder / "large.jpg"
    one_large(images, file)
    print(f"\none photograph of {WIDTH} x {HEIGHT}: seconds (and of processors), and over the model's own")
    for short_side in SHORT_SIDES:
        found = in_child(model, [file], folder / str(short_side), threads, short_side)
        print(f"  short side {short_side:4}: model {found['model']:6.2f} ({found['model, processor']:.2f})", end="")
        for name, what in (("segmenting", "pixels to labels"), ("files", "file to results")):
            ratio, busy = (found[f"{name}{kind}"] / found[f"model{kind}"] for kind in ("", ", processor"))
            print(f"; {what} {found[name]:6.2f} ({found[f'{name}, processor']:.2f})", end="")
            print(f" = {ratio:.2f} ({busy:.2f}) {verdict(ratio <= LARGE)}", end="")
        print(f"; peak {found['peak'] / 1e9:.2f} GB {verdict(found['peak'] <= MEMORY)}", flush=True)
    print(f"  targets: <= {LARGE}, <= {MEMORY / 1e9:.0f} GB")


def starts(model: str, image: Path, folder: Path, repeats: int) -> None:
    """Whole processes, start to end."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import comastre": [sys.executable, "-c", "import comastre"],
        "import torch": [sys.executable, "-c", "import torch"],
        "import torch, torchvision, timm": [sys.executable, "-c", "import torch, torchvision, timm"],
        "comastre --help": [sys.executable, "-m", "comastre", "--help"],
        "comastre predict, one image": [sys.executable, "-m", "comastre", "predict", model, str(image), "--out"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(repeats):
        for name, command in commands.items():
            out = [str(folder / f"one-{turn}")] if command[-1] == "--out" else []
            began = time.perf_counter()
            subprocess.run([*command, *out], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - began)
    print(f"\nfrom the start of the process to its end, median of {repeats}")
    for name, values in seconds.items():
        print(f"  {name:32}{median(values):6.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a trained bundle")
    parser.add_argument("images", nargs="+", type=Path, help="a folder of photographs")
    parser.add_argument("--num", type=int, default=200, help="photographs")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--repeats", type=int, default=3, help="starts; the median counts")
    parser.add_argument("--out", type=Path, help="keep the photographs' results here")
    parser.add_argument("--only", choices=("photographs", "large", "start"), help="one of the three")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--short-side", help=argparse.SUPPRESS)
    parser.add_argument("--max-side", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        predict_watched(arguments)
        return
    images = sorted(file for folder in arguments.images for file in folder.rglob("*.jpg"))[: arguments.num]
    print(f"{arguments.model}, {arguments.threads} threads")
    folder = Path(tempfile.mkdtemp())
    try:
        if arguments.only in (None, "photographs"):
            photographs(arguments.model, images, arguments.out or folder / "photographs", arguments.threads)
        if arguments.only in (None, "large"):
            large(arguments.model, images, folder, arguments.threads)
        if arguments.only in (None, "start"):
            starts(arguments.model, images[0], folder, arguments.repeats)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
