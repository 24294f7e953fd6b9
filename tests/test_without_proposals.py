"""A model that labels pixels and proposes no masks, through everything that reads a segmentation."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

from comastre.bundle.store import Bundle
from comastre.class_table import class_table
from comastre.config.run import RunConfig
from comastre.config.settings import write_config
from comastre.data.dataset import Sample
from comastre.data.sources import parse_source
from comastre.errors import UserError
from comastre.evaluation.evaluate import EvaluationPlan
from comastre.evaluation.examples import record_examples
from comastre.evaluation.model import evaluate_model
from comastre.evaluation.results import Results
from comastre.evaluation.scoring import score
from comastre.evaluation.scoring_text import render
from comastre.prediction.model import Model
from comastre.report.terminal import show
from comastre.report.write import write_report
from comastre.segmentation import Segmentation
from comastre.stream.scenario import build_scenario
from comastre.training.parts import describe

NAMES = ("dark", "middle", "bright")
SENTENCE = "labels pixels and proposes no masks: there is no recall and no split into objectness and recognition."


class Brightness(nn.Module):
    """Labels pixels by their brightness: from 64 on dark, from 128 on middle, from 192 on bright."""

    recognises = True

    def __init__(self, learned: int = 3) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(255.0))
        self.learned = learned

    def segment(
        self,
        images: Tensor,
        padding: Tensor | None = None,
        sizes: Sequence[tuple[int, int]] | None = None,
        original_sizes: Sequence[tuple[int, int]] | None = None,
    ) -> list[Segmentation]:
        assert not self.training
        values = images.float().mean(dim=1)  # (B, H, W)
        labels = ((values if images.dtype == torch.uint8 else values * self.scale.detach()) // 63.9).long()
        labels = torch.where(labels > self.learned, 0, labels)
        sizes = sizes or [tuple(images.shape[2:])] * len(images)
        cut = [one[:height, :width] for one, (height, width) in zip(labels, sizes, strict=True)]
        return [Segmentation.of_labels(one, torch.full(one.shape, 0.75)) for one in cut]


def picture(number: int) -> tuple[np.ndarray, np.ndarray]:
    """An image in four columns, and labels that call the first rows of the bright column middle."""
    labels = np.repeat(np.arange(4, dtype=np.uint8), 8)[None].repeat(24 + 2 * number, axis=0)
    image = np.repeat((labels * 64 + 20)[..., None], 3, axis=2).astype(np.uint8)
    labels = labels.copy()
    labels[:6, 24:] = 2
    return image, labels


@dataclass(frozen=True)
class Columns:
    """Four images, all with the same columns."""

    name: str = "columns"
    class_names: tuple[str, ...] = NAMES
    colours: tuple[tuple[int, int, int], ...] = ((0, 0, 0), (90, 0, 0), (0, 160, 0), (0, 0, 250))
    has_background: bool = True

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Sample:
        return Sample(*picture(index), None, f"column-{index}")

    def presence(self) -> list[frozenset[int]]:
        return [frozenset({1, 2, 3})] * len(self)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of such a model: two steps, evaluated and with pictures, as the loop writes them."""
    folder = tmp_path_factory.mktemp("runs") / "brightness"
    folder.mkdir()
    dataset, model = Columns(), Brightness()
    scenario = build_scenario(dataset.presence(), 3, "2-1", "overlapped")
    results = Results("plop", "columns", "2-1", "overlapped", 0, True, NAMES)
    for step, learned in enumerate((2, 3)):
        model.learned = learned
        model.train()
        results = results.add(evaluate_model(model, EvaluationPlan(dataset, scenario, step, batch_size=2)))
        assert model.training
        record_examples(model.eval().segment, folder, dataset, scenario, step)
    results.write(folder / "results.json")
    config = RunConfig.model_validate({"continual": {"setting": "2-1"}})
    write_config(config, folder / "config.yaml")
    return folder


@pytest.fixture(scope="module")
def model() -> Model:
    classes = class_table(NAMES, [2, 1], Columns().colours)
    return Model(Bundle(Brightness(), classes, describe(RunConfig(view={"short_side": "native"}))))


