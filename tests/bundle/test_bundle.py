"""Bundles: bit-identical round trips, atomic writing, and one sentence for everything that can be wrong."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from comastre.bundle import store
from comastre.class_table import ClassTable, LineageStep, class_table
from comastre.errors import UserError
from comastre.methods.comastre.config import ModelConfig
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter

NAMES = ("disk", "star", "ring")


def make_model(seed: int = 0) -> Segmenter:
    torch.manual_seed(seed)
    model = build_segmenter(ModelConfig.model_validate({"size": "tiny"}), [2])
    model.add_task(1)  # brings an auxiliary head
    return model.eval()


def make_classes() -> ClassTable:
    steps = (
        LineageStep(
            step=0, date="2024-06-17", data="shapes", new_classes=NAMES[:2], scores={"all": 61.25, "inc": None}
        ),
        LineageStep(step=1, date="2024-06-18", data="shapes", new_classes=NAMES[2:], scores={"all": 55.0, "inc": 20.0}),
    )
    colours = [(0, 0, 0), (1, 2, 3), (4, 5, 6), (7, 8, 9)]
    return class_table(NAMES, [2, 1], colours, lineage=steps)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store.save(make_model(), make_classes(), tmp_path_factory.mktemp("bundles") / "model")


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "model")


def edit_json(file: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_a_bundle_is_exactly_its_four_files(saved: Path) -> None:
    assert {file.name for file in saved.iterdir()} == set(store.FILES)
    assert [file.name for file in saved.parent.iterdir()] == ["model"]


def test_round_trip_is_bit_identical(saved: Path) -> None:
    model, loaded = make_model(), store.load(saved)
    expected, found = store.saved_tensors(model), loaded.model.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert loaded.classes == make_classes()
    assert loaded.model.tasks == (2, 1)
    assert not loaded.model.training


def test_loaded_model_computes_the_same_bits(saved: Path) -> None:
    images = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected, found = make_model().propose(images), store.load(saved).model.propose(images)
    assert torch.equal(expected.final.mask_logits, found.final.mask_logits)
    assert torch.equal(expected.final.objectness_logits, found.final.objectness_logits)


def test_saving_what_was_loaded_gives_the_same_files(saved: Path, tmp_path: Path) -> None:
    loaded = store.load(saved)
    again = store.save(loaded.model, loaded.classes, tmp_path / "again")
    assert all((again / name).read_bytes() == (saved / name).read_bytes() for name in store.FILES)


def test_the_auxiliary_head_stays_behind(saved: Path) -> None:
    assert make_model().auxiliary_head is not None
    assert not [name for name in load_file(saved / store.WEIGHTS) if "auxiliary" in name]


def test_loading_leaves_the_random_numbers_alone(saved: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    store.load(saved)
    assert torch.equal(torch.rand(3), expected)


def test_a_bundle_does_not_depend_on_where_its_weights_came_from(saved: Path, copy: Path) -> None:
    backbone = json.loads((saved / store.CONFIG).read_text())["model"]["backbone"]
    assert backbone["weights"] == "none"
    assert backbone["mean"] is not None
    # A shared file that asks for a download or another file is not obeyed.
    edit_json(copy / store.CONFIG, lambda content: content["model"]["backbone"].update(weights="hub"))
    assert store.load(copy).model.config.backbone.weights == "none"


def test_mean_and_deviation_survive_exactly(tmp_path: Path) -> None:
    given = {"size": "tiny", "backbone": {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.7)}}
    model = build_segmenter(ModelConfig.model_validate(given), [3])
    loaded = store.load(store.save(model, class_table(NAMES, [3]), tmp_path / "model")).model
    assert torch.equal(loaded.backbone.mean, model.backbone.mean)
    assert torch.equal(loaded.backbone.std, model.backbone.std)


def test_the_card_names_classes_scores_and_use(saved: Path) -> None:
    card = (saved / store.CARD).read_text()
    assert "| 0 | disk, star |" in card
    assert "| 1 | 2024-06-18 | shapes | all 55.0, inc 20.0 |" in card
    assert "comastre.load(" in card


def test_an_existing_model_is_replaced_only_when_asked(copy: Path) -> None:
    before = (copy / store.WEIGHTS).read_bytes()
    with pytest.raises(UserError, match="already holds a model"):
        store.save(make_model(1), make_classes(), copy)
    assert (copy / store.WEIGHTS).read_bytes() == before
    store.save(make_model(1), make_classes(), copy, overwrite=True)
    assert (copy / store.WEIGHTS).read_bytes() != before
    assert [file.name for file in copy.parent.iterdir()] == ["model"]


def test_other_peoples_files_are_never_replaced(copy: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt"):
        store.save(make_model(), make_classes(), copy, overwrite=True)
    assert (copy / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("broken", ["_write_json", "save_file", "flush"])
def test_a_write_that_fails_leaves_the_old_model(copy: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    before = (copy / store.WEIGHTS).read_bytes()
    monkeypatch.setattr(store, broken, full_disk)
    with pytest.raises(UserError, match=r"could not be written .* No space left"):
        store.save(make_model(1), make_classes(), copy, overwrite=True)
    assert (copy / store.WEIGHTS).read_bytes() == before
    assert [file.name for file in copy.parent.iterdir()] == ["model"]


class Killed(BaseException):
    """Stands for SIGKILL: no `except Exception` or clean-up of ours may count on seeing it."""


@pytest.mark.parametrize("renames", [0, 1])
def test_a_kill_between_the_renames_loses_nothing(copy: Path, monkeypatch: pytest.MonkeyPatch, renames: int) -> None:
    old = make_model()
    real, done = Path.rename, []

    def rename(self: Path, target: Path) -> Path:
        if len(done) == renames:
            raise Killed
        done.append(target)
        return real(self, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "rename", rename)
        store.save(make_model(1), make_classes(), copy, overwrite=True)
    found = store.load(copy).model.state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in store.saved_tensors(old).items())
    # The next save works and cleans up.
    store.save(make_model(1), make_classes(), copy, overwrite=True)
    store.load(copy)
    assert [file.name for file in copy.parent.iterdir()] == ["model"]


def truncate(directory: Path) -> None:
    file = directory / store.WEIGHTS
    file.write_bytes(file.read_bytes()[:-100])


def drop_tensor(directory: Path) -> None:
    tensors = load_file(directory / store.WEIGHTS)
    tensors.pop("mask_decoder.norm.weight")
    save_file(tensors, directory / store.WEIGHTS)


def add_tensor(directory: Path) -> None:
    save_file(load_file(directory / store.WEIGHTS) | {"extra": torch.zeros(1)}, directory / store.WEIGHTS)


def halve(directory: Path) -> None:
    tensors = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in load_file(directory / store.WEIGHTS).items()
    }
    save_file(tensors, directory / store.WEIGHTS)


def pickle_in_disguise(directory: Path) -> None:
    (directory / store.WEIGHTS).write_bytes(pickle.dumps({"weight": list(range(1000))}, protocol=2))


def torch_zip_in_disguise(directory: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, directory / store.WEIGHTS)


def pickle_instead(directory: Path) -> None:
    (directory / store.WEIGHTS).unlink()
    torch.save({}, directory / "model.pt")


def config_with(**changes: object) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / store.CONFIG, lambda content: content.update(changes))


def section_with(section: str, **changes: object) -> Callable[[Path], None]:
    return lambda directory: edit_json(
        directory / store.CONFIG, lambda content: content["model"][section].update(changes)
    )


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (truncate, r"model\.safetensors is damaged or cut short .* copy it again"),
    (lambda directory: (directory / store.WEIGHTS).write_bytes(b""), r"model\.safetensors is damaged or cut short"),
    (pickle_in_disguise, r"model\.safetensors is a pickle by another name"),
    (torch_zip_in_disguise, r"model\.safetensors is a pickle by another name"),
    (pickle_instead, r"model\.pt is a pickle, which could run code and is not read"),
    (drop_tensor, r"does not fit config\.json: tensor mask_decoder\.norm\.weight is missing"),
    (add_tensor, r"does not fit config\.json: tensor extra is not known"),
    (halve, r"does not fit config\.json: tensor .* is torch\.float16 instead of torch\.float32"),
    (
        section_with("mask_decoder", num_queries=7),
        r"does not fit config\.json: tensor .* is \(16, 64\) instead of \(7, 64\)",
    ),
    (section_with("mask_decoder", queries=7), r"config\.json: there is no field mask_decoder\.queries"),
    (section_with("pixel_decoder", dim=50), r"config\.json: pixel_decoder\.dim is 50 but"),
    (section_with("backbone", name="no_such_network"), "no_such_network"),
    (config_with(version=99), r"config\.json has format version 99, .* upgrade comastre"),
    (config_with(format="other"), "is not the configuration of a comastre model"),
    (config_with(tasks=[3]), r"has tasks of \(2, 1\) classes but config\.json of \(3,\)"),
    (config_with(tasks="2"), r"tasks is '2' but must be a list"),
    (config_with(model=None), "the section model is missing"),
    (lambda directory: (directory / store.CONFIG).unlink(), r"config\.json is missing"),
    (lambda directory: (directory / store.CLASSES).unlink(), r"classes\.json is missing"),
    (lambda directory: (directory / store.CONFIG).write_text("{"), r"config\.json cannot be read as JSON"),
    (lambda directory: (directory / store.CLASSES).write_text("[]"), r"classes\.json must hold a JSON object"),
    (lambda directory: (directory / store.CLASSES).write_text("{}"), r"classes\.json: classes is missing"),
    (lambda directory: shutil.rmtree(directory), "there is no model at"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=[str(index) for index in range(len(DAMAGE))])
def test_a_damaged_bundle_gives_one_clear_sentence(copy: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(copy)
    with pytest.raises(UserError, match=message):
        store.load(copy)


def test_a_file_in_place_of_a_folder_is_named(saved: Path) -> None:
    with pytest.raises(UserError, match="is a file, but a model is a folder"):
        store.load(saved / store.WEIGHTS)


def test_class_table_knows_tasks_and_refuses_doubles() -> None:
    table = make_classes()
    assert (table.names, table.tasks) == (NAMES, (2, 1))
    assert table.colours == ((0, 0, 0), (1, 2, 3), (4, 5, 6), (7, 8, 9))
    assert len(set(class_table([str(index) for index in range(150)], [150]).colours)) > 140
    with pytest.raises(ValueError, match="differ"):
        class_table(["disk", "disk"], [2])
