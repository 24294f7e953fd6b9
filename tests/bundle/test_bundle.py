"""Bundles: bit-identical round trips, atomic writing, and one sentence for everything that can be wrong."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from comastre.bundle import store
from comastre.bundle.store import Bundle
from comastre.class_table import ClassTable, LineageStep, class_table
from comastre.config.older import LOSS_SECTIONS
from comastre.config.run import RunConfig
from comastre.config.settings import load_config
from comastre.config.view import UNWRITTEN, ViewConfig
from comastre.errors import UserError
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.section import merge
from comastre.stream.scenario import Task
from comastre.training.parts import describe, method_of

NAMES = ("disk", "star", "ring")


def make_config(**changes: Any) -> RunConfig:
    """Every kind of setting differs from its default somewhere."""
    given = {
        "size": "tiny",
        "comastre": {"weights": {"auxiliary": 0.3}, "optimiser": {"clip": 0.7}, "inference": {"alpha": 0.4}},
        "data": {"crop": 96, "later_scale": [0.8, 1.8]},
        "training": {"iterations": 77, "batch_size": 4},
    }
    return RunConfig.model_validate(merge(given, changes))


def make_model(seed: int = 0, config: RunConfig | None = None, tasks: Sequence[int] = (2, 1)) -> Segmenter:
    config = config or make_config()
    torch.manual_seed(seed)
    return build_segmenter(config.method_settings.model(config.size, config.backbone), tasks).eval()


def make_bundle(seed: int = 0, **changes: Any) -> Bundle:
    config = make_config(**changes)
    return Bundle(make_model(seed, config), make_classes(), describe(config))


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
    return store.save(make_bundle(), tmp_path_factory.mktemp("bundles") / "model")


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
    expected, found = model.state_dict(), loaded.model.state_dict()
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
    again = store.save(loaded, tmp_path / "again")
    assert all((again / name).read_bytes() == (saved / name).read_bytes() for name in store.FILES)


def test_the_auxiliary_head_stays_behind(tmp_path: Path) -> None:
    config = make_config()
    method = method_of(config)
    model = method.begin(Task(0, (1, 2), (), (3,), (0,)), None)
    model = method.begin(Task(1, (3,), (1, 2), (), (0,)), model)
    assert [name for name in method.state() if name.startswith("auxiliary_head/")]
    folder = store.save(Bundle(model, make_classes(), describe(config)), tmp_path / "model")
    assert set(load_file(folder / store.WEIGHTS)) == set(make_model().state_dict())
    assert not [name for name in load_file(folder / store.WEIGHTS) if "auxiliary" in name]


def test_loading_leaves_the_random_numbers_alone(saved: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    store.load(saved)
    assert torch.equal(torch.rand(3), expected)


def test_a_bundle_does_not_depend_on_where_its_weights_came_from(saved: Path, copy: Path) -> None:
    backbone = json.loads((saved / store.CONFIG).read_text())["backbone"]
    assert backbone["weights"] == "none"
    assert backbone["mean"] is not None
    # A shared file that asks for a download or another file is not obeyed.
    edit_json(copy / store.CONFIG, lambda content: content["backbone"].update(weights="hub"))
    assert store.load(copy).model.config.backbone.weights == "none"


def test_mean_and_deviation_survive_exactly(tmp_path: Path) -> None:
    bundle = make_bundle(backbone={"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.7)})
    model, loaded = bundle.model, store.load(store.save(bundle, tmp_path / "model")).model
    assert model.backbone.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
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
        store.save(make_bundle(1), copy)
    assert (copy / store.WEIGHTS).read_bytes() == before
    store.save(make_bundle(1), copy, overwrite=True)
    assert (copy / store.WEIGHTS).read_bytes() != before
    assert [file.name for file in copy.parent.iterdir()] == ["model"]


def test_other_peoples_files_are_never_replaced(copy: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt"):
        store.save(make_bundle(), copy, overwrite=True)
    assert (copy / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("broken", ["_write_json", "written", "write_whole"])
def test_a_write_that_fails_leaves_the_old_model(copy: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    before = (copy / store.WEIGHTS).read_bytes()
    monkeypatch.setattr(store, broken, full_disk)
    with pytest.raises(UserError, match=r"could not be written .* No space left"):
        store.save(make_bundle(1), copy, overwrite=True)
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
        store.save(make_bundle(1), copy, overwrite=True)
    found = store.load(copy).model.state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in old.state_dict().items())
    # The next save works and cleans up.
    store.save(make_bundle(1), copy, overwrite=True)
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
        directory / store.CONFIG, lambda content: content["settings"][section].update(changes)
    )


def backbone_with(**changes: object) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / store.CONFIG, lambda content: content["backbone"].update(changes))


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
    (backbone_with(name="no_such_network"), "no_such_network"),
    (backbone_with(nme="x"), r"config\.json: there is no field nme"),
    (section_with("weights", auxiliary=-1), r"config\.json: weights\.auxiliary is -1 but must be greater"),
    (config_with(version=99), r"config\.json has format version 99, .* upgrade comastre"),
    (config_with(format="other"), "is not the configuration of a comastre model"),
    (config_with(tasks=[3]), r"has tasks of \(2, 1\) classes but config\.json of \(3,\)"),
    (config_with(tasks="2"), r"tasks is '2' but must be a list"),
    (config_with(version=1), r"config\.json: the section model is missing"),
    (config_with(settings=None), r"config\.json: settings is missing or no dict"),
    (config_with(backbone=3), r"config\.json: backbone is missing or no dict"),
    (config_with(size=None), r"config\.json: size is missing or no str"),
    (config_with(method=None), r"config\.json: method is missing or no str"),
    (config_with(method=["comastre"]), r"config\.json: method is missing or no str"),
    (config_with(method="os:system"), r"there is no method 'os:system'.*can be used where its method is installed"),
    (config_with(method="another-house"), r"there is no method 'another-house'.* where its method is installed"),
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


# --- what a bundle says of its model ---------------------------------------------------------------------------------


def test_a_bundle_names_its_method_with_its_settings_and_how_it_was_trained(saved: Path) -> None:
    content = json.loads((saved / store.CONFIG).read_text())
    assert list(content) == [
        "format", "version", "written_by", "method", "tasks", "size", "backbone", "settings", "view", "training",
    ]  # fmt: skip
    assert (content["version"], content["method"], content["tasks"], content["size"]) == (2, "comastre", [2, 1], "tiny")
    found, config = store.load(saved).description, make_config()
    assert (found.method, found.size, found.settings) == ("comastre", "tiny", config.method_settings)
    assert found.training["data"]["crop"] == 96 and found.training["training"]["iterations"] == 77
    assert "dataset" not in found.training["data"] and "devices" not in found.training["training"]
    assert store.described(saved) == content and store.described(saved / "nowhere") == {}
    assert "CoMasTRe, size tiny (test_resnet)" in (saved / store.CARD).read_text()


@pytest.mark.parametrize("method", ["finetune", "joint"])
def test_a_bundle_of_another_method_is_loaded_as_that(tmp_path: Path, method: str) -> None:
    loaded = store.load(store.save(make_bundle(method=method), tmp_path / "model"))
    assert loaded.description.method == method
    assert torch.equal(loaded.model.mask_decoder.query_features.weight, make_model().mask_decoder.query_features.weight)


def test_how_it_learns_may_have_fields_of_another_version_what_it_is_may_not(copy: Path) -> None:
    def from_the_future(content: dict[str, Any]) -> None:
        content["settings"]["weights"]["of the future"] = 3
        content["settings"]["future"] = {"x": 1}
        content["training"]["future"] = 1

    edit_json(copy / store.CONFIG, from_the_future)
    assert store.load(copy).description.settings == make_config().method_settings
    section_with("inference", of_the_future=3)(copy)
    with pytest.raises(UserError, match=r"there is no field inference\.of_the_future"):
        store.load(copy)


def test_a_bundle_that_names_no_merge_was_scored_with_the_strict_one(saved: Path, copy: Path) -> None:
    assert store.load(saved).model.config.inference.merge == "mask2former"
    edit_json(copy / store.CONFIG, lambda content: content["settings"]["inference"].pop("merge"))
    loaded = store.load(copy)
    assert loaded.model.config.inference.merge == "strict"
    assert loaded.model.config.inference.alpha == 0.4


def test_a_bundle_says_at_which_size_its_model_sees_images(saved: Path, copy: Path, tmp_path: Path) -> None:
    assert store.load(saved).description.view == ViewConfig(short_side=(96,), max_side=2048)  # the crop
    other = make_bundle(view={"short_side": [224, 320], "max_side": 999})
    loaded = store.load(store.save(other, tmp_path / "other"))
    assert loaded.description.view == ViewConfig(short_side=(224, 320), max_side=999)
    edit_json(copy / store.CONFIG, lambda content: content.pop("view"))
    assert store.load(copy).description.view == UNWRITTEN == ViewConfig(short_side="native", max_side=None)


def test_loading_a_bundle_never_imports_what_it_names(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the registry decides what code a method's name stands for."""
    imported: list[str] = []
    monkeypatch.setattr("importlib.import_module", lambda name, *rest: imported.append(name))
    for name in ("os:system", "os", "comastre.methods.comastre.method:comastre", "../evil"):
        config_with(method=name, implementation=name)(copy)
        with pytest.raises(UserError, match="there is no method") as refused:
            store.load(copy)
        assert "\n" not in str(refused.value)
    assert imported == []


