"""Presets, YAML files, bases, writing and comparing configurations."""

from __future__ import annotations

from pathlib import Path

import pytest

from comastre.config.run import RunConfig
from comastre.config.settings import (
    Difference,
    differences,
    dump_yaml,
    flatten,
    listed,
    load_config,
    preset_names,
    presets,
    read_settings,
    validate,
    write_config,
)
from comastre.errors import UserError

PAPER_PRESETS = {
    "voc-19-1", "voc-15-5", "voc-15-1", "voc-10-1", "voc-joint",
    "ade20k-100-50", "ade20k-100-10", "ade20k-100-5", "ade20k-50-50", "ade20k-joint",
}  # fmt: skip
OBJECTNESS_PRESETS = {"coco-objectness", "coco-objectness-cpu", "shapes-objectness"}
CPU_PRESETS = {"voc-19-1-cpu", "voc-15-5-cpu", "voc-15-1-cpu"}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_all_presets_are_there_and_say_what_they_are_and_need() -> None:
    assert set(preset_names()) == PAPER_PRESETS | CPU_PRESETS | {
        *OBJECTNESS_PRESETS,
        "demo",
        "shapes-6-2",
        "shapes-6-1",
        "shapes-joint",
    }
    assert all(preset.about and preset.needs for preset in presets())


@pytest.mark.parametrize("name", sorted(set(preset_names()) - OBJECTNESS_PRESETS))
def test_every_preset_validates_and_its_name_says_its_setting(name: str) -> None:
    config = load_config(name)
    dataset, _, setting = ("shapes-6-2" if name == "demo" else name.removesuffix("-cpu")).partition("-")
    assert (config.data.dataset, config.continual.setting) == (dataset, setting)
    assert config.method == ("joint" if setting == "joint" else "comastre")
    assert validate(config.model_dump(mode="json"), name) == config


@pytest.mark.parametrize(
    ("name", "starts"),
    [("coco-objectness", "voc-15-1"), ("coco-objectness-cpu", "voc-15-1-cpu"), ("shapes-objectness", "shapes-6-1")],
)
def test_pretraining_has_the_model_of_the_run_that_starts_from_it(name: str, starts: str) -> None:
    config = load_config(name)
    other = load_config(starts)
    assert config.method_settings.model(config.size, config.backbone) == other.method_settings.model(
        other.size, other.backbone
    )
    assert (config.view, config.data.crop) == (other.view, other.data.crop)
    assert config.method == "objectness" and config.data.dataset != other.data.dataset
    if config.data.dataset == "coco":
        assert config.data.without == ("voc",)
        assert (config.data.coco_labels, config.data.without_removes) == ("instances", "objects")


@pytest.mark.parametrize("name", sorted(PAPER_PRESETS))
def test_paper_presets_have_the_papers_hyperparameters(name: str) -> None:
    config = load_config(name)
    ours, optimiser = config.method_settings, config.method_settings.optimiser
    is_voc = name.startswith("voc")
    assert config.size == "r101"
    assert ours.mask_decoder.num_queries == (20 if is_voc else 100)
    assert (config.training.iterations, config.training.iterations_per_class) == (
        (20_000, 1_000) if is_voc else (160_000, 500)
    )
    assert (optimiser.learning_rate, optimiser.later_learning_rate) == (1e-4, 5e-5)
    assert (optimiser.clip, optimiser.weight_decay, optimiser.backbone_factor) == (0.01, 0.05, 0.1)
    assert ours.matching.objectness_cost == 0
    assert not ours.class_decoder.masked_attention
    assert not ours.classification.negatives_for_new
    assert not ours.classification.negatives_for_old


def test_shapes_presets_use_the_switches_of_small_data() -> None:
    config = load_config("shapes-6-2")
    ours = config.method_settings
    assert config.size == "tiny"
    assert ours.class_decoder.masked_attention
    assert ours.matching.objectness_cost == 2
    assert config.data.crop == 64


def test_a_size_override_fills_in_that_sizes_defaults() -> None:
    config = load_config("shapes-6-2", {"size": "small"})
    assert config.backbone.name == "tf_efficientnet_lite0"
    assert config.method_settings.pixel_decoder.dim == 128


