"""Files are whole or not there, and whoever the umask lets in can read them."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import comastre
from comastre.bundle import store
from comastre.errors import UserError
from comastre.files import PARTIAL, copy_files, sweep, write_whole
from comastre.training.checkpoint import Checkpoint, Position
from comastre.training.checkpoint import save as save_checkpoint
from comastre.training.lock import locked

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="permissions are not bits there"),
    pytest.mark.timeout(60),
]


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def _checkpoint(folder: Path, bundle: Path) -> None:
    save_checkpoint(folder, Checkpoint(Position(), {"weight": torch.zeros(1)}))


def _bundle(folder: Path, bundle: Path) -> None:
    store.save(store.load(bundle), folder / "model")


def _copied_bundle(folder: Path, bundle: Path) -> None:
    """Of a bundle that only its owner could read, as earlier versions wrote them."""
    with umask(0o077):
        store.save(store.load(bundle), folder.with_name("private"))
    copy_files(folder.with_name("private"), folder / "model")


def _prediction(folder: Path, bundle: Path) -> None:
    comastre.load(bundle).predict(np.zeros((32, 32, 3), np.uint8)).save(folder / "photo")


def _lock(folder: Path, bundle: Path) -> None:
    with locked(folder):
        pass


WRITERS = (_checkpoint, _bundle, _copied_bundle, _prediction, _lock)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
@pytest.mark.parametrize("write", WRITERS)
def test_all_files_follow_the_umask(
    tmp_path: Path, tiny_bundle: Path, write: Callable[[Path, Path], None], mask: int
) -> None:
    with umask(mask):
        folder = tmp_path / "out"
        folder.mkdir()
        write(folder, tiny_bundle)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    assert modes
    assert modes == dict.fromkeys(modes, 0o666 & ~mask)


def test_a_file_that_cannot_be_written_leaves_the_old_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_whole(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        write_whole(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_name_as_long_as_a_name_may_be(tmp_path: Path):
    for letter in ("a", "ä"):
        path = tmp_path / (letter * (255 // len(letter.encode())))
        write_whole(path, b"content")
        assert path.read_bytes() == b"content"


def test_a_bundle_that_only_its_owner_may_read_is_one_sentence(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch):
    # Root may read everything, so the system is made to say that we may not.
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("safetensors"))
    with pytest.raises(UserError, match=r"model\.safetensors may be read by its owner only: ask them for `chmod"):
        store.load(tiny_bundle)


def left_behind(folder: Path, name: str, seconds: float) -> Path:
    """What a program that was killed so long ago left."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".{name}{PARTIAL}"
    path.write_bytes(b"half")
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def test_what_killed_programs_left_is_swept_and_what_may_be_in_work_is_not(tmp_path: Path):
    old, young = left_behind(tmp_path, "old", 7200), left_behind(tmp_path, "young", 10)
    inside = left_behind(tmp_path / f".model{PARTIAL}", "x", 7200)
    os.utime(inside.parent, (time.time() - 7200,) * 2)
    mine = tmp_path / "notes.partial"
    mine.write_text("not ours: it is not hidden")
    os.utime(mine, (0, 0))
    (tmp_path / f".link{PARTIAL}").symlink_to(tmp_path)
    sweep(tmp_path)
    assert [path.exists() for path in (old, young, inside.parent, mine)] == [False, True, False, True]
    sweep(tmp_path / "not there")


def test_who_holds_a_run_sweeps_it(tmp_path: Path):
    left = [
        left_behind(tmp_path / "run" / folder, "x", 0) for folder in (".", "checkpoints", "steps", "examples/truth")
    ]
    with locked(tmp_path / "run"):
        assert not any(path.exists() for path in left)
