"""Public Mask2Formers predict here as they do in transformers, and what cannot be read is told in a sentence."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from any_values import ANYTHING, few, write_json
from comastre.bundle import store
from comastre.bundle.imported import export_model, import_model
from comastre.bundle.store import Bundle, Description
from comastre.class_table import class_table
from comastre.cli.import_model import import_model as command
from comastre.config.sections import BackboneConfig, OptimiserConfig
from comastre.config.view import UNWRITTEN, ViewConfig
from comastre.errors import UserError
from comastre.methods.mask2former.config import Mask2FormerConfig, QueryInferenceConfig
from comastre.methods.mask2former.inference import label
from comastre.methods.mask2former.model import build_model
from reference_mask2former import NAMES, make_reference

STUFF = ("wall", "sky", "tree")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a ResNet, as transformers saves it."""
    path = tmp_path_factory.mktemp("resnet") / "checkpoint"
    make_reference("resnet").save_pretrained(path)
    return path


@pytest.mark.parametrize("backbone", ["resnet", "swin"])
def test_predictions_equal_transformers_and_survive_a_bundle(backbone: str, tmp_path: Path) -> None:
    reference = make_reference(backbone)
    reference.save_pretrained(tmp_path / "theirs")
    if backbone == "swin":  # older versions kept what follows from the window's size
        tensors = load_file(tmp_path / "theirs" / "model.safetensors")
        tables = [name for name in tensors if name.endswith("relative_position_bias_table")]
        tensors |= {name.replace("bias_table", "index"): torch.zeros(49, 49) for name in tables}
        save_file(tensors, tmp_path / "theirs" / "model.safetensors")
    command(str(tmp_path / "theirs"), tmp_path / "ours", stuff=STUFF)
    bundle = store.load(tmp_path / "ours")
    assert bundle.classes.names == NAMES
    assert [each.thing for each in bundle.classes.classes] == [name not in STUFF for name in NAMES]
    processing = pytest.importorskip("transformers.models.mask2former.image_processing_mask2former")
    processor = processing.Mask2FormerImageProcessor()
    settings = bundle.model.config.inference
    found = 0
    for size in ((384, 384), (128, 100)):
        images = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected, ours = reference(bundle.model.backbone.normalise(images, None)), bundle.model(images)
        masks, classes = ours.layers[-1].mask_logits, ours.class_logits[-1]
        torch.testing.assert_close(masks, expected.masks_queries_logits, atol=1e-4, rtol=0)
        torch.testing.assert_close(classes, expected.class_queries_logits, atol=1e-4, rtol=0)
        (theirs,) = processor.post_process_panoptic_segmentation(expected, label_ids_to_fuse=set(settings.stuff))
        # transformers brings all masks to 384 x 384; an image of that size is the same on the whole way.
        merged = label(masks[0], classes[0], (384, 384), settings)
        whole = bundle.model.segment(images)[0] if size == (384, 384) else merged
        of_pixels = torch.zeros(384, 384, dtype=torch.long)
        for info in theirs["segments_info"]:
            of_pixels[theirs["segmentation"] == info["id"]] = info["label_id"] + 1
        for each in (merged, whole):
            assert (each.label_map == of_pixels).float().mean() > 0.9999  # but for rounding where two masks meet
        found += len(merged.segments)
    assert found > 2


