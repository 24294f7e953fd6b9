"""Backbones: any timm pyramid, weights from anywhere safe, the right normalisation, BatchNorm that can hold still."""

import os
import pickle
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub.errors import OfflineModeIsEnabled
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from comastre.config.sections import BackboneConfig
from comastre.errors import UserError
from comastre.nets.backbone import Backbone

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make(name: str = "test_resnet", **fields: object) -> Backbone:
    return Backbone(BackboneConfig.model_validate({"name": name, "weights": "none", **fields})).eval()


def features(backbone: Backbone, size: tuple[int, int] = (64, 64)) -> list[Tensor]:
    with torch.no_grad():
        return list(backbone(torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0))))


def full_weights(name: str, seed: int = 7) -> dict[str, Tensor]:
    """State dict of the whole network, classifier included, with nothing at its initial value."""
    torch.manual_seed(seed)
    state = timm.create_model(name).state_dict()
    return {
        key: torch.rand_like(value) * 0.1 + 0.05 if value.is_floating_point() else value for key, value in state.items()
    }


def message_of(**fields: object) -> str:
    """The one sentence a user reads."""
    with pytest.raises(UserError) as caught:
        make(**fields)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["test_resnet", "resnet18", "test_efficientnet", "tf_efficientnet_lite0"])
