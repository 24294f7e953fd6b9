"""What the per-pixel methods promise beside what every method does: starts, thresholds, prototypes, folded branches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.bundle import store
from comastre.config import methods
from comastre.config.settings import load_config
from comastre.data.dataset import IGNORE
from comastre.data.targets import Targets
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.losses.points import PointSource
from comastre.losses.pseudo_labels import entropy
from comastre.methods.build import build_method, setup_of
from comastre.methods.perpixel.method import PerPixelMethod
from comastre.nets.deeplab import DeepLab, resize
from comastre.nets.prototypes import DeepLabWithPrototypes
from comastre.nets.twin_convolution import twins_of
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task
from comastre.training.run import run

FIRST = Task(0, (1, 2), (), (3,), (0,))
SECOND = Task(1, (3,), (1, 2), (), (0,))
PER_PIXEL = ("deeplab-finetune", "deeplab-joint", "mib", "plop", "sdr", "reminder", "rcil")


def a_method(name: str, **settings: Any) -> Any:
    config = load_config("shapes-6-2", {"method": name})
    config = load_config("shapes-6-2", {"method": name, config.spec.section_name: settings})
    method = build_method(name, setup_of(config))
    assert isinstance(method, PerPixelMethod)
    return method


def a_batch(*labels: int, seed: int = 0, size: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (size, 3, 64, 64), generator=generator, dtype=torch.uint8)
    blocks = torch.tensor(labels)[torch.randint(len(labels), (size, 1, 8, 8), generator=generator)]
    truth = F.interpolate(blocks.float(), scale_factor=8)[:, 0].to(torch.uint8)
    none = Targets.stack(
        [torch.zeros(0, 64, 64, dtype=torch.bool)] * size, [torch.zeros(0).long()] * size, ["x"] * size
    )
    return Batch(images, None, truth, none, slice(0, size), size, 0)


def points(number: int = 0) -> PointSource:
    return PointSource(0, number, slice(0, 2), 2, "cpu")


def learn(method: Any, model: DeepLab, step: int, *batches: Batch) -> None:
    optimiser = method.optimiser(model, step)
    model.train()
    for number, batch in enumerate(batches):
        method.total(method.losses(model, batch, points(number))).backward()
        optimiser.step()
        optimiser.zero_grad()


def first_step(method: Any) -> DeepLab:
    torch.manual_seed(0)
    model = method.begin(FIRST, None)
    learn(method, model, 0, a_batch(0, 1, 2, IGNORE), a_batch(0, 1, 2, seed=1))
    method.look_back(model, lambda: iter([a_batch(0, 1, 2, IGNORE)]))
    return method.after_training(FIRST, model).eval()


@pytest.mark.parametrize("name", ["mib", "plop", "reminder", "rcil"])
def test_a_new_step_begins_without_moving_any_old_probability(name):
    method = a_method(name)
    model = first_step(method)
    images = a_batch(0).images
    with torch.no_grad():
        before = model(images).logits.softmax(dim=1)
        grown = method.begin(SECOND, model).eval()
        if name == "rcil":  # its open branches are another network until they are folded again
            for twin in twins_of(grown):
                twin.right.weight.zero_(), twin.right_norm.weight.zero_(), twin.right_norm.bias.zero_()
                twin.left.weight.mul_(2), twin.left.bias.mul_(2)
        after = grown(images).logits.softmax(dim=1)
    torch.testing.assert_close(after[:, 1:3], before[:, 1:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after[:, 0] + after[:, 3], before[:, 0], rtol=1e-4, atol=1e-5)


def test_rcil_folds_without_moving_the_logits_and_keeps_what_it_folded():
    method = a_method("rcil", optimiser={"later_learning_rate": 0.1})
    torch.manual_seed(0)
    model = method.begin(FIRST, None)
    for task in (FIRST, SECOND):
        if task is SECOND:
            model = method.begin(SECOND, model)
        learn(method, model, task.step, *(a_batch(0, 1 + 2 * task.step, seed=seed) for seed in range(2)))
        images = a_batch(0, seed=5).images
        with torch.no_grad():
            before = model.eval()(images).logits
            left = [copy.deepcopy(twin.left.state_dict()) for twin in twins_of(model)]
            model = method.after_training(task, model).eval()
            torch.testing.assert_close(model(images).logits, before, rtol=1e-3, atol=1e-4)
        moved = [
            not torch.equal(old["weight"], twin.left.weight) for old, twin in zip(left, twins_of(model), strict=True)
        ]
        assert all(moved)


def test_random_biases_as_the_public_code_has_them():
    method = a_method("rcil", biases="public_code")
    model = first_step(method)
    background = model.classifiers[0].bias[0].item()
    method.begin(SECOND, model)
    assert model.classifiers[0].bias[0].item() == background
    assert torch.equal(model.classifiers[1].weight[0], model.classifiers[0].weight[0])


def test_plop_finds_each_classs_median_uncertainty():
    method = a_method("plop", threshold_floor=0.001)
    model = method.begin(SECOND, first_step(method))
    batches = [a_batch(0, 3, IGNORE, seed=seed) for seed in range(3)]
    method.before_training(model, lambda: iter(batches))
    values: dict[int, list[Tensor]] = {}
    with torch.no_grad():
        for batch in batches:
            q = resize(method.old_model(batch.images).logits, (64, 64)).softmax(dim=1)
            for label in range(3):
                chosen = (q.argmax(dim=1) == label) & (batch.labels == 0)
                values.setdefault(label, []).append(entropy(q)[chosen])
    for label, found in values.items():
        together = torch.cat(found)
        expected = max(together.median().item(), 0.001) if len(together) else 0.001
        assert method.thresholds[label].item() == pytest.approx(expected, abs=2e-3)
    state = method.state()
    again = a_method("plop")
    again.restore(SECOND, model, state)
    assert torch.equal(again.thresholds, method.thresholds)
    everything = a_method("plop", threshold_floor=1.0)
    everything.before_training(everything.begin(SECOND, first_step(everything)), lambda: iter(batches))
    assert torch.equal(everything.thresholds, torch.ones(3))


def test_sdr_prototypes_are_means_over_all_features_ever_seen():
    method = a_method("sdr")
    torch.manual_seed(0)
    model = method.begin(FIRST, None)
    sums, counts = torch.zeros(3, 96), torch.zeros(3)
    model.train()
    for seed in range(3):
        batch = a_batch(0, 1, 2, IGNORE, seed=seed)
        bodies: list[Tensor] = []
        model.pyramid.register_forward_pre_hook(lambda module, given, kept=bodies: kept.append(given[0].detach()))
        method.losses(model, batch, points())
        features = bodies[0].movedim(1, 3)
        labels = batch.labels[:, ::8, ::8].long()  # blocks of 8 pixels, features at stride 8
        for label in (1, 2):
            sums[label] += features[labels == label].sum(dim=0)
            counts[label] += (labels == label).sum()
    assert model.prototypes.counts.tolist() == counts.tolist()
    torch.testing.assert_close(model.prototypes.means[1:], sums[1:] / counts[1:, None], rtol=1e-4, atol=1e-5)


def test_reminder_prototypes_are_means_over_batches():
    method = a_method("reminder")
    model = first_step(method)
    assert isinstance(model, DeepLabWithPrototypes)
    batches = [a_batch(0, 1, seed=3), a_batch(0, 1, 2, IGNORE, seed=4)]

    def one_pass() -> Iterator[Batch]:
        return iter(batches)

    method.look_back(model, one_pass)
    for label, seen_in in ((0, batches), (1, batches), (2, batches[1:])):
        means = []
        for batch in seen_in:
            with torch.no_grad():
                head = model(batch.images).head
            large = F.interpolate(head, size=(64, 64), mode="bilinear", align_corners=True)
            means.append(large.movedim(1, 3)[batch.labels == label].mean(dim=0))
        torch.testing.assert_close(model.prototypes.means[label], torch.stack(means).mean(dim=0), rtol=1e-4, atol=1e-5)
    old = model.prototypes.means.clone()
    grown = method.begin(SECOND, model)
    method.look_back(grown, lambda: iter([a_batch(0, 3)]))
    assert torch.equal(grown.prototypes.means[:3], old) and grown.prototypes.means[3].any()


def test_the_public_reshapes_of_sdr_train_too():
    method = a_method("sdr", reshapes="public_code")
    model = method.begin(SECOND, first_step(method))
    terms = method.losses(model.train(), a_batch(0, 3, IGNORE), points())
    assert set(terms) == set(method.weights()) and all(torch.isfinite(value) for value in terms.values())


# --- starts ----------------------------------------------------------------------------------------------------------


def test_init_gives_backbone_and_pyramid_of_a_per_pixel_model():
    given = first_step(a_method("mib"))
    model = a_method("plop").begin(FIRST, None, given)
    for part in ("backbone", "pyramid"):
        theirs = getattr(given, part).state_dict()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in getattr(model, part).state_dict().items())


def test_init_of_a_model_with_masks_or_other_layers_is_refused_in_a_sentence(tiny_bundle: Path):
    with pytest.raises(UserError, match="--init is a model that proposes masks, but this method labels pixels"):
        a_method("mib").begin(FIRST, None, store.load(tiny_bundle).model)
    wider = a_method("mib", head={"channels": 32}).begin(FIRST, None)
    with pytest.raises(UserError, match="--init does not fit: its pyramid has other layers"):
        a_method("mib").begin(FIRST, None, wider)


@pytest.mark.parametrize("name", PER_PIXEL)
@pytest.mark.parametrize("preset", ["demo", "voc-10-1", "voc-15-1-cpu", "ade20k-100-5"])
def test_every_preset_has_values_for_every_per_pixel_method(name, preset):
    config = load_config(preset, {"method": name})
    own = config.method_settings.optimiser
    assert own.momentum == 0.9 and own.nesterov and own.clip == 0 and own.power == 0.9
    assert config.training.batch_size in (4, 8, 16, 20, 24, 32)


def test_what_does_not_fit_a_method_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"there is no field deeplab\.pod_features"):
        load_config("demo", {"method": "mib", "deeplab": {"pod_features": 1.0}})
    with pytest.raises(UserError, match="it is a field of the method comastre, but the method is mib"):
        load_config("demo", {"method": "mib", "comastre": {"inference": {"alpha": 0.5}}})
    narrow = replace(methods.find("plop"), presets="comastre.methods.perpixel.presets.plop")
    monkeypatch.setattr(methods, "find", lambda name: narrow)
    with pytest.raises(
        UserError, match="the preset voc-15-1 has no values for the method plop: choose one that has, such"
    ):
        load_config("voc-15-1", {"method": "plop"})


# --- what a first step may be shared by ------------------------------------------------------------------------------

OTHERWISE: dict[str, Any] = {
    "distillation": 3.0, "from_background": False, "pod_features": 1.0, "pod_logits": 1.0, "scales": (1,),
    "thresholds": "public_code", "threshold_floor": 0.5, "matching": 1.0, "attraction": 1.0, "repulsion": 1.0,
    "sparsity": 1.0, "reshapes": "public_code", "similarity": 2.0, "delta": 0.3, "temperature": 1.0, "cube": 1.0,
    "last_cube": 1.0, "kernels": (2,), "biases": "public_code",
}  # fmt: skip
"""Another value of every field that is a method's own."""