def test_file_with_a_base_preset_changes_only_what_it_says(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.yaml", "base: voc-15-5\ntraining: {iterations: 7}\n")
    assert differences(load_config("voc-15-5"), load_config(file)) == [Difference("training.iterations", 20000, 7)]


def test_base_may_be_a_file_beside_and_bases_may_chain(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "first.yaml", "base: shapes-6-2\nseed: 4\n")
    file = write(tmp_path / "second.yaml", "base: deep/first.yaml\ndata: {flip: false}\n")
    settings = read_settings(file)
    assert settings["seed"] == 4
    assert settings["data"]["dataset"] == "shapes"
    assert settings["data"]["flip"] is False


def test_a_base_that_leads_back_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "base: b.yaml\n")
    write(tmp_path / "b.yaml", "base: a.yaml\n")
    with pytest.raises(UserError, match="leads back to itself"):
        load_config(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training:\n  iterations: [1\nseed: 0\n", r"not valid YAML in line \d"),
        (
            "seed: 1\ntraining: {nodes: 1}\ntraining: {devices: 1}\n",
            "not valid YAML in line 3: training is given twice",
        ),
        ("seed: " + "x" * 500, r"seed is 'x{76}\.\.\. but must be a valid integer"),
        ("- a\n- b\n", "must hold .* but holds list"),
        ("training: {iteratons: 3}\n", r"no field training\.iteratons: did you mean training\.iterations"),
        ("trainig: {iterations: 3}\n", "there is no field trainig"),
        ("training: {iterations: many}\n", r"training\.iterations is 'many' but must be a valid integer"),
        ("training: {precision: 8-bit}\n", r"precision is '8-bit' but must be '32-true', 'bf16-mixed' or '16-mixed'"),
        ("training: {batch_size: 3, devices: 2}\n", "batch_size is 3 but must be a multiple of"),
        ("training: 3\n", "training is 3 but must be a section"),
        (
            "comastre: {weights: {objectnes: 1}}\n",
            r"no field comastre\.weights\.objectnes: did you mean comastre\.weights",
        ),
        ("comastre: {weights: {objectness: -1}}\n", r"comastre\.weights\.objectness is -1 but must be greater than"),
        ("comastre: {optimiser: 3}\n", r"comastre\.optimiser is 3 but must be a section"),
        ("comastre: 3\n", "comastre is 3 but must be a section"),
        ("comastre: {pixel_decoder: {dim: 50}}\n", r"comastre: pixel_decoder\.dim is 50 but GroupNorm needs"),
        ("size: huge\n", "size is 'huge' but must be 'tiny', 'small', 'r50' or 'r101'"),
        ("backbone: {nme: x}\n", r"no field backbone\.nme: did you mean backbone\.name"),
        ("method: comaster\n", "no method 'comaster': did you mean comastre"),
        ("base: nowhere\n", "nowhere is neither a preset nor a file"),
        ("seed: !!python/object/apply:os.getcwd []\n", "not valid YAML in line 1"),
    ],
)
def test_a_bad_file_gives_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "bad.yaml", text)
    with pytest.raises(UserError, match=message) as caught:
        load_config(file)
    assert "\n" not in str(caught.value)


def test_a_missing_file_names_the_nearest_preset() -> None:
    with pytest.raises(UserError, match="did you mean voc-15-5"):
        load_config("voc-15-55")


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        load_config(tmp_path)


@pytest.mark.parametrize("name", ["shapes-6-2", "ade20k-100-5"])
def test_written_configuration_reads_back_equal(tmp_path: Path, name: str) -> None:
    changes = {
        "continual": {"class_order": [2, 1]},
        "comastre": {"optimiser": {"learning_rate": 3e-7}},
        "data": {"root": "a: ü #"},
    }
    config = load_config(name, changes)
    write_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_dump_holds_every_field() -> None:
    assert "importance: 0.75" in dump_yaml(RunConfig())


def test_differences_of_equal_configurations_are_none() -> None:
    assert differences(RunConfig(), RunConfig()) == []


def test_differences_read_as_sentences() -> None:
    old = load_config("shapes-6-2")
    found = differences(
        old, load_config("shapes-6-2", {"comastre": {"optimiser": {"clip": 2.0}}, "data": {"crop": 96}})
    )
    assert [str(each) for each in found] == ["comastre.optimiser.clip: 1.0 -> 2.0", "data.crop: 64 -> 96"]
    assert listed(found) == "comastre.optimiser.clip: 1.0 -> 2.0; data.crop: 64 -> 96"