def test_a_model_goes_there_and_back(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    bundle = import_model(folder)
    exported = export_model(bundle, tmp_path / "again")
    theirs = transformers.Mask2FormerForUniversalSegmentation.from_pretrained(exported).state_dict()
    for name, tensor in make_reference("resnet").state_dict().items():
        assert torch.equal(theirs[name], tensor), name
    back = import_model(exported)
    assert back.classes.names == bundle.classes.names
    for name, tensor in bundle.model.state_dict().items():
        assert torch.equal(back.model.state_dict()[name], tensor), name
    with pytest.raises(UserError, match="is there already"):
        export_model(bundle, exported)


def test_other_backbones_go_there_as_those_of_timm(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    backbone = BackboneConfig(name="test_resnet", weights="none")
    settings = Mask2FormerConfig.model_validate(Mask2FormerConfig.for_size("tiny"))
    model = build_model(settings, backbone, [2]).eval()
    description = Description("mask2former", "tiny", backbone, settings)
    exported = export_model(Bundle(model, class_table(("wall", "sky"), [2]), description), tmp_path / "theirs")
    theirs = transformers.Mask2FormerForUniversalSegmentation.from_pretrained(exported).eval()
    images = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, ours = theirs(model.backbone.normalise(images, None)), model(images)
    torch.testing.assert_close(ours.layers[-1].mask_logits, expected.masks_queries_logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.class_logits[-1], expected.class_queries_logits, atol=1e-4, rtol=0)
    back = import_model(exported).model.state_dict()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


def test_a_model_of_ours_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    public = import_model(folder)
    assert public.description.size == "r50" and public.classes.background == "void"
    # As detectron2 trained them: a lesson of a few images must not move the statistics.
    assert public.description.backbone.holds_batch_norm(step=1)
    settings = public.description.settings.model_copy(
        update={
            "inference": QueryInferenceConfig(score=0.3, merge="strict"),
            "optimiser": OptimiserConfig(learning_rate=2e-3, clip=1.0),
        }
    )
    description = replace(
        public.description,
        size="tiny",
        settings=settings,
        training={"data": {"crop": 64}},
        backbone=public.description.backbone.model_copy(update={"freeze_batch_norm": "later", "frozen_stride": 4}),
    )
    table = class_table(NAMES, [5], background="background")
    ours = replace(public, description=description, classes=table)
    exported = export_model(ours, tmp_path / "theirs")
    back = import_model(exported)
    assert back.description == replace(store.portable(ours), view=back.description.view)
    assert back.classes.background == "background"
    assert import_model(exported, "semantic").description.settings.inference.style == "semantic"  # type: ignore[attr-defined]
    for wrong in ({"settings": {"optimiser": {"clip": -1}}}, {"backbone": {"frozen_stride": 3}}):
        config = json.loads((exported / "config.json").read_text())
        (exported / "config.json").write_text(json.dumps(config | {"comastre": wrong}))
        with pytest.raises(UserError, match=r"(clip|frozen_stride) is .* but"):
            import_model(exported)
    (exported / "config.json").write_text(json.dumps(config | {"comastre": {"size": "huge", "settings": 3}}))
    assert import_model(exported).description.size == "r50"


def test_classes_of_several_steps_are_one_classifier_there(folder: Path, tmp_path: Path) -> None:
    bundle = import_model(folder)
    bundle.model.add_task(2)
    grown = replace(bundle, classes=class_table([*NAMES, "cat", "cow"], bundle.model.tasks))
    back = import_model(export_model(grown, tmp_path / "grown"))
    assert back.classes.names == (*NAMES, "cat", "cow") and back.model.tasks == (7,)
    embeddings = torch.randn(3, 64)
    torch.testing.assert_close(back.model.class_head(embeddings), bundle.model.class_head(embeddings))


def test_the_head_decides_how_it_predicts(folder: Path) -> None:
    semantic, instance = import_model(folder, "semantic"), import_model(folder, "instance")
    assert semantic.model.config.inference.style == "semantic"
    assert not any(each.thing for each in semantic.classes.classes)
    assert instance.model.config.inference.style == "panoptic" and instance.model.config.inference.stuff == ()
    assert all(each.thing for each in instance.classes.classes)
    with pytest.raises(UserError, match="the model has no class 'moon'"):
        import_model(folder, stuff=("moon",))


@pytest.mark.parametrize(
    ("processor", "view"),
    [
        ({"size": {"shortest_edge": 640, "longest_edge": 1333}}, ViewConfig(short_side=(640,), max_side=1333)),
        ({"size": 640, "max_size": 1333}, ViewConfig(short_side=(640,), max_side=1333)),
        ({"size": {"height": 384, "width": 512}}, ViewConfig(short_side=(384,), max_side=None)),
        ({"size": {"shortest_edge": "many"}}, UNWRITTEN),
        ({"size": []}, UNWRITTEN),
        ({"size": {"shortest_edge": 640}, "do_resize": False}, UNWRITTEN),
        ({}, UNWRITTEN),
    ],
)
def test_images_are_seen_at_the_size_of_the_preprocessor(
    folder: Path, tmp_path: Path, processor: dict[str, Any], view: ViewConfig
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "preprocessor_config.json").write_text(json.dumps(processor | {"image_mean": [0.1, 0.2, 0.3]}))
    bundle = import_model(copy)
    assert bundle.description.view == view
    assert bundle.model.backbone.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert import_model(export_model(bundle, tmp_path / "again")).description.view == view


@pytest.mark.parametrize(
    "processor",
    [
        {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]},
        {"do_normalize": False},
        {"do_rescale": False, "image_mean": [100.0, 110.0, 120.0], "image_std": [50.0, 60.0, 70.0]},
        {"rescale_factor": 1 / 127.5, "image_mean": [1.0, 1.0, 1.0], "image_std": [1.0, 1.0, 1.0]},
        {"rescale_factor": 1 / 127.5, "do_normalize": False},
        {"rescale_factor": 1 / 127.5},
        {},
    ],
)
def test_values_are_what_the_preprocessor_makes_of_them(
    folder: Path, tmp_path: Path, processor: dict[str, Any]
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "preprocessor_config.json").write_text(json.dumps(processor))
    backbone = import_model(copy).model.backbone
    processing = pytest.importorskip("transformers.models.mask2former.image_processing_mask2former")
    image = torch.randint(0, 256, (3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    theirs = processing.Mask2FormerImageProcessor(do_resize=False, **processor)(image, return_tensors="pt")
    ours = (image[None] / 255 - backbone.mean) / backbone.std
    torch.testing.assert_close(ours, theirs["pixel_values"], atol=1e-4, rtol=1e-5)


def test_a_factor_that_is_none_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "preprocessor_config.json").write_text(json.dumps({"rescale_factor": 0}))
    with pytest.raises(UserError, match=r"rescale_factor in its preprocessor_config\.json is 0"):
        import_model(copy)


def _edit_config(**changes: Any) -> Callable[[Path], None]:
    def change(copy: Path) -> None:
        file = copy / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def _drop(name: str) -> Callable[[Path], None]:
    def change(copy: Path) -> None:
        tensors = load_file(copy / "model.safetensors")
        del tensors[name]
        save_file(tensors, copy / "model.safetensors")

    return change


def _pickle(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    torch.save({}, copy / "pytorch_model.bin")


def _damage(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\x80\x02not tensors")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_edit_config(model_type="maskformer"), "holds a 'maskformer' checkpoint, not a mask2former"),
        (lambda copy: write_json(copy / "config.json", {}), "has no model_type in its config.json: give"),
        (_edit_config(backbone_config={"model_type": "focalnet"}), "has a 'focalnet' backbone"),
        (_edit_config(num_queries=7), "have another shape of 'mask_decoder.query_features.weight'"),
        (_edit_config(num_attention_heads=None), "heads"),
        (_edit_config(id2label={"0": "wall"}), r"names 1 classes \(id2label in config.json\) but classifies 5"),
        (_edit_config(id2label=dict.fromkeys("01234", "wall")), "more than one class 'wall'"),
        (_drop("model.transformer_module.decoder.layernorm.weight"), "lack 'mask_decoder.norm.weight'"),
        (_drop("class_predictor.weight"), "has no class_predictor"),
        (_pickle, r"pytorch_model.bin' is a pickle, which could run code and is not read"),
        (_damage, "is damaged"),
        (lambda copy: shutil.rmtree(copy), "is neither a folder nor a hub id|there is no folder"),
    ],
)
def test_what_cannot_be_read_is_told_and_nothing_written(
    folder: Path, tmp_path: Path, change: Callable[[Path], None], sentence: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    change(copy)
    with pytest.raises(UserError, match=sentence) as told:
        command(str(copy), tmp_path / "out")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


WITHOUT_SHAPES = [
    ("resnet", "activation_function", "gelu"),
    ("resnet", "pre_norm", True),
    ("resnet", "enforce_input_projection", True),
    ("resnet", "common_stride", 2),
    ("resnet", "feature_strides", [8, 16, 32, 64]),
    ("resnet", "num_hidden_layers", 3),
    ("resnet", "backbone_config.hidden_act", "gelu"),
    ("resnet", "backbone_config.downsample_in_first_stage", True),
    ("resnet", "backbone_config.downsample_in_bottleneck", True),
    ("resnet", "backbone_config.out_features", ["stem", "stage2", "stage3", "stage4"]),
    ("resnet", "backbone_config.out_indices", [0, 1, 2, 3, 4]),
    ("swin", "backbone_config.hidden_act", "relu"),
    ("swin", "backbone_config.layer_norm_eps", 1e-3),
    ("swin", "backbone_config.qkv_bias", False),
    ("swin", "backbone_config.use_absolute_embeddings", True),
    ("swin", "backbone_config.patch_size", 8),
    ("swin", "backbone_config.out_features", ["stem", "stage1", "stage2", "stage3", "stage4"]),
    ("timm", "backbone_config.out_indices", [0, 2, 3, 4]),
    ("timm", "backbone_config.output_stride", 16),
    ("timm", "backbone_config.features_only", False),
    ("kwargs", "backbone_kwargs.out_indices", [0, 2, 3, 4]),
    ("kwargs", "backbone_kwargs.output_stride", 16),
    ("kwargs", "backbone_kwargs.act_layer", "gelu"),
]
"""Fields that the weights do not show: with most of them transformers computes other numbers from the same file."""


@pytest.fixture(scope="module")
def checkpoints(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One per way to describe a backbone; the last is what older versions of transformers wrote of timm's."""
    place = tmp_path_factory.mktemp("checkpoints")
    make_reference("swin").save_pretrained(place / "swin")
    backbone = BackboneConfig(name="test_resnet", weights="none")
    settings = Mask2FormerConfig.model_validate(Mask2FormerConfig.for_size("tiny"))
    bundle = Bundle(
        build_model(settings, backbone, [2]).eval(),
        class_table(("wall", "sky"), [2]),
        Description("mask2former", "tiny", backbone, settings),
    )
    export_model(bundle, place / "timm")
    shutil.copytree(place / "timm", place / "kwargs")
    options = {"out_indices": [1, 2, 3, 4]}
    _edit_config(backbone_config=None, backbone="test_resnet", use_timm_backbone=True, backbone_kwargs=options)(
        place / "kwargs"
    )
    return {"resnet": folder, **{kind: place / kind for kind in ("swin", "timm", "kwargs")}}


def _with_fields(checkpoint: Path, copy: Path, fields: dict[str, Any]) -> Path:
    """The checkpoint with other fields in its config.json; the weights, which may be large, are not copied."""
    config = json.loads((checkpoint / "config.json").read_text())
    for field, value in fields.items():
        section, _, name = field.rpartition(".")
        (config[section] if section else config)[name] = value
    copy.mkdir()
    write_json(copy / "config.json", config)
    (copy / "model.safetensors").hardlink_to(checkpoint / "model.safetensors")
    return copy


@pytest.mark.parametrize(("kind", "field", "value"), WITHOUT_SHAPES)
def test_what_would_be_computed_otherwise_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path, kind: str, field: str, value: Any
) -> None:
    copy = _with_fields(checkpoints[kind], tmp_path / "copy", {field: value})
    with pytest.raises(UserError) as told:
        command(str(copy), tmp_path / "out")
    assert f"has {field} {value!r}" in str(told.value) or "has backbone_kwargs.act_layer in" in str(told.value)
    assert "\n" not in str(told.value) and "config.json" in str(told.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("resnet", {"out_features": None, "out_indices": [-4, -3, -2, -1]}),
        ("swin", {"patch_size": [4, 4], "image_size": 64, "drop_path_rate": 0.5, "hidden_dropout_prob": 0.5}),
        ("timm", {"out_indices": [-4, -3, -2, -1], "output_stride": 32, "freeze_batch_norm_2d": True}),
    ],
)
def test_other_words_for_the_same_computation_are_read(
    checkpoints: dict[str, Path], tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    fields = {f"backbone_config.{name}": value for name, value in changes.items()}
    copy = _with_fields(checkpoints[kind], tmp_path / "copy", fields)
    theirs = transformers.Mask2FormerForUniversalSegmentation.from_pretrained(copy).eval()
    ours = import_model(copy).model
    images = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = theirs(ours.backbone.normalise(images, None)), ours(images)
    torch.testing.assert_close(found.class_logits[-1], expected.class_queries_logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.layers[-1].mask_logits, expected.masks_queries_logits, atol=1e-4, rtol=0)


def test_older_descriptions_of_a_timm_backbone_are_read(checkpoints: dict[str, Path]) -> None:
    old, new = (import_model(checkpoints[kind]) for kind in ("kwargs", "timm"))
    assert old.description == new.description


def test_a_model_of_ours_needs_no_import_and_keeps_its_folder(folder: Path, tmp_path: Path) -> None:
    command(str(folder), tmp_path / "model")
    before = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    with pytest.raises(UserError, match="is a model of comastre's already and needs no import: give it to `comastre"):
        command(str(tmp_path / "model"), tmp_path / "out")
    # The command has no option to overwrite, so the sentence must not speak of one.
    with pytest.raises(UserError, match="already holds a model: choose another folder, or delete that one first"):
        command(str(folder), tmp_path / "model")
    assert {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_transformers_does_not_know_is_not_exported(folder: Path, tmp_path: Path) -> None:
    bundle = import_model(folder)
    other = replace(bundle, model=torch.nn.Linear(1, 1))
    with pytest.raises(UserError, match="has no place in transformers"):
        export_model(other, tmp_path / "out")
    decoder = bundle.model.config.mask_decoder.model_copy(update={"softmax_masks": True})
    bundle.model.config = bundle.model.config.model_copy(update={"mask_decoder": decoder})
    with pytest.raises(UserError, match=r"the model has mask_decoder\.softmax_masks"):
        export_model(bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@few(15)
@given(st.data())
@example(None)
def test_any_json_in_a_checkpoint(folder: Path, data: st.DataObject | None) -> None:
    original = json.loads((folder / "config.json").read_text())
    fields = ["backbone_config", "id2label", "feature_size", "num_queries", "decoder_layers", "encoder_layers"]
    fields += ["dim_feedforward", "num_attention_heads", "model_type", "pre_norm"]
    changes = [("decoder_layers", 10**30), ("num_queries", 10**9), ("hidden_dim", []), ("id2label", {"0": "\x1b"})]
    if data is not None:
        changes = [(data.draw(st.sampled_from(fields)), data.draw(ANYTHING))]
    try:
        for field, value in changes:
            write_json(folder / "config.json", {**original, field: value})
            with suppress(UserError):
                import_model(folder)
    finally:
        write_json(folder / "config.json", original)