@pytest.mark.parametrize("size", [(64, 64), (97, 131), (8, 40)])
def test_strides_of_convolutions_round_up(name: str, size: tuple[int, int]) -> None:
    backbone = make(name)
    maps = features(backbone, size)
    for channels, stride, level in zip(backbone.channels, (4, 8, 16, 32), maps, strict=True):
        assert level.shape == (1, channels, -(-size[0] // stride), -(-size[1] // stride))


def test_strides_of_patches_round_down() -> None:
    backbone = make("test_convnext")
    assert [tuple(level.shape) for level in features(backbone, (97, 131))] == [
        (1, channels, 97 // stride, 131 // stride)
        for channels, stride in zip(backbone.channels, (4, 8, 16, 32), strict=True)
    ]


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_efficientnet", "tf_efficientnet_lite0"])
def test_local_files_give_the_networks_own_features(name: str, tmp_path: Path) -> None:
    state = full_weights(name)
    network = timm.create_model(name, features_only=True, pretrained=True, pretrained_cfg_overlay={"state_dict": state})
    save_file(state, tmp_path / "weights.safetensors")
    torch.save(state, tmp_path / "weights.pth")
    torch.save(
        {"state_dict": {f"module.{key}": value for key, value in state.items()}, "epoch": 3}, tmp_path / "run.pth"
    )
    reference = make(name)
    reference.network.load_state_dict(network.state_dict())
    expected = features(reference)
    assert not torch.equal(expected[-1], features(make(name))[-1])
    reference.network = network.eval()  # timm's own, whose BatchNorm is not folded into convolutions
    for ours, theirs in zip(expected, features(reference), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    for file in ("weights.safetensors", "weights.pth", "run.pth"):
        for ours, theirs in zip(features(make(name, weights=str(tmp_path / file))), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_loaded_kernels_are_those_of_the_file(tmp_path: Path) -> None:
    state = full_weights("test_resnet")
    save_file(state, tmp_path / "weights.safetensors")
    loaded = make(weights=str(tmp_path / "weights.safetensors")).network.state_dict()
    assert loaded
    for name, value in loaded.items():
        assert torch.equal(value, state[name]), name


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return os.putenv, ("COMASTRE_TEST_HARM", "done")


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_pickle_that_holds_code_is_refused(how: str, tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    if how == "torch":
        torch.save({"layer": Harmful()}, file)
    else:
        file.write_bytes(pickle.dumps({"layer": Harmful()}))
    assert "could run code" in message_of(weights=str(file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "there is no file" in message_of(weights=str(tmp_path / "nowhere.safetensors"))
    assert "there is no file" in message_of(weights=str(tmp_path))


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
def test_a_damaged_file_is_named(suffix: str, damage: str, tmp_path: Path) -> None:
    file = tmp_path / f"weights.{suffix}"
    state = full_weights("test_resnet")
    if suffix == "pth":
        torch.save(state, file)
    else:
        save_file(state, file)
    content = file.read_bytes()
    file.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "text": b"hello world\n"}[damage])
    assert "damaged" in message_of(weights=str(file))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("test_resnet", "test_efficientnet"),  # other names
        ("resnet34", "resnet18"),  # same names and shapes, more of them: timm would leave the rest random
    ],
)
def test_weights_of_another_network_are_refused(name: str, other: str, tmp_path: Path) -> None:
    save_file(full_weights(other), tmp_path / "weights.safetensors")
    assert "do not fit" in message_of(name=name, weights=str(tmp_path / "weights.safetensors"))


@pytest.mark.parametrize("state", [{"fc.weight": torch.zeros(3)}, {}, [1, 2], {"epoch": 3}])
def test_a_file_without_the_networks_tensors_is_refused(state: object, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "weights.pth")
    message = message_of(weights=str(tmp_path / "weights.pth"))
    assert "do not fit" in message or "not a state dict" in message


def test_an_unknown_name_gets_close_names() -> None:
    assert "resnet18" in message_of(name="resnet19")
    assert "resnet50" in message_of(name="resnt50")
    assert "resnet50.tv_in1k" in message_of(name="resnet50.nowhere")


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "test_vit"])
def test_a_network_without_a_pyramid_is_refused(name: str) -> None:
    message = message_of(name=name)
    assert "strides" in message and "resnet50" in message


def test_a_network_for_one_image_size_is_refused() -> None:
    assert "one size only" in message_of(name="swinv2_tiny_window8_256")


@pytest.mark.parametrize("error", [OfflineModeIsEnabled("no network"), ConnectionError("no\nroute"), TimeoutError()])
def test_a_hub_that_cannot_be_reached_is_one_sentence(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", fail)
    message = message_of(name="test_resnet.r160_in1k", weights="hub")
    assert "could not be fetched" in message and "'none'" in message


def test_a_network_without_public_weights_says_so() -> None:
    assert "no public weights" in message_of(name="convnext_atto_rms", weights="hub")


def test_real_weights_give_real_features(shared: Path) -> None:
    file = shared / "weights" / "tf_efficientnet_lite0.safetensors"
    if not file.is_file():
        pytest.skip("tf_efficientnet_lite0.safetensors is not among the shared weights")
    backbone = make("tf_efficientnet_lite0", weights=str(file))
    stored = load_file(file)
    assert torch.equal(backbone.network.conv_stem.weight, stored["conv_stem.weight"])
    bright, dark = (backbone(torch.full((1, 3, 96, 96), value)) for value in (0.9, 0.1))
    for level, other in zip(bright, dark, strict=True):
        assert level.isfinite().all()
        assert level.std() > 1e-2
        assert not torch.allclose(level, other, atol=1e-2)


# --- normalisation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("tf_efficientnet_lite0", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("resnet50.tv_in1k", IMAGENET_MEAN, IMAGENET_STD),
        ("convnext_atto", IMAGENET_MEAN, IMAGENET_STD),
    ],
)
def test_mean_and_std_are_what_the_network_was_trained_with(
    name: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    backbone = make(name)
    assert backbone.mean.flatten().tolist() == pytest.approx(mean)
    assert backbone.std.flatten().tolist() == pytest.approx(std)


def test_mean_and_std_can_be_given() -> None:
    backbone = make(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 1.0))
    normalised = backbone.normalise(torch.full((1, 3, 2, 2), 0.6), None)
    assert normalised[0, :, 0, 0].tolist() == pytest.approx([1.0, 1.6, 0.3])


def test_bytes_are_read_as_shares() -> None:
    backbone = make()
    values = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(backbone.normalise(values, None), backbone.normalise(values.float() / 255, None))


def test_padding_is_the_mean_colour() -> None:
    padding = torch.zeros(1, 4, 4, dtype=torch.bool)
    padding[:, :, 3] = True
    normalised = make().normalise(torch.rand(1, 3, 4, 4), padding)
    assert (normalised[..., 3] == 0).all()
    assert (normalised[..., :3] != 0).all()


# --- BatchNorm -------------------------------------------------------------------------------------------------------


def statistics(backbone: Backbone) -> list[Tensor]:
    norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    return [buffer.clone() for norm in norms for buffer in (norm.running_mean, norm.running_var) if buffer is not None]


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_batch_norm_keeps_its_statistics_in_training(name: str, frozen: bool) -> None:
    backbone = make(name, freeze_batch_norm="always" if frozen else "none")
    before = statistics(backbone)
    assert before
    backbone.train()
    backbone(torch.rand(2, 3, 64, 64))
    same = [torch.equal(old, new) for old, new in zip(before, statistics(backbone), strict=True)]
    assert all(same) if frozen else not any(same)
    assert backbone.training
    assert all(parameter.requires_grad for parameter in backbone.parameters())  # only the statistics stand still


# --- frozen layers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext"])
@pytest.mark.parametrize("stride", [4, 8, 16, 32])
def test_layers_up_to_a_stride_are_frozen_and_the_others_learn(name: str, stride: int) -> None:
    backbone = make(name, frozen_stride=stride)
    features = backbone(torch.rand(2, 3, 64, 64))
    for level, feature in zip((4, 8, 16, 32), features, strict=True):
        assert feature.requires_grad == (level > stride)
    learns = [parameter.requires_grad for parameter in backbone.parameters()]
    assert learns == sorted(learns)  # first the frozen ones
    if stride < 32:
        sum(feature.sum() for feature in features[(4, 8, 16, 32).index(stride) + 1 :]).backward()
        assert all(parameter.grad is not None for parameter in backbone.parameters() if parameter.requires_grad)


def test_freezing_leaves_weights_statistics_and_the_random_state_alone() -> None:
    torch.manual_seed(0)
    free = make("test_resnet")
    after_free = torch.rand(1)
    torch.manual_seed(0)
    frozen = make("test_resnet", frozen_stride=8)
    assert torch.equal(torch.rand(1), after_free)
    assert frozen.network.training == free.network.training
    for (name, first), second in zip(free.state_dict().items(), frozen.state_dict().values(), strict=True):
        assert torch.equal(first, second), name


@pytest.mark.parametrize("name", ["test_resnet", "tf_efficientnet_lite0"])
def test_it_is_built_for_its_shapes_alone(name: str) -> None:
    with torch.device("meta"):
        planned = Backbone(BackboneConfig(name=name, weights="none"))
    real = Backbone(BackboneConfig(name=name, weights="none"))
    assert {key: value.shape for key, value in planned.state_dict().items()} == {
        key: value.shape for key, value in real.state_dict().items()
    }
