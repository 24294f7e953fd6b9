"""`comastre predict`: which images it finds, what it writes, and what it does with what cannot be read."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import comastre
from comastre.cli import main as cli
from comastre.errors import UserError
from comastre.evaluation import image_progress
from comastre.evaluation.image_progress import ImageProgress
from comastre.files import write_whole
from comastre.prediction.earlier import left_to_do, made_by
from comastre.prediction.image_files import ImageFile, find_images
from comastre.prediction.model import load
from comastre.prediction.run import check_targets, predict_files


def write(path: Path, size: tuple[int, int] = (24, 32), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    return path


def predict(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(["predict", *map(str, arguments)])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def names(*sources: object, leave_out: Path | None = None) -> list[str]:
    return [image.name.as_posix() for image in find_images([str(each) for each in sources], leave_out)]


# --- finding images --------------------------------------------------------------------------------------------------


def test_results_mirror_the_folders_below_what_holds_everything(tmp_path: Path) -> None:
    for file in ("one/a.png", "one/deep/b.JPG", "two/a.png", "c.webp"):
        write(tmp_path / file)
    (tmp_path / "one" / "notes.txt").write_text("no image")
    assert names(tmp_path) == ["c", "one/a", "one/deep/b", "two/a"]
    assert names(tmp_path / "one") == ["a", "deep/b"]
    assert names(tmp_path / "one", tmp_path / "two") == ["one/a", "one/deep/b", "two/a"]
    assert names(tmp_path / "one" / "a.png", tmp_path / "two" / "a.png") == ["one/a", "two/a"]
    assert names(tmp_path / "c.webp") == ["c"]


def test_patterns_and_the_same_image_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("one/a.png", "one/deep/b.jpg", "two/a.png", "d[1].png"):
        write(tmp_path / file)
    (tmp_path / "one" / "notes.txt").write_text("no image")
    assert names(tmp_path / "**" / "*.png") == ["d[1]", "one/a", "two/a"]
    assert names(tmp_path / "one" / "*") == ["a", "deep/b"]  # folders that fit are looked into, texts are not
    assert names(tmp_path / "d[1].png") == ["d[1]"]  # a file, though it reads like a pattern
    monkeypatch.chdir(tmp_path)
    assert names("two", tmp_path / "two" / "a.png", "tw?/*.png") == ["two/a"]


def test_images_that_differ_in_suffix_alone_are_all_kept(tmp_path: Path) -> None:
    for file in ("a.png", "a.bmp", "a-png.jpg", "b.png"):
        write(tmp_path / file)
    found = names(tmp_path)
    assert sorted(found) == ["a-bmp", "a-png", "a-png-2", "b"]


def test_results_of_an_earlier_run_are_no_images(tmp_path: Path) -> None:
    write(tmp_path / "a.png")
    write(tmp_path / "a.labels.png")
    write(tmp_path / "out" / "b.overlay.jpg")
    assert names(tmp_path, leave_out=tmp_path) == ["a"]
    assert names(tmp_path, leave_out=tmp_path / "out") == ["a.labels", "a"]


@pytest.mark.parametrize(
    ("source", "message"),
    [("empty", "empty holds no images"), ("none.png", "there is no image or folder"), ("*.gif", "no file fits")],
)
def test_sources_without_images_are_named(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(UserError, match=message):
        find_images([source])
    with pytest.raises(UserError, match="no images given"):
        find_images([])


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_three_files_per_image(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, file in enumerate(("one/a.png", "two/a.png", "two/b.png")):
        write(tmp_path / "images" / file, (24, 32) if number < 2 else (40, 24), seed=number)
    out = tmp_path / "out"
    assert predict(tiny_bundle, tmp_path / "images", "--out", out) == 0, capsys.readouterr().err
    written = {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}
    kinds = ("labels.png", "overlay.jpg", "segments.json")
    assert written == {f"{name}.{kind}" for name in ("one/a", "two/a", "two/b") for kind in kinds}
    model = comastre.load(tiny_bundle)
    for name in ("one/a", "two/b"):
        alone = model.predict(tmp_path / "images" / f"{name}.png")
        with Image.open(out / f"{name}.labels.png") as labels:
            assert (np.asarray(labels) == alone.label_map).mean() > 0.999
        content = json.loads((out / f"{name}.segments.json").read_text())
        assert content["image"] == str(tmp_path / "images" / f"{name}.png")
        assert len(content["segments"]) == len(alone.segments)
    said = capsys.readouterr().out
    assert said.startswith("3 images segmented in ")
    assert f"results are in {out}" in said


def test_what_cannot_be_read_is_reported_at_the_end(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "images" / "a.png")
    write(tmp_path / "images" / "z.png")
    (tmp_path / "images" / "b.png").write_text("no image")
    cut = write(tmp_path / "images" / "c.png")
    cut.write_bytes(cut.read_bytes()[:400])  # its header is whole, its pixels are not
    assert predict(tiny_bundle, tmp_path / "images", "--out", tmp_path / "out") == 1
    said = capsys.readouterr()
    assert {file.name for file in (tmp_path / "out").glob("*.png")} == {"a.labels.png", "z.labels.png"}
    assert said.out.startswith("2 images segmented")
    lines = said.err.splitlines()
    assert len(lines) == 3
    assert "b.png" in lines[0] + lines[1]
    assert "c.png" in lines[0] + lines[1]
    assert lines[2] == "comastre: 2 images could not be segmented"


def test_earlier_results_are_replaced_only_when_asked(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, out = write(tmp_path / "a.png"), tmp_path / "out"
    out.mkdir()
    (out / "a.segments.json").write_text("precious")
    assert predict(tiny_bundle, image, "--out", out) == 1
    assert "a.segments.json would be replaced: choose another --out, or give --overwrite" in capsys.readouterr().err
    assert (out / "a.segments.json").read_text() == "precious"
    assert len(list(out.iterdir())) == 1
    assert predict(tiny_bundle, image, "--out", out, "--overwrite") == 0
    assert json.loads((out / "a.segments.json").read_text())["width"] == 32


def test_an_image_is_never_replaced_by_a_result(tmp_path: Path) -> None:
    files = [ImageFile(tmp_path / "b.png", Path("b")), ImageFile(tmp_path / "b.labels.png", Path("b.labels"))]
    with pytest.raises(UserError, match=r"b\.labels\.png is one of the images"):
        check_targets(files, tmp_path)
    check_targets(files, tmp_path / "out")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-size", "0"], "--batch-size is 0 but must be 1 or more"),
        (["--max-side", "-3"], "--max-side is -3 but must be 1 or more"),
        (["--device", "toaster"], "device 'toaster' cannot be used"),
    ],
)
def test_bad_flags_are_one_sentence(
    flags: list[str], message: str, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(tiny_bundle, write(tmp_path / "a.png"), "--out", tmp_path / "out", *flags) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_what_is_too_large_together_is_done_one_by_one(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write(tmp_path / "images" / f"{number}.png", seed=number)
    write(tmp_path / "images" / "huge.png", (64, 64))
    predict_batch = comastre.Model._predict_batch

    def short_of_memory(self: Any, batch: Any, max_side: Any) -> Any:
        if len(batch) > 1 or batch[0].pixels.shape[1] == 64:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return predict_batch(self, batch, max_side)

    monkeypatch.setattr(comastre.Model, "_predict_batch", short_of_memory)
    outcome = predict_files(str(tiny_bundle), [tmp_path / "images"], tmp_path / "out")
    assert len(outcome.written) == 3
    (sentence,) = outcome.failed
    assert "huge.png (64 x 64) needs more memory than there is: give --max-side" in sentence


# --- going on --------------------------------------------------------------------------------------------------------


def test_killed_it_goes_on_where_it_stopped(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        write(tmp_path / "images" / f"{number}.png", seed=number)
    out, command = tmp_path / "out", (tiny_bundle, tmp_path / "images", "--out", tmp_path / "out", "--batch-size", 1)
    assert predict(tiny_bundle, tmp_path / "images", "--out", tmp_path / "straight", "--batch-size", 1) == 0
    written: list[Path] = []

    def killed(path: Path, content: bytes) -> None:
        if len(written) == 4:  # the second image has its list of segments and no more
            raise KeyboardInterrupt
        written.append(path)
        write_whole(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("comastre.prediction.result.write_whole", killed)
        assert predict(*command) == 130
    assert {file.name for file in out.iterdir()} == {
        "0.labels.png",
        "0.overlay.jpg",
        "0.segments.json",
        "1.segments.json",
    }
    finished = {file: file.stat().st_ino for file in out.glob("0.*")}
    capsys.readouterr()
    assert predict(*command) == 0
    assert capsys.readouterr().out.startswith("3 images segmented in ")
    assert {file: file.stat().st_ino for file in out.glob("0.*")} == finished
    straight = {file.name: file.read_bytes() for file in (tmp_path / "straight").iterdir()}
    assert {file.name: file.read_bytes() for file in out.iterdir()} == straight

    assert predict(*command) == 0
    assert f"nothing is left to do: the results of all 4 images are in {out}" in capsys.readouterr().out
    for other in (["--max-side", "16"], ["--alpha", "0.5"]):  # of other settings: not ours to replace
        assert predict(*command, *other) == 1
        assert "0.labels.png and 11 more results would be replaced" in capsys.readouterr().err
    write(tmp_path / "images" / "2.png", seed=9)
    later = (out / "2.segments.json").stat().st_mtime + 1
    os.utime(tmp_path / "images" / "2.png", (later, later))
    assert predict(*command) == 1
    assert "2.labels.png and 2 more results would be replaced" in capsys.readouterr().err


def test_a_changed_list_of_segments_is_never_taken_for_a_finished_result(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, out = write(tmp_path / "a.png"), tmp_path / "out"
    assert predict(tiny_bundle, image, "--out", out) == 0
    segments = out / "a.segments.json"
    whole = segments.read_bytes()
    model, luck = load(tiny_bundle), random.Random(0)
    maker = made_by(model.bundle, {"view": model.view.model_dump(mode="json")})
    for _ in range(200):  # any bit, wherever it is
        damaged = bytearray(whole)
        damaged[luck.randrange(len(damaged))] ^= 1 << luck.randrange(8)
        segments.write_bytes(bytes(damaged))
        assert left_of(image, out, maker) is None
    segments.write_bytes(whole)
    assert left_of(image, out, maker) == 0
    segments.write_bytes(whole.replace(b'"width": ', b'"width": 1'))
    capsys.readouterr()
    assert predict(tiny_bundle, image, "--out", out) == 1
    assert "a.labels.png and 2 more results would be replaced" in capsys.readouterr().err
    assert predict(tiny_bundle, image, "--out", out, "--overwrite") == 0
    assert segments.read_bytes() == whole


def left_of(image: Path, out: Path, maker: str) -> int | None:
    """How many images are left to do; None where a result is somebody else's."""
    try:
        return len(left_to_do(find_images([image]), out, maker, overwrite=False))
    except UserError:
        return None


