"""What learning starts from: new models are built as those whose settings were measured, others bring their own."""

import json
import shutil
from dataclasses import replace

import pytest

import comastre
from comastre.bundle import store
from comastre.config.settings import load_config, validate
from comastre.errors import UserError
from comastre.learning.starting_model import open_model, run_settings


@pytest.mark.parametrize(("size", "preset"), [("tiny", "shapes-6-2"), ("small", "voc-15-5-cpu")])
@pytest.mark.parametrize("method", [None, "finetune"])
def test_a_new_model_is_built_as_the_preset_of_its_size(size, preset, method):
    starting = open_model(f"new:{size}", method=method)
    expected = load_config(preset, {"method": method or "comastre"})
    what = starting.description
    assert starting.known is None and starting.bundle is None
    assert (what.method, what.size, what.backbone) == (method or "comastre", size, expected.backbone)
    assert what.settings == expected.method_settings


def test_nothing_of_a_random_backbone_stands_still():
    backbone = open_model("new:small", "none").description.backbone
    assert backbone.weights == "none" and backbone.freeze_batch_norm == "later" and backbone.frozen_stride == 0


def test_statistics_of_a_pretrained_backbone_stand_still():
    assert open_model("new:r50").description.backbone.freeze_batch_norm == "always"


def written(tiny_bundle, folder, **changes):
    """The bundle with another description."""
    bundle = store.load(tiny_bundle)
    return store.save(replace(bundle, description=replace(bundle.description, **changes)), folder)


@pytest.mark.parametrize(
    ("method", "taught_by"),
    [("comastre", "comastre"), ("finetune", "finetune"), ("joint", "comastre"), ("objectness", "comastre")],
)
def test_a_model_goes_on_with_its_method_or_what_teaches_on_for_it(tiny_bundle, tmp_path, method, taught_by):
    folder = written(tiny_bundle, tmp_path / "model", method=method)
    starting = open_model(folder)
    assert starting.description.method == taught_by
    assert validate(run_settings(starting), "the model").method == taught_by
    assert open_model(folder, method=taught_by).description == starting.description
    assert open_model(folder, method="finetune").description.method == "finetune"  # a variant on the same network
    with pytest.raises(UserError, match=rf"--method mib cannot be set for a lesson: the model's own is {taught_by}"):
        open_model(folder, method="mib")


def test_the_settings_of_a_run_that_learns_on_are_those_of_the_model(tiny_bundle):
    starting, what = open_model(tiny_bundle), store.load(tiny_bundle).description
    config = validate(run_settings(starting), "the model")
    assert (config.size, config.backbone, config.method_settings) == (what.size, what.backbone, what.settings)
    assert config.training.iterations == 4000 and config.data.later_scale == (0.8, 1.8)
    assert config.data.dataset == "shapes" and config.data.root is None  # nothing of the place it was trained in


def test_a_model_of_version_1_learns_on_as_it_did(tiny_bundle, tmp_path):
    """Of its own layout: tests/bundle/test_bundle.py."""
    folder = shutil.copytree(tiny_bundle, tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    settings, backbone = content["settings"], dict(content["backbone"])
    backbone |= {"frozen_batch_norm": False}
    later = backbone.pop("freeze_batch_norm") == "later"
    del backbone["freeze_batch_norm_weights"]
    shape = ("pixel_decoder", "mask_decoder", "class_decoder", "inference")
    model = {"size": content["size"], "backbone": backbone, **{name: settings.pop(name) for name in shape}}
    rates = settings.pop("optimiser") | {"freeze_batch_norm_later": later}
    recipe = {**settings, "data": content["training"]["data"], "training": content["training"]["training"] | rates}
    old = {
        "format": "comastre",
        "version": 1,
        "written_by": "comastre 0.1.0",
        "tasks": content["tasks"],
        "model": model,
    }
    (folder / "config.json").write_text(json.dumps(old))
    classes = json.loads((folder / "classes.json").read_text())
    (folder / "classes.json").write_text(json.dumps(classes | {"training": recipe}))
    # Which size it sees, version 1 did not say either.
    unsaid = shutil.copytree(tiny_bundle, tmp_path / "unsaid")
    content = json.loads((unsaid / "config.json").read_text())
    (unsaid / "config.json").write_text(json.dumps({name: content[name] for name in content if name != "view"}))
    expected, found = open_model(unsaid), open_model(folder)
    assert run_settings(found) == run_settings(expected)
    assert run_settings(found)["view"]["short_side"] == "native"
    # The same digest: a lesson that was begun from one goes on from the other.
    assert found.digest() == expected.digest()


def test_a_digest_changes_with_anything_that_a_model_is(tiny_bundle, tmp_path):
    starting = open_model(tiny_bundle)
    assert open_model(comastre.load(tiny_bundle)).digest() == starting.digest()
    what = starting.description
    softer = what.settings.model_copy(update={"inference": what.settings.inference.model_copy(update={"alpha": 0.1})})
    others = {
        "method": {"method": "finetune"},
        "view": {"view": what.view.changed(96)},
        "settings": {"settings": softer},
        "backbone": {"backbone": what.backbone.model_copy(update={"freeze_batch_norm": "none"})},
    }
    digests = [
        open_model(written(tiny_bundle, tmp_path / name, **changes)).digest() for name, changes in others.items()
    ]
    bundle = store.load(tiny_bundle)
    bundle.model.class_decoder.classifiers[0].bias.data[0] += 1
    digests.append(open_model(store.save(bundle, tmp_path / "weights")).digest())
    assert len({starting.digest(), *digests}) == 6