@pytest.mark.parametrize("name", ["mib", "plop", "sdr", "reminder", "rcil"])
def test_a_field_counts_for_a_shared_first_step_where_it_changes_one(name: str) -> None:
    usual, settings = first_step(a_method(name)).state_dict(), a_method(name).setup.settings
    for field in set(type(settings).model_fields) - {"optimiser", "head"}:
        found = first_step(a_method(name, **{field: OTHERWISE[field]})).state_dict()
        changed = any(not torch.equal(found[each], usual[each]) for each in usual)
        assert settings.shapes_first_step(field, from_init=False) == changed, field
    for field in ("head.channels", "optimiser.learning_rate"):
        assert settings.shapes_first_step(field, from_init=False)
    assert not settings.shapes_first_step("optimiser.later_learning_rate", from_init=False)


def test_methods_of_one_section_share_a_first_step(tmp_path: Path) -> None:
    def train(method: str, **start: Any) -> Results:
        training = {"iterations": 1, "iterations_per_class": 1, "batch_size": 4, "accelerator": "cpu"}
        data = {"train_images": 60, "val_images": 2}
        settings = {"method": method, "training": training, "data": data, "continual": {"setting": "6-4"}}
        return run(load_config("demo", settings), tmp_path / method, **start)

    first = train("deeplab-finetune").steps[0]
    assert train("mib", base=tmp_path / "deeplab-finetune").steps[0] == first
    assert train("plop", base=tmp_path / "mib").steps[0] == first
    with pytest.raises(UserError, match=r"cannot be the base .* method: mib -> rcil"):
        train("rcil", base=tmp_path / "mib")
    assert not (tmp_path / "rcil").exists()
