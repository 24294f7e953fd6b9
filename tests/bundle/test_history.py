"""Where a model comes from: its sha256, its parent, and the way back, bit for bit."""

import hashlib
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from comastre.bundle import difference, history, store
from comastre.bundle.undo import undo
from comastre.class_table import LineageStep
from comastre.cli.main import dispatch
from comastre.errors import UserError


def hashes(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.fixture
def models(tiny_bundle, tmp_path):
    """(old, new): the new one differs in one bias and says what it was before."""
    old = shutil.copytree(tiny_bundle, tmp_path / "old")
    return old, taught(old, tmp_path / "new", "class_decoder.classifiers.0.bias")


def taught(old, folder, *moved):
    bundle = store.load(old)
    for name, tensor in bundle.model.state_dict().items():
        if not moved or name in moved:
            tensor += torch.ones_like(tensor)
    step = LineageStep(
        step=1,
        date="2026-01-02",
        data="photos (folder), 9 images labelled for ring",
        new_classes=("ring",),
        scores={"ring": 41.25, "star": None},
        note="97 % of the old classes' mean IoU",
        parent=history.digest(old),
    )
    lineage = (*bundle.classes.lineage, step)
    return store.save(replace(bundle, classes=bundle.classes.model_copy(update={"lineage": lineage})), folder)


def test_a_digest_is_what_sha256sum_gives(tiny_bundle):
    lines = [f"{hashes(tiny_bundle)[name]}  {name}\n" for name in sorted(history.SIGNED)]
    assert history.digest(tiny_bundle) == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_what_little_changed_is_kept_in_the_bundle_and_leads_back(models, tmp_path):
    old, new = models
    before, weights = hashes(old), (new / "model.safetensors").read_bytes()
    assert difference.keep_difference(new, old)
    assert (new / difference.PREVIOUS).stat().st_size < 0.1 * len(weights)
    store.load(new)  # which does not look at it
    shutil.rmtree(old)
    place, newer = undo(new)
    assert place == new and hashes(new) == before
    assert newer == tmp_path / "new.undone-1" and (newer / "model.safetensors").read_bytes() == weights


def test_what_changed_much_is_not_kept_and_the_parent_is_found_by_its_sha256(models, tmp_path):
    old, _ = models
    new = taught(old, tmp_path / "much")
    assert not difference.keep_difference(new, old) and {file.name for file in new.iterdir()} == set(store.FILES)
    before = hashes(old)
    old.rename(tmp_path / "called otherwise")
    place, newer = undo(new, out=tmp_path / "back")
    assert newer is None and hashes(place) == before and store.load(new).classes.lineage[-1].note
    far = shutil.move(tmp_path / "called otherwise", tmp_path / "else" / "where")
    shutil.rmtree(place)
    with pytest.raises(UserError, match="is not beside it: give --parent FOLDER"):
        undo(new)
    assert hashes(undo(new, parent=far)[0]) == before


def test_a_way_back_that_is_damaged_or_of_another_model_is_refused(models, tmp_path):
    old, new = models
    difference.keep_difference(new, old)
    kept = (new / difference.PREVIOUS).read_bytes()
    (new / difference.PREVIOUS).write_bytes(kept[:-9])
    with pytest.raises(UserError, match=r"previous.safetensors is damaged"):
        undo(new, out=tmp_path / "back")
    (new / difference.PREVIOUS).write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(UserError, match="does not fit"):
        undo(new, out=tmp_path / "back")
    with pytest.raises(UserError, match="is not the model before the last lesson"):
        undo(new, out=tmp_path / "back", parent=new)
    with pytest.raises(UserError, match="does not say which model it was before"):
        undo(old)
    with pytest.raises(UserError, match="exists already"):
        undo(new, out=old)
    assert not (tmp_path / "back").exists() and not list(tmp_path.glob(".*"))


def test_the_commands(models, tmp_path, capsys):
    old, new = models
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (40, 48, 3), dtype=np.uint8)
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    assert dispatch(["log", str(new)]) == 0
    said = capsys.readouterr().out
    words = " ".join(said.split())  # long names go over several lines
    assert f"sha256 {history.digest(new)}" in words and f"began with sha256 {history.digest(old)}" in words
    assert "lesson 1      2026-01-02, passed" in said and "ring 41.2" in said and "star" not in said.split("scores")[1]
    assert dispatch(["diff", str(old), str(old), "--images", str(tmp_path / "images")]) == 0
    assert "3 images, 0.0 % of the pixels differ" in capsys.readouterr().out
    assert dispatch(["diff", str(old), str(new), "--images", str(tmp_path / "images")]) == 0
    assert "same pixels" in capsys.readouterr().out
    assert dispatch(["undo", str(new)]) == 0
    assert f"sha256 {history.digest(old)}" in capsys.readouterr().out and hashes(new) == hashes(old)
    with pytest.raises(UserError, match="holds no images"):
        dispatch(["diff", str(old), str(new), "--images", str(old)])
