"""Objectness transfer (paper Table 4): stage 1 alone on COCO without the VOC classes, and runs that start from it."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from comastre.bundle import store
from comastre.cli import main as cli
from comastre.config.run import RunConfig
from comastre.config.settings import flatten, load_config
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.methods.comastre.segmenter import Segmenter
from comastre.section import merge
from comastre.stream.scenario import Task
from comastre.training.parts import default_parts, method_of
from comastre.training.run import run
from comastre.training.start import init_model
from comastre.training.stopping import Interrupted

TASK = Task(0, (1, 2, 3), (), (), (0,))
CATEGORIES = {1: "person", 18: "dog", 24: "zebra", 38: "kite"}
QUICK: dict[str, Any] = {
    "size": "tiny",
    "data": {"crop": 64, "workers": 0},
    "comastre": {"matching": {"points": 64}, "masks": {"points": 64}},
    "training": {"iterations": 2, "batch_size": 2, "accelerator": "cpu", "checkpoint_every": 1, "log_every": 1},
}


def write_coco(root: Path) -> Path:
    """Squares of two categories per image, in COCO's layout."""
    random = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3)):
        (root / f"{split}2017").mkdir(parents=True)
        annotations: list[dict[str, Any]] = []
        for image in range(count):
            pixels = random.integers(0, 80, (64, 80, 3), dtype=np.uint8)
            for place in range(2):
                category = list(CATEGORIES)[(image + 2 * place) % 4]
                x, y = (int(value) for value in random.integers(0, 30, 2))
                pixels[y : y + 30, x : x + 30] = (category * 5, 200, 100)
                outline = [x, y, x + 30, y, x + 30, y + 30, x, y + 30]
                annotations.append(
                    {"id": len(annotations), "image_id": image, "category_id": category, "segmentation": [outline]}
                )
            Image.fromarray(pixels).save(root / f"{split}2017" / f"{image}.jpg")
        content = {
            "images": [{"id": image, "file_name": f"{image}.jpg"} for image in range(count)],
            "annotations": annotations,
            "categories": [{"id": number, "name": name} for number, name in CATEGORIES.items()],
        }
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
    return root


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMASTRE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `comastre pretrain`, through the command line."""
    root = write_coco(tmp_path_factory.mktemp("coco") / "coco")
    out = tmp_path_factory.mktemp("pretrained") / "run"
    fields = [f"--{name}={value}" for name, value in flatten(QUICK).items()]
    with pytest.raises(SystemExit) as stop:
        cli.main(["pretrain", "coco-objectness", f"--data.root={root}", *fields, "--out", str(out)])
    assert stop.value.code == 0
    return out


def voc_like(pretrained: Path, **changes: Any) -> RunConfig:
    """A run whose model is that of the preset coco-objectness in the tiny size."""
    data = {"dataset": "shapes", "train_images": 30, "val_images": 2}
    settings = merge(QUICK, {"data": data, "continual": {"setting": "joint"}, "init": str(pretrained)})
    return load_config("voc-15-5", merge(settings, changes))


def test_pretraining_scores_recall_and_nothing_else(pretrained: Path):
    document = json.loads((pretrained / "results.json").read_text())
    (step,) = document["steps"]
    assert (document["method"], document["dataset"]) == ("objectness", "coco-without-voc")
    assert document["class_order"] == ["zebra", "kite"]
    assert step["miou"] == {"base": None, "inc": None, "all": None}
    assert (step["per_class"], step["errors"], document["avg"]) == ({}, {}, None)
    assert step["recall"]["all"] is not None
    assert set(step["recall_per_class"]) == {"zebra", "kite"}
    assert step["images"] == 6  # every image has one of the two left
    terms = json.loads((pretrained / "metrics.jsonl").read_text().splitlines()[0])
    assert {"objectness", "mask_bce", "mask_dice"} <= set(terms)
    assert "classification" not in terms
    assert not (pretrained / "examples").exists()  # there is no label to show
    results = Results.load(pretrained / "results.json")
    assert results.steps[0].summary("paper").startswith("recall of masks")


def test_its_bundle_is_a_model_with_the_one_class_object(pretrained: Path):
    loaded = store.load(pretrained / "steps" / "00")
    assert loaded.classes.names == ("object",)
    assert loaded.classes.lineage[0].data == "coco-without-voc stage 1 alone, 6 images"
    assert set(loaded.classes.lineage[0].scores) == {"recall", "confident_recall"}
    with torch.no_grad():
        stage_one = loaded.model.propose(torch.rand(1, 3, 64, 64))
        final = stage_one.final
        scores = loaded.model.recognise(stage_one.pixels, final.embeddings, final.mask_logits).class_logits.sigmoid()
    assert (scores == 1).all()  # so that a segment's score is its objectness


def test_it_is_finished_and_told_so_again(pretrained: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        cli.main(["pretrain", str(pretrained / "config.yaml"), "--out", str(pretrained)])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert "recall of masks" in said
    assert f"comastre train voc-15-1 --init {pretrained}" in said


def test_other_methods_are_not_pretraining(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(SystemExit) as stop:
        cli.main(["pretrain", "voc-15-1", "--out", str(tmp_path / "run")])
    assert stop.value.code == 1
    assert "voc-15-1 has the method comastre, which trains both stages: use `comastre train`" in capsys.readouterr().err


def stage_one(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in tensors.items() if not name.startswith("class_decoder.")}


@pytest.mark.parametrize("place", ["", "steps/00"])
def test_stage_one_is_taken_from_a_run_or_a_bundle_and_stage_two_is_not(pretrained: Path, place: str):
    config = voc_like(pretrained)
    torch.manual_seed(7)
    untouched = method_of(config).build([3])
    before = untouched.class_decoder.state_dict()
    torch.manual_seed(7)
    model = method_of(config).begin(TASK, None, init_model(str(pretrained / place)))
    given = stage_one(load_file(pretrained / "steps" / "00" / "model.safetensors"))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in given.items())
    assert any(name.startswith("mask_decoder.objectness_head") for name in given)
    after = model.class_decoder.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_resuming_neither_needs_nor_reads_it(pretrained: Path, tmp_path: Path):
    theirs = tmp_path / "theirs"
    shutil.copytree(pretrained, theirs)
    config = voc_like(theirs)

    def interrupted(data: Any, task: Any, *rest: Any) -> Iterator[Any]:
        for batch in default_parts().batches(data, task, *rest):
            os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    with pytest.raises(Interrupted):
        run(config, tmp_path / "run", parts=replace(default_parts(), batches=interrupted))
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    # Objectness is distilled from where it started; there are no old classes.
    assert {"score_kd", "mask_kd_bce", "mask_kd_dice", "position_kd"} <= set(first)
    assert not {"unmatched_class_kd", "matched_class_kd", "auxiliary"} & set(first)
    name = "mask_decoder.query_features.weight"
    given, after = load_file(theirs / "steps" / "00" / "model.safetensors")[name], load_file(saved)[f"model/{name}"]
    assert torch.allclose(given, after, atol=1e-3)  # one iteration away from where it started
    assert torch.equal(given, load_file(saved)[f"method/old_model/{name}"])
    shutil.rmtree(theirs)
    assert len(run(config, tmp_path / "run").steps) == 1
    with pytest.raises(UserError, match=rf"init: {theirs} -> None"):
        run(voc_like(theirs, init=None), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"comastre": {"pixel_decoder": {"dim": 32}}},
            "pixel_decoder.dim is 64 there but 32 here; set --pixel_decoder.dim 64",
        ),
        ({"comastre": {"mask_decoder": {"num_queries": 5}}}, "mask_decoder.num_queries is 20 there but 5 here"),
        ({"comastre": {"mask_decoder": {"heads": 2}}}, "mask_decoder.heads is 4 there but 2 here"),
        ({"backbone": {"name": "test_efficientnet"}}, "backbone.name is test_resnet there but test_efficientnet"),
    ],
)
def test_a_model_that_does_not_fit_is_named_by_its_field(
    pretrained: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
):
    with pytest.raises(UserError, match=sentence):
        run(voc_like(pretrained, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_not_there_is_named(tmp_path: Path, pretrained: Path):
    with pytest.raises(UserError, match=r"--init: there is no run or model at .*nowhere"):
        init_model(str(tmp_path / "nowhere"))
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(UserError, match="has no finished step yet"):
        init_model(str(tmp_path))


def test_the_backbone_of_a_run_with_init_is_not_downloaded(pretrained: Path, monkeypatch: pytest.MonkeyPatch):
    config = voc_like(pretrained, backbone={"weights": "hub"})
    model = method_of(config).begin(TASK, None, init_model(config.init))
    assert isinstance(model, Segmenter)
    assert (config.backbone.weights, model.config.backbone.weights) == ("hub", "none")


def test_table_4_can_be_run_at_the_scale_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fields = ["--training.iterations", "2", "--data.train_images", "20", "--data.val_images", "4"]
    stage_one, out = tmp_path / "objectness", tmp_path / "study"
    with pytest.raises(SystemExit) as stop:
        cli.main(["pretrain", "shapes-objectness", *fields, "--out", str(stage_one)])
    assert stop.value.code == 0 and "comastre train shapes-6-1 --init" in capsys.readouterr().out
    assert store.load(stage_one / "steps" / "00").classes.lineage[0].data == "shapes_other stage 1 alone, 20 images"
    study = ["compare", "table-4", "--scale", "shapes", "--init", str(stage_one), "--dry-run", "--out", str(out)]
    with pytest.raises(SystemExit) as stop:
        cli.main(study)
    assert stop.value.code == 0 and "6 runs" in capsys.readouterr().out
    assert isinstance(init_model(str(stage_one)), Segmenter)
