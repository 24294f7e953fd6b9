"""A package of somebody else's adds a method and a dataset: every command works with them, and no line changed here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PACKAGE = Path(__file__).parent / "fixtures" / "example_package"
SHORT = (
    *("--method", "pixel-memory", "--size", "tiny"),
    *("--data.dataset", "dots", "--data.train_images", "24", "--data.val_images", "8", "--data.workers", "0"),
    *("--data.crop", "64", "--continual.setting", "2-1"),
    *("--training.iterations", "12", "--training.iterations_per_class", "6", "--training.batch_size", "4"),
    *("--training.accelerator", "cpu", "--training.checkpoint_every", "3", "--training.log_every", "1"),
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, installed by pip into a folder of its own beside comastre."""
    folder = tmp_path_factory.mktemp("installed")
    # Built with what is installed here: nothing is fetched.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(folder), str(PACKAGE)], check=True, capture_output=True, text=True)
    return folder


def environment(installed: Path) -> dict[str, str]:
    paths = [str(installed), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


def comastre(installed: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "comastre", *arguments]
    done = subprocess.run(command, env=environment(installed), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def trained(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    comastre(installed, "train", "shapes-6-2", *SHORT, "--out", str(out))
    return out


def test_they_are_listed_with_their_package(installed: Path) -> None:
    methods = comastre(installed, "methods")
    assert "pixel-memory" in methods and "comastre-example" in methods and "PixelMemory" in methods
    assert "dots" in comastre(installed, "data", "list")
    fields = comastre(installed, "train", "shapes-6-2", "--method", "pixel-memory", "--help")
    assert "--pixel_memory.memory" in fields and "--pixel_memory.optimiser.momentum" in fields
    assert "--comastre." not in fields


def test_it_trains_a_stream_and_says_what_it_is(trained: Path) -> None:
    results = json.loads((trained / "results.json").read_text())
    assert (results["method"], results["dataset"], len(results["steps"])) == ("pixel-memory", "dots", 3)
    assert all(step["recall"] is None for step in results["steps"])
    config = (trained / "config.yaml").read_text()
    assert "pixel_memory:" in config and "momentum: 0.9" in config and "comastre:" not in config
    described = json.loads((trained / "steps" / "02" / "config.json").read_text())
    assert (described["method"], described["tasks"]) == ("pixel-memory", [2, 1, 1])
    assert "PixelMemory" in (trained / "steps" / "02" / "README.md").read_text()


def test_killed_it_goes_on_to_the_same_bits(installed: Path, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "comastre", "train", "shapes-6-2", *SHORT, "--out", str(out)]
    process = subprocess.Popen(
        command, env=environment(installed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    # In the second step, whose state has an old model and a number of the method's own.
    deadline = time.monotonic() + 200
    while not list((out / "checkpoints").glob("step-01-iteration-0000000[3-9]*")):
        assert time.monotonic() < deadline and process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    comastre(installed, "train", "shapes-6-2", *SHORT, "--out", str(out))
    for step in ("00", "01", "02"):
        weights = Path("steps") / step / "model.safetensors"
        assert (out / weights).read_bytes() == (trained / weights).read_bytes(), step


def test_it_predicts_evaluates_learns_and_reports(installed: Path, trained: Path, tmp_path: Path) -> None:
    model, data = trained / "steps" / "01", tmp_path / "data"
    (data / "images").mkdir(parents=True)
    (data / "masks").mkdir()
    (data / "classes.txt").write_text("stripe\n")
    random = np.random.default_rng(0)
    for number in range(8):
        image = random.integers(90, 150, (64, 64, 3), dtype=np.uint8)
        image[20:36] = (0, 200, 200)
        mask = np.zeros((64, 64), np.uint8)
        mask[20:36] = 1
        Image.fromarray(image).save(data / "images" / f"{number}.png")
        Image.fromarray(mask).save(data / "masks" / f"{number}.png")

    comastre(installed, "predict", str(model), str(data / "images"), "--out", str(tmp_path / "results"))
    assert len(list((tmp_path / "results").glob("*.labels.png"))) == 8
    assert len(list((tmp_path / "results").glob("*.overlay.jpg"))) == 8

    said = comastre(installed, "eval", str(model), "--data", "dots", "--out", str(tmp_path / "scores.json"))
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["recall"] is None and scores["per_class"]["red dot"] is not None
    assert "blue dot" in said

    comastre(
        installed, "learn", str(model), "--data", str(data), "--out", str(tmp_path / "new"),
        "--iterations", "4", "--data.workers", "0", "--pixel_memory.memory", "3", "--keep", "0",
        code=1,  # four iterations teach nothing
    )  # fmt: skip
    described = json.loads((tmp_path / "new" / "config.json").read_text())
    assert (described["method"], described["tasks"]) == ("pixel-memory", [2, 1, 1])
    assert described["settings"]["memory"] == 3
    assert json.loads((tmp_path / "new" / "classes.json").read_text())["classes"][-1]["name"] == "stripe"

    comastre(installed, "report", str(trained), "--out", str(tmp_path / "page.html"), "--tables", str(tmp_path / "t"))
    page = (tmp_path / "page.html").read_text()
    assert "PixelMemory" in page and "Dots" in page and "proposes no masks" in page
    assert (tmp_path / "t" / "scores.csv").exists()


def test_both_keep_their_promises(installed: Path) -> None:
    program = """
if __name__ == "__main__":
    from comastre.config.datasets import find_dataset
    from comastre.config.methods import find
    from comastre.config.run import DataConfig
    from comastre.data.testing import check_dataset
    from comastre.methods.testing import check_method

    check_dataset(find_dataset("dots"), DataConfig(dataset="dots", train_images=12, val_images=4))
    small = {"data": {"dataset": "dots", "train_images": 24}, "continual": {"setting": "2-1"}}
    check_method(find("pixel-memory"), small)
    print("kept")
"""
    script = installed / "check.py"  # a file, because the check starts processes of its own
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)], env=environment(installed), capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "kept", done.stderr


def test_without_the_package_its_models_are_refused_in_a_sentence(trained: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "comastre", "predict", str(trained / "steps" / "02"), str(tmp_path)]
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    done = subprocess.run([*command, "--out", str(tmp_path / "o")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no method 'pixel-memory'" in done.stderr and "installed" in done.stderr
    assert len(done.stderr.splitlines()) == 1
