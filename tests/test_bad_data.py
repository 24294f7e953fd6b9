"""Bad data: `comastre train` names the file in one sentence and leaves nothing behind, and touches nothing that is."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comastre.cli import main as cli

SIZE = (24, 32)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset of two classes, four training images and one for validation."""
    monkeypatch.setenv("COMASTRE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    random = np.random.default_rng(0)
    for number, name in enumerate("abcdv"):
        for kind in ("images", "masks"):
            (folder / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (*SIZE, 3), dtype=np.uint8)).save(folder / "images" / f"{name}.jpg")
        save_mask(folder / "masks" / f"{name}.png", np.full(SIZE, number % 2 + 1))
    (folder / "classes.txt").write_text("cat\ndog\n")
    (folder / "train.txt").write_text("a\nb\nc\nd\n")
    (folder / "val.txt").write_text("v\n")
    return folder


def save_mask(path: Path, values: np.ndarray, kind: str = "uint8") -> None:
    Image.fromarray(values.astype(kind)).save(path)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def rename_to_twin(root: Path) -> None:
    (root / "images" / "a.png").write_bytes((root / "images" / "b.jpg").read_bytes())


def only_cats(root: Path) -> None:
    for name in "abcd":
        save_mask(root / "masks" / f"{name}.png", np.full(SIZE, 1))


def lock(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("not a folder")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated JPEG": (lambda root: cut_short(root / "images" / "b.jpg"), "b.jpg cannot be read (image file is trunc"),
    "truncated validation JPEG": (lambda root: cut_short(root / "images" / "v.jpg"), "v.jpg cannot be read"),
    "mask of another size": (
        lambda root: save_mask(root / "masks" / "c.png", np.ones((24, 30))),
        "c.png is 30 x 24 but its image c.jpg is 32 x 24",
    ),
    "validation mask of another size": (
        lambda root: save_mask(root / "masks" / "v.png", np.ones((24, 30))),
        "v.png is 30 x 24 but its image v.jpg is 32 x 24",
    ),
    "label out of range": (
        lambda root: save_mask(root / "masks" / "b.png", np.full(SIZE, 7)),
        "b.png holds the label 7 but there are only the classes 1..2",
    ),
    "RGB mask": (
        lambda root: save_mask(root / "masks" / "b.png", np.ones((*SIZE, 3))),
        "b.png holds RGB colours but must hold class ids: its channels are equal, so keep one",
    ),
    "16-bit mask": (
        lambda root: save_mask(root / "masks" / "b.png", np.ones(SIZE), "uint16"),
        "b.png has more than 8 bits per pixel",
    ),
    "missing mask": (lambda root: (root / "masks" / "d.png").unlink(), "d.png, which does not exist"),
    "missing image": (lambda root: (root / "images" / "d.jpg").unlink(), "lists d, which is not in images/"),
    "empty split": (lambda root: (root / "val.txt").write_text("\n"), "val.txt is empty"),
    "class without image": (only_cats, "Class 2 (dog) is new in step 0"),
    "duplicate names": (rename_to_twin, "would share the mask a.png"),
    "name listed twice": (lambda root: (root / "train.txt").write_text("a\nb\na\n"), "a is in the train split"),
    "unreadable folder": (lambda root: lock(root / "masks"), "masks"),
}


def train(root: Path, out: Path, *more: str) -> int:
    arguments = ["train", "shapes-joint", "--data.dataset", "folder", "--data.root", str(root), "--out", str(out)]
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments, *more])
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.mark.parametrize("damage", DAMAGES)
def test_bad_data_is_named_and_nothing_written(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    spoil, sentence = DAMAGES[damage]
    spoil(root)
    assert train(root, tmp_path / "run") == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1, "one sentence, no traceback"
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_there_is_not_touched_by_a_bad_start(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.yaml").write_text("seed: 5\n")
    (out / "results.json").write_text("{}\n")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    cut_short(root / "images" / "b.jpg")
    assert train(root, out, "--fresh") == 1
    assert "b.jpg cannot be read" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("run")) == ["run"]


def test_a_backbone_that_is_not_there_leaves_nothing_either(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(root, tmp_path / "run", "--backbone.weights", str(tmp_path / "weights.safetensors")) == 1
    assert "backbone.weights: there is no file" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
