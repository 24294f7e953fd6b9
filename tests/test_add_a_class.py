"""`benchmarks/add_a_class.py`: which cells it has, and the tables that it prints of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    file = Path(__file__).parents[1] / "benchmarks" / "add_a_class.py"
    spec = importlib.util.spec_from_file_location("add_a_class", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_what_takes_hours_comes_last_and_can_be_left_out(benchmark: ModuleType) -> None:
    every = [cell.row for cell in benchmark.cells((0, 1), list(benchmark.ROWS))]
    assert every[-10:] == ["joint"] * 10 and "joint" not in every[:-10]
    without = [row for row in benchmark.ROWS if row != "joint"]
    assert [cell.row for cell in benchmark.cells((0, 1), without)] == every[:-10]


def test_joint_training_is_the_first_step_with_one_class_more_and_for_longer(benchmark: ModuleType) -> None:
    from comastre.config.settings import load_config

    first = load_config("voc-15-5-cpu", {"backbone": {"weights": "backbone.safetensors"}})
    config = benchmark.joint_config(Path("data"), 1, Path("backbone.safetensors"), 3300)
    assert (config.method, config.seed, config.continual.setting) == ("joint", 1, "joint")
    assert (config.data.dataset, config.data.root, config.training.iterations) == ("folder", "data", 3300)
    assert (config.backbone, config.view, config.data.crop) == (first.backbone, first.view, first.data.crop)
    assert config.training.model_copy(update={"iterations": first.training.iterations}) == first.training
    assert config.method_settings.optimiser == first.method_settings.optimiser


def test_lessons_are_told_one_by_one(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    known = {
        benchmark.Cell("learn", "sheep", 40, seed).key: {"new": 50.0 + 10 * seed, "kept": 98.0, "old": 60.0}
        for seed in (0, 1)
    }
    known[benchmark.Cell("learn", "sheep", 10, 0).key] = {"new": 20.0, "kept": 99.0, "old": 60.0}
    benchmark.print_classes(known, (0, 1), ["learn", "joint"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "| training | pottedplant | sheep | sofa | train | tvmonitor |"
    assert lines[3:] == ["| learn, 10 images |  | 20.0 / 99 % |  |  |  |", "| learn |  | 55.0 / 98 % |  |  |  |"]
