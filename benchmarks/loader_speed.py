"""Images per second of the 512-crop training pipeline on one core, its share by part, and the naive order beside it.

Naive is the order of plain torchvision: decode everything, resize everything, crop, RandomPhotometricDistort, flip,
pad. Run by hand: `python benchmarks/loader_speed.py [--images 24]`. Time is processor time of this process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from comastre.class_table import palette
from comastre.data import colour, files, transforms
from comastre.data.files import FileDataset, MaskReader, Record
from comastre.data.transforms import Augmentation, draw_short_side, semantic_targets, training_example

OPTIONS = Augmentation(crop=512, scale=(0.5, 2.0), flip=True, colour_jitter=True)
LOOKUP = np.arange(256)
_naive_distort = v2.RandomPhotometricDistort()


class Clock:
    """Processor time by part; a part inside another counts for itself only."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inside: list[float] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._inside.append(0.0)
        start = time.process_time()
        try:
            yield
        finally:
            whole = time.process_time() - start
            self.spent[name] += whole - self._inside.pop()
            if self._inside:
                self._inside[-1] += whole

    def timed(self, name: str, function: Callable) -> Callable:
        def call(*args, **kwargs):
            with self.part(name):
                return function(*args, **kwargs)

        return call


def photographs(folder: Path, width: int, height: int, num: int) -> FileDataset:
    """JPEGs with the smoothness of photographs, and palette masks of a few objects."""
    generator = np.random.default_rng(0)
    records = []
    for number in range(num):
        coarse = Image.fromarray(generator.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8))
        noise = generator.normal(0, 6, (height, width, 3))
        pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)) + noise
        image, mask = folder / f"{width}-{number}.jpg", folder / f"{width}-{number}.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(image, quality=90)
        labels = generator.integers(0, 6, (3, 4), dtype=np.uint8)
        Image.fromarray(labels).resize((width, height), Image.Resampling.NEAREST).save(mask)
        records.append(Record(str(number), image, mask))
    return FileDataset("photographs", "train", ["a"] * 20, palette(21), records, MaskReader(20))


def ours(dataset: FileDataset, index: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    sample = dataset.sample(index, draw_short_side(OPTIONS, seed))
    example = training_example(sample, LOOKUP, OPTIONS, False, seed)
    return example.image, example.masks, example.classes


def naive(dataset: FileDataset, index: int, seed: int, clock: Clock) -> tuple[Tensor, Tensor, Tensor]:
    record = dataset.records[index]
    with clock.part("decode image"), Image.open(record.image) as opened:
        image = torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)
    with clock.part("decode mask"), Image.open(record.labels) as opened:
        semantic = np.asarray(opened)
    with clock.part("lookup and targets"):
        labels = torch.from_numpy(LOOKUP[semantic].astype(np.int32))[None]
    with transforms.seeded(seed):
        scale, top_share, left_share, flip = torch.rand(4).tolist()
        factor = round(512 * (0.5 + 1.5 * scale)) / min(semantic.shape)
        size = [round(side * factor) for side in semantic.shape]
        with clock.part("resize and crop image"):
            image = functional.resize(image, size, antialias=True)
        with clock.part("labels"):
            labels = functional.resize(labels, size, interpolation=InterpolationMode.NEAREST_EXACT)
        height, width = min(size[0], 512), min(size[1], 512)
        top, left = int(top_share * (size[0] - height + 1)), int(left_share * (size[1] - width + 1))
        with clock.part("resize and crop image"):
            image = functional.crop(image, top, left, height, width).contiguous()
        labels = functional.crop(labels, top, left, height, width)
        with clock.part("colour"):
            image = _naive_distort(tv_tensors.Image(image)).as_subclass(Tensor)
    with clock.part("flip and pad"):
        if flip < 0.5:
            image, labels = functional.horizontal_flip(image), functional.horizontal_flip(labels)
        missing = [0, 0, 512 - width, 512 - height]
        image, labels = functional.pad(image, missing, fill=128), functional.pad(labels, missing, fill=255)
    with clock.part("lookup and targets"):
        return image.contiguous(), *semantic_targets(labels[0].contiguous())


def watch(clock: Clock) -> None:
    """Put the clock around the parts of our pipeline."""
    files.read_image = clock.timed("decode image", files.read_image)
    files.read_mask = clock.timed("decode mask", files.read_mask)
    files.check_mask = clock.timed("check mask", files.check_mask)
    transforms._cut_image = clock.timed("resize and crop image", transforms._cut_image)
    transforms._cut_labels = clock.timed("labels", transforms._cut_labels)
    transforms.distort = clock.timed("colour", colour.distort)
    transforms.semantic_targets = clock.timed("lookup and targets", transforms.semantic_targets)


def shares(clock: Clock, total: float, num: int) -> str:
    return "\n".join(
        f"    {name:<24}{1000 * spent / num:7.2f} ms {100 * spent / total:5.0f} %"
        for name, spent in clock.spent.most_common()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=24, help="images per size; each is used three times")
    num = parser.parse_args().images
    torch.set_num_threads(1)
    watched = Clock()
    watch(watched)
    with tempfile.TemporaryDirectory() as folder:
        for width, height in ((500, 375), (2000, 1500)):
            dataset = photographs(Path(folder), width, height, num)

            clocks = {"ours": watched, "naive": Clock()}
            totals = Counter()
            for clock in clocks.values():
                clock.spent.clear()
            ours(dataset, 0, 0), naive(dataset, 0, 0, Clock())  # warm up
            watched.spent.clear()
            agree = 0
            for seed in range(3 * num):  # taking turns, so that both meet the same load of the machine
                results = {}
                for name, clock in clocks.items():
                    start = time.process_time()
                    if name == "ours":
                        with clock.part("everything else"):
                            results[name] = ours(dataset, seed % num, seed)
                    else:
                        with clock.part("everything else"):
                            results[name] = naive(dataset, seed % num, seed, clock)
                    totals[name] += time.process_time() - start
                agree += torch.equal(results["ours"][1], results["naive"][1])
            print(f"{width} x {height} JPEG, crop 512, one core:")
            for name, clock in clocks.items():
                print(f"  {name}: {3 * num / totals[name]:.1f} images/s\n{shares(clock, totals[name], 3 * num)}")

            print(f"  {totals['naive'] / totals['ours']:.2f} x as fast; target masks equal in {agree} of {3 * num}\n")


if __name__ == "__main__":
    main()