def test_a_table_of_other_tasks_is_not_saved(tmp_path: Path) -> None:
    bundle = make_bundle()
    with pytest.raises(ValueError, match=r"tasks of \(3,\) classes, the model of \(2, 1\)"):
        store.save(replace(bundle, classes=class_table(NAMES, [3])), tmp_path / "model")


# --- version 1 -------------------------------------------------------------------------------------------------------

_RATES = ("learning_rate", "later_learning_rate", "backbone_factor", "later_backbone_factor")
_RATES += ("weight_decay", "clip", "warmup", "power")


def make_version_1(directory: Path, recorded: bool = True) -> Path:
    """The files as comastre 0.1 wrote them; not every model had its training recorded."""
    content = json.loads((directory / store.CONFIG).read_text())
    settings, training, backbone = content["settings"], content["training"], dict(content["backbone"])
    frozen = backbone.pop("freeze_batch_norm")
    backbone |= {"frozen_batch_norm": frozen == "always"}
    del backbone["freeze_batch_norm_weights"]
    sections = ("pixel_decoder", "mask_decoder", "class_decoder", "inference")
    model = {"size": content["size"], "backbone": backbone, **{name: settings[name] for name in sections}}
    amounts = training["training"]
    recipe = {
        "data": training["data"],
        **{name: settings[name] for name in LOSS_SECTIONS},
        "training": {
            **{name: amounts[name] for name in ("iterations", "iterations_per_class", "batch_size")},
            **{name: settings["optimiser"][name] for name in _RATES},
            "freeze_batch_norm_later": frozen != "none",
            "precision": amounts["precision"],
        },
    }
    old = {"format": "comastre", "version": 1, "written_by": "comastre 0.1.0", "tasks": content["tasks"]}
    (directory / store.CONFIG).write_text(json.dumps({**old, "model": model}, indent=2))
    edit_json(directory / store.CLASSES, lambda classes: classes.update(training=recipe if recorded else {}))
    return directory