def test_scores_are_there_and_those_of_proposals_are_not(run_folder: Path) -> None:
    results = Results.load(run_folder / "results.json")
    first, last = results.steps
    assert (last.recall, last.recall_per_class, last.errors, last.alpha) == (None, {}, {}, None)
    # The four images have 24, 26, 28 and 30 rows, and 8 columns of each label; 6 rows of bright are true middle.
    rows = 24 + 26 + 28 + 30
    assert last.per_class == pytest.approx(
        {"background": 100.0, "dark": 100.0, "middle": 100 * rows / (rows + 24), "bright": 100 * (rows - 24) / rows}
    )
    # Bright is background to the first step's model, which is right about all but what is called middle.
    assert first.per_class["background"] == pytest.approx(100 * (2 * rows - 24) / (2 * rows))
    document = json.loads((run_folder / "results.json").read_text())
    assert [step["recall"] for step in document["steps"]] == [None, None]


def test_examples_are_the_models_labels(run_folder: Path) -> None:
    with Image.open(run_folder / "examples" / "step-00" / "00.png") as found:
        assert np.asarray(found)[-1].tolist() == np.repeat([0, 1, 2, 0], 8).tolist()
    with Image.open(run_folder / "examples" / "step-01" / "00.png") as found:
        assert np.asarray(found)[-1].tolist() == np.repeat([0, 1, 2, 3], 8).tolist()


def test_the_report_leaves_proposals_out_and_says_so(run_folder: Path, tmp_path: Path) -> None:
    groups = write_report([run_folder], tmp_path / "page.html", figures=tmp_path / "f", tables=tmp_path / "t")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert SENTENCE in page
    assert "Did it forget?" in page and "IoU of every class after every step" in page
    for absent in ("Average recall", "True masks of the base classes", "Every class after the last step"):
        assert absent not in page
    assert {file.stem for file in (tmp_path / "f").iterdir()} == {"scores", "classes", "forgetting", "examples"}
    assert {file.stem for file in (tmp_path / "t").iterdir()} == {"scores", "classes"}
    with (tmp_path / "t" / "scores.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2"]
    screen = StringIO()
    show(groups, "paper", Console(file=screen, width=100))
    assert SENTENCE in screen.getvalue()


def test_a_prediction_has_everything_but_proposals(model: Model, tmp_path: Path) -> None:
    image, _ = picture(0)
    found = model.predict(image)
    assert np.array_equal(found.label_map, np.repeat(np.arange(4), 8)[None].repeat(24, axis=0))
    assert [(each.name, each.label, each.score, each.area, each.box, each.query) for each in found.segments] == [
        ("dark", 1, 0.75, 192, (8, 0, 8, 24), None),
        ("middle", 2, 0.75, 192, (16, 0, 8, 24), None),
        ("bright", 3, 0.75, 192, (24, 0, 8, 24), None),
    ]
    for name in ("objectness", "class_scores", "proposals"):
        with pytest.raises(UserError, match=f"proposes no masks, so a prediction has no {name}: use label_map"):
            getattr(found, name)
    assert found.plot().width > 640
    labels, _, segments = found.save(tmp_path / "photo")
    with Image.open(labels) as written:
        assert np.array_equal(np.asarray(written), found.label_map)
    assert [each["class"] for each in json.loads(segments.read_text())["segments"]] == list(NAMES)
    assert [each["category_id"] for each in found.to_coco(7)] == [1, 2, 3]
    assert found.to_coco(7)[0]["bbox"] == [8, 0, 8, 24]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for number in range(3):
        for kind, pixels in zip(("images", "masks"), picture(number), strict=True):
            (root / kind).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(root / kind / f"{number}.png")
    (root / "classes.txt").write_text("\n".join(NAMES) + "\n")
    return root


def test_eval_says_why_there_is_no_recall(data: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    scores = score(model, parse_source(data))
    text = render(scores, "brightness")
    lines = [line.split() for line in text.splitlines()]
    assert ["class", "step", "IoU"] in lines
    assert ["dark", "0", "100.0"] in lines
    assert text.endswith(
        "the model labels pixels and proposes no masks: there is no recall and no count of missed masks"
    )
    assert "confident" not in text
    written = scores.as_json()
    assert (written["recall"], written["alpha"], written["errors"]) == (None, None, {})
    assert written["per_class"]["dark"] == 100.0
