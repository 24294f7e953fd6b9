"""`comastre eval`: scores on any data, against counting by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import comastre
from comastre.cli import main as cli
from comastre.data.sources import parse_source
from comastre.evaluation.scoring import Options, Scores, score
from comastre.evaluation.scoring_text import render

NAMES = ("star", "sheep", "disk")  # another order than the model's, one unknown, and no ring


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images, half of each labelled at random in stripes."""
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(3)
    for number in range(6):
        for kind in ("images", "masks"):
            (root / kind).mkdir(exist_ok=True)
        pixels = random.integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{number}.png")
        mask = np.zeros((40, 48), np.uint8)
        mask[:20] = random.integers(0, len(NAMES) + 1, 8).repeat(6)[None]
        mask[20:24] = 255
        Image.fromarray(mask).save(root / "masks" / f"{number}.png")
    (root / "classes.txt").write_text("\n".join(NAMES) + "\n")
    return root


def by_hand(bundle: Path, data: Path, labels: list[int], known: int) -> np.ndarray:
    """IoU of labels 0..known, classes beyond counted as background."""
    model = comastre.load(bundle)
    table = np.array([0, *labels] + [255] * 252)
    hits, unions = np.zeros(known + 1), np.zeros(known + 1)
    for number in range(6):
        truth = table[np.asarray(Image.open(data / "masks" / f"{number}.png"))]
        truth = np.where((truth > known) & (truth != 255), 0, truth)
        found = model.predict(data / "images" / f"{number}.png").label_map
        for label in range(known + 1):
            there, said = (truth == label), (found == label) & (truth != 255)
            hits[label] += (there & said).sum()
            unions[label] += (there | said).sum()
    return 100 * hits / unions


@pytest.fixture(scope="module")
def scores(tiny_bundle: Path, data: Path) -> Scores:
    return score(comastre.load(tiny_bundle), parse_source(data))


def test_scores_are_those_counted_by_hand(scores: Scores, tiny_bundle: Path, data: Path) -> None:
    background, disk, star, _ = by_hand(tiny_bundle, data, [2, 4, 1], known=3)
    found = scores.result.per_class
    assert found["disk"] == pytest.approx(disk)
    assert found["star"] == pytest.approx(star)
    assert found["background"] == pytest.approx(background)
    assert found["ring"] is None  # the data cannot tell
    paper, classes = scores.result.conventions["paper"], scores.result.conventions["no_background"]
    assert paper.base == pytest.approx((background + disk + star) / 3)
    assert classes.all == pytest.approx((disk + star) / 2)
    assert scores.result.conventions["future_ignored"].base != paper.base  # sheep are left out there
    assert scores.images == 6


def test_base_and_increment_are_the_models_own_steps(scores: Scores, tiny_bundle: Path, data: Path) -> None:
    assert scores.tasks == (("disk", "star"), ("ring",))
    mapped = score(comastre.load(tiny_bundle), parse_source(data), {"sheep": "ring"})
    ring = by_hand(tiny_bundle, data, [2, 3, 1], known=3)[3]
    assert mapped.result.conventions["paper"].inc == pytest.approx(ring)
    assert len(mapped.result.task_confusion) == 3


def test_every_true_mask_is_counted_once(scores: Scores) -> None:
    errors = scores.result.errors
    counts = [errors[name] for name in ("disk", "star")]
    assert all(each.not_proposed + each.below_alpha + each.wrong_class + each.right > 0 for each in counts)
    assert sum(vars(errors["ring"]).values()) == 0


def test_batches_score_the_same(scores: Scores, tiny_bundle: Path, data: Path) -> None:
    together = score(comastre.load(tiny_bundle), parse_source(data), options=Options(batch_size=4))
    for name, value in scores.result.per_class.items():
        assert together.result.per_class[name] == (None if value is None else pytest.approx(value, abs=0.2))


def test_the_text_says_what_was_and_what_was_not_scored(scores: Scores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = render(scores, "my-model")
    assert "my-model: 3 classes in 2 steps" in text
    assert ": 6 images, 3 classes" in text
    assert "not scored  ring: not in the data" in text
    assert "sheep: not known to the model" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["ring", "1", "-", "-", "-", "-", "-", "-", "-"] in lines
    paper = scores.result.conventions["paper"]
    assert ["paper", f"{paper.base:.1f}", "-", f"{paper.all:.1f}"] in [line[:4] for line in lines]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> SimpleNamespace:
    with pytest.raises(SystemExit) as stop:
        cli.main(["eval", *map(str, arguments)])
    said = capsys.readouterr()
    return SimpleNamespace(code=stop.value.code, out=said.out, err=said.err)


def test_the_command_maps_prints_and_writes(
    tiny_bundle: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "map.yaml").write_text("sheep: ring\nstar: ignore\n")
    out = tmp_path / "new" / "scores.json"
    done = run(capsys, tiny_bundle, "--data", data, "--map", tmp_path / "map.yaml", "--out", out)
    assert done.code == 0, done.err
    assert "sheep as ring" in done.out
    written = json.loads(out.read_text())
    assert written["map"] == {"sheep": "ring", "disk": "disk"}
    assert written["ignored"] == ["star"]
    assert written["not_in_the_data"] == ["star"]
    assert written["per_class"].keys() == {"background", "disk", "star", "ring"}
    assert written["per_class"]["star"] is None
    assert written["conventions"].keys() == {"paper", "no_background_in_base", "future_ignored", "no_background"}
    assert written["miou"] == written["conventions"]["paper"]
    again = run(capsys, tiny_bundle, "--data", data, "--out", out)
    assert again.code == 1
    assert "is already there: choose another name, or give --overwrite" in again.err
    assert json.loads(out.read_text()) == written


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data", "nowhere"], 1, "there is no data nowhere"),
        (["--data", "shapes", "--map", "none.yaml"], 1, "--map none.yaml cannot be read"),
        (["--data", "shapes", "--batch-size", "0"], 1, "--batch-size must be 1 or more"),
        (["--data", "shapes", "--split", "test"], 2, "invalid choice"),
        ([], 2, "--data"),
    ],
)
def test_errors_are_one_sentence(
    tiny_bundle: Path, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(capsys, tiny_bundle, *arguments)
    assert done.code == code
    assert message in done.err
    assert done.err.count("\n") == 1