def test_a_methods_part_lies_over_its_own_preset_and_under_what_is_built_on_it(tmp_path: Path) -> None:
    # The part of CoMasTRe for voc-15-5-cpu has 0.5; 19-1 is built on it and has a part of its own.
    assert load_config("voc-19-1-cpu").method_settings.inference.alpha == 0.5
    assert load_config("voc-19-1-cpu").method_settings.weights.negatives_for_new == 5.0
    assert load_config("voc-15-5-cpu").method_settings.weights.negatives_for_new == 1.0
    file = write(tmp_path / "mine.yaml", "base: voc-15-5-cpu\ncomastre: {inference: {alpha: 0.7}}\n")
    assert load_config(file).method_settings.inference.alpha == 0.7
    assert load_config(file, {"comastre": {"inference": {"alpha": 0.9}}}).method_settings.inference.alpha == 0.9
    # Data that a method wants otherwise is its own part's matter.
    assert read_settings("shapes-6-2")["data"]["later_scale"] == [0.8, 1.8]


@pytest.mark.parametrize("method", ["finetune", "joint", "objectness"])
def test_variants_share_the_section_and_its_presets(method: str) -> None:
    changed = load_config("shapes-6-2", {"method": method, "comastre": {"weights": {"auxiliary": 0.3}}})
    assert changed.method == method
    assert changed.method_settings.matching.objectness_cost == 2
    assert changed.method_settings.weights.auxiliary == 0.3
    assert "comastre" in changed.model_dump() and "method_settings" not in changed.model_dump()


def test_the_section_may_be_given_typed_or_as_a_dict_and_is_filled_from_the_size() -> None:
    ours = load_config("shapes-6-2").method_settings
    assert RunConfig(size="tiny", comastre=ours).method_settings == ours
    assert RunConfig(size="tiny", method_settings=ours).method_settings == ours
    assert RunConfig(size="tiny").method_settings.pixel_decoder.dim == 64
    assert RunConfig(size="tiny", comastre={"pixel_decoder": {"dim": 96}}).method_settings.pixel_decoder.dim == 96
    assert RunConfig().method_settings.pixel_decoder.dim == 256


@pytest.mark.parametrize("preset", ["shapes-6-2", "shapes-6-1", "demo"])
def test_there_is_one_fine_tuning_baseline(preset: str) -> None:
    """The same wherever it is asked for: with nothing that remembers, and what all methods of the family share."""
    ours, plain = load_config(preset), load_config(preset, {"method": "finetune"})
    assert ours.method_settings.optimiser.later_backbone_factor == 0.1
    assert plain.method_settings.optimiser.later_learning_rate == plain.method_settings.optimiser.learning_rate
    changed = [str(each) for each in differences(ours, plain)]
    # A lower rate remembers, too; own queries of the exact method, beside which nothing moves, need none.
    assert changed == [
        "method: comastre -> finetune",
        "comastre.optimiser.later_learning_rate: 0.001 -> 0.003",
        "comastre.optimiser.later_backbone_factor: 0.1 -> None",
    ]
    exact = load_config(preset, {"method": "comastre-exact"}).method_settings.optimiser
    assert exact.later_learning_rate == 0.003


@pytest.mark.parametrize("preset", ["shapes-6-2", "voc-15-5-cpu"])
@pytest.mark.parametrize("rival", ["mask2former", "comformer"])
def test_query_methods_learn_a_first_step_with_what_comastre_has(preset: str, rival: str) -> None:
    """A rival with half of our weight on recognition was 20 points behind: what means the same is the same."""
    ours = flatten(load_config(preset, {"method": "comastre"}).method_settings.model_dump())
    theirs = flatten(load_config(preset, {"method": rival}).method_settings.model_dump())
    alike = ["weights.classification", "weights.mask_bce", "weights.mask_dice", "matching.points", "masks.points"]
    alike += [name for name in ours if name.startswith(("pixel_decoder.", "mask_decoder."))]
    alike += [f"optimiser.{name}" for name in ("learning_rate", "backbone_factor", "warmup", "clip", "weight_decay")]
    assert {name: theirs[name] for name in alike} == {name: ours[name] for name in alike}