def test_a_full_disk_leaves_no_label_map_without_its_overlay(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image, out = write(tmp_path / "a.png"), tmp_path / "out"
    assert predict(tiny_bundle, image, "--out", out) == 0

    def full(path: Path, content: bytes) -> None:
        if path.suffix == ".jpg":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_whole(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("comastre.prediction.result.write_whole", full)
        assert predict(tiny_bundle, image, "--out", tmp_path / "new") == 1
        said = capsys.readouterr().err
        assert "No space left on device; with more space" in said and said.count("\n") == 1
        assert predict(tiny_bundle, image, "--out", out, "--overwrite") == 1  # the old one is not mixed with the new
    for folder in (tmp_path / "new", out):
        assert not list(folder.glob("*.labels.png"))
    assert predict(tiny_bundle, image, "--out", tmp_path / "new") == 0


# --- how a model predicts --------------------------------------------------------------------------------------------


def test_fields_of_predictions_can_be_given(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, out = write(tmp_path / "a.png"), tmp_path / "out"
    model = comastre.load(tiny_bundle)
    highest = float(model.predict(image).objectness.max())
    assert predict(tiny_bundle, image, "--out", out, "--alpha", highest) == 0
    assert "nothing in 1" in capsys.readouterr().out  # nothing is surer than that
    above = model.adjusted(alpha=highest)
    assert not above.predict(image).segments
    assert model.predict(image).segments and model.adjusted().predict(image).segments
    for flags, sentence in (
        (["--alpha", "2"], "inference.alpha"),
        (["--clip", "2"], "--comastre.optimiser is for training: leave it away"),
        (["--alhpa", "0.5"], "there is no field --alhpa: did you mean"),
    ):
        assert predict(tiny_bundle, image, "--out", tmp_path / "other", *flags) in (1, 2)
        said = capsys.readouterr().err
        assert sentence in said and said.count("\n") == 1
    with pytest.raises(UserError, match=r"has no field short for predictions: it has alpha, "):
        model.adjusted(short=1)


def test_predicting_imports_nothing_that_only_training_and_reports_need(tiny_bundle: Path, tmp_path: Path) -> None:
    """A prediction of one image is mostly imports."""
    command = ["predict", str(tiny_bundle), str(write(tmp_path / "a.png")), "--out", str(tmp_path / "out")]
    program = f"""
import sys
from comastre.cli.main import main
try:
    main({command!r})
finally:
    unneeded = ("lightning_fabric", "tensorboard", "transformers", "scipy", "matplotlib", "jinja2", "pandas", "sklearn")
    print([name for name in unneeded if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- progress --------------------------------------------------------------------------------------------------------


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 4.0, 11.0, 12.0, 30.0])
    monkeypatch.setattr(image_progress.time, "monotonic", lambda: next(clock))
    log = Console(file=io.StringIO(), force_terminal=False)
    with ImageProgress("segmenting", 8, log) as progress:
        for images in (1, 4, 1, 2):
            progress.advance(images)
    assert log.file.getvalue() == "segmenting: 5 of 8 images, 0.5 images/s\n"  # type: ignore[attr-defined]


def test_a_terminal_gets_a_bar() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with ImageProgress("segmenting", 4, terminal) as progress:
        progress.advance(4)
    assert "4/4" in terminal.file.getvalue()  # type: ignore[attr-defined]