def test_a_bundle_of_version_1_is_the_same_model(saved: Path, copy: Path) -> None:
    expected, found = store.load(saved), store.load(make_version_1(copy))
    assert (found.classes, found.description) == (expected.classes, replace(expected.description, view=UNWRITTEN))
    images = torch.rand(2, 3, 48, 64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        first, second = expected.model(images), found.model(images)
    assert torch.equal(first.stage_one.final.mask_logits, second.stage_one.final.mask_logits)
    assert torch.equal(first.stage_one.final.objectness_logits, second.stage_one.final.objectness_logits)
    assert torch.equal(first.recognition.class_logits, second.recognition.class_logits)


def test_statistics_that_followed_the_data_in_version_1_still_do(tmp_path: Path) -> None:
    folder = store.save(make_bundle(backbone={"freeze_batch_norm": "none"}), tmp_path / "model")
    found = store.load(make_version_1(folder)).description.backbone
    assert found.freeze_batch_norm == "none"


def test_version_1_without_a_record_was_trained_as_models_of_its_size_are(copy: Path) -> None:
    found, usual = store.load(make_version_1(copy, recorded=False)).description, load_config("shapes-6-2")
    assert found.settings.loss == usual.method_settings.loss
    assert found.settings.optimiser == usual.method_settings.optimiser
    # What the model is, it says itself.
    ours = make_config().method_settings
    assert (found.settings.pixel_decoder, found.settings.inference) == (ours.pixel_decoder, ours.inference)
    assert found.training["data"]["later_scale"] == [0.8, 1.8]


def test_saved_again_a_bundle_of_version_1_is_one_of_today(saved: Path, copy: Path, tmp_path: Path) -> None:
    again = store.save(store.load(make_version_1(copy)), tmp_path / "again")
    assert json.loads((again / store.CLASSES).read_text()) == json.loads((saved / store.CLASSES).read_text())
    today = json.loads((saved / store.CONFIG).read_text())
    native = {"view": {"short_side": "native", "max_side": None}}  # which version 1 did not say
    assert json.loads((again / store.CONFIG).read_text()) == {**today, **native}
    assert all((again / name).read_bytes() == (saved / name).read_bytes() for name in (store.WEIGHTS, store.CARD))


def test_a_record_of_version_1_may_be_of_another_version(copy: Path) -> None:
    make_version_1(copy)
    edit_json(copy / store.CLASSES, lambda classes: classes["training"]["weights"].update({"of the future": 3.0}))
    assert store.load(copy).description.settings == make_config().method_settings
    edit_json(copy / store.CLASSES, lambda classes: classes.update(training=3))
    assert store.load(copy).model.tasks == (2, 1)


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


def test_one_flipped_bit_in_the_weights_is_noticed(tiny_bundle: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(tiny_bundle, tmp_path / "copied")
    content = (copied / "model.safetensors").read_bytes()
    for place in (len(content) - 40, len(content) // 2, 8 + content[8:].index(b"checksum") + 12):
        flipped = bytearray(content)
        flipped[place] ^= 1
        (copied / "model.safetensors").write_bytes(bytes(flipped))
        with pytest.raises(UserError, match=r"is damaged|does not fit|NaN"):
            store.load(copied)
    # Another program's file, or one of an earlier version, says nothing of its bytes.
    save_file(load_file(tiny_bundle / "model.safetensors"), copied / "model.safetensors")
    store.load(copied)
