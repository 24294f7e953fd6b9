"""How long `comastre predict` takes beside its model: many photographs, one of 24 megapixels, and the start of it all.

Run by hand: `python benchmarks/predict_speed.py MODEL IMAGES [--num 200] [--threads 2]`, with a trained bundle and a
folder of photographs. Time in the model is the time in the forward passes of its network; the merge, reading and
writing are not. The first table is of the whole command and of its part after everything is loaded.
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
    clock = {"began": 0.0, "spent": 0.0}

    def begin(*_: Any) -> None:
        clock["began"] = time.perf_counter()

    def end(*_: Any) -> None:
        clock["spent"] += time.perf_counter() - clock["began"]

    adjust = run.Model.adjusted

    def watched(model: Any, **fields: Any) -> Any:
        made = adjust(model, **fields)
        for part in made.segmenter.children():
            part.register_forward_pre_hook(begin)
            part.register_forward_hook(end)
        return made

    run.Model.adjusted = watched  # type: ignore[method-assign]
    outcome = run.predict_files(
        arguments.model, arguments.images, arguments.out, short_side=arguments.short_side, max_side=arguments.max_side
    )
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    wall = time.time() - psutil.Process().create_time()
    found = {"wall": wall, "after loading": outcome.seconds, "model": clock["spent"], "peak": peak}
    print(json.dumps(found))


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
    speed, peak = len(images) / found["after loading"], found["peak"] / 1e9
    print(f"\n{len(images)} photographs: {speed:.1f} images/s, peak {peak:.2f} GB")
    for what in ("after loading", "wall"):
        ratio = found["model"] / found[what]
        line = f"  {what:14}{found[what]:7.2f} s, model {found['model']:7.2f} s, ratio {ratio:.2f}"
        print(
            line + (f" (target >= {PHOTOGRAPHS}: {verdict(ratio >= PHOTOGRAPHS)})" if what == "after loading" else "")
        )


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
    print(f"\none photograph of {WIDTH} x {HEIGHT}, from its file to written results, after loading")
    for short_side in SHORT_SIDES:
        found = in_child(model, [file], folder / str(short_side), threads, short_side)
        ratio, peak = found["after loading"] / found["model"], found["peak"]
        print(
            f"  short side {short_side:4}: {found['after loading']:6.2f} s, model {found['model']:6.2f} s, "
            f"ratio {ratio:5.2f} (target <= {LARGE}: {verdict(ratio <= LARGE)}), "
            f"peak {peak / 1e9:.2f} GB (target <= {MEMORY / 1e9:.0f}: {verdict(peak <= MEMORY)})",
            flush=True,
        )


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
