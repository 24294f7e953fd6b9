"""Image features at strides 4, 8, 16 and 32 from any timm model."""

from __future__ import annotations

import difflib
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from timm.models import FeatureListNet
from torch import Tensor, nn

from comastre.config.sections import BackboneConfig
from comastre.errors import UserError
from comastre.nets.chain import Link, Passed, is_chain, links_of, one_by_one, pass_through
from comastre.nets.folded_norm import fold_norms
from comastre.nets.recompute import Recomputing
from comastre.nets.still_batch_norm import ease_batch_norm
from comastre.nets.swin import SwinPyramid, is_swin
from comastre.noise import quiet, short_of_retries

_STRIDES = (4, 8, 16, 32)
_PROBE = torch.zeros(1, 3, 64, 64)  # shows which layers a network's features are made of


class Backbone(Recomputing):
    """A timm feature pyramid that normalises its images and can hold its BatchNorm statistics still."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: BackboneConfig, output_stride: int = 32) -> None:
        """With an `output_stride` of 8 or 16 the stages behind it are dilated in place of strided."""
        super().__init__()
        self.network = _create(config, output_stride)
        ease_batch_norm(self.network)
        reductions = self.network.feature_info.reduction()
        strides = [min(stride, output_stride) for stride in _STRIDES]
        missing = [stride for stride in strides if reductions.count(stride) < strides.count(stride)]
        if missing:
            raise UserError(
                f"backbone.name {config.name!r} gives features at strides {reductions}, but {missing} are needed too: "
                "choose a pyramid such as resnet50.tv_in1k, convnext_tiny or tf_efficientnet_lite0."
            )
        if getattr(self.network, "output_fmt", "NCHW") == "NHWC":  # relatives of Swin
            raise UserError(
                f"backbone.name {config.name!r} reads images of one size only, but any size is needed: "
                "choose a network such as resnet50.tv_in1k, convnext_tiny or tf_efficientnet_lite0."
            )
        self._indices = _stages(reductions, strides)
        channels = self.network.feature_info.channels()
        self.channels = tuple(channels[index] for index in self._indices)
        trained_with = self.network.pretrained_cfg
        mean = config.mean or trained_with.get("mean", (0.485, 0.456, 0.406))
        std = config.std or trained_with.get("std", (0.229, 0.224, 0.225))
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)
        self.config = config
        if config.frozen_stride:
            self._freeze_up_to(_STRIDES.index(config.frozen_stride))
        self._has_batch_norm = any(_is_norm(module) for module in self.modules())
        self._norm_weights = self._trained_norm_weights() if config.freeze_batch_norm_weights else frozenset()
        # Built for its shapes alone, as foreign models first are, it has no numbers to try with.
        has_numbers = not next(self.network.parameters()).is_meta
        self._is_chain = has_numbers and is_chain(self.network, _PROBE)
        if has_numbers:
            fold_norms(self.network, _PROBE)
        self.one_by_one = True
        """Whether layers that stand still may see one image after the other."""
        self.frozen_batch_norm = False
        self.enter_step(0)

    @property
    def places(self) -> tuple[int, ...]:
        """Which of the network's features its four maps are."""
        return self._indices

    def train(self, mode: bool = True) -> Backbone:
        super().train(mode)
        if self.frozen_batch_norm:
            for module in self.modules():
                if _is_norm(module):
                    module.eval()
        return self

    def enter_step(self, step: int) -> None:
        """Hold BatchNorm still in this step (0-based), or let its statistics follow the data, as configured."""
        self.frozen_batch_norm = self.config.holds_batch_norm(step)
        for name, parameter in self.network.named_parameters():
            if name in self._norm_weights:
                parameter.requires_grad_(not self.frozen_batch_norm)
        self.train(self.training)

    def _trained_norm_weights(self) -> frozenset[str]:
        """Names of the weights and biases of BatchNorm that no `frozen_stride` holds."""
        return frozenset(
            f"{path}.{name}"
            for path, module in self.network.named_modules()
            if _is_norm(module)
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad
        )

    def _freeze_up_to(self, level: int) -> None:
        """Freeze what the features of this level are made of, whatever the network calls its layers."""
        parameters = list(self.network.parameters())
        features = self.network.eval()(_PROBE.to(parameters[0].device))[self._indices[level]]
        gradients = torch.autograd.grad(features.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.requires_grad_(False)
        self.network.train()

    def normalise(self, images: Tensor, padding: Tensor | None) -> Tensor:
        """Images in 0..1 (or uint8) to what the network was trained on; padding (B, H, W) becomes the mean colour."""
        if images.dtype == torch.uint8:
            images = images.float() / 255
        images = (images - self.mean) / self.std
        images = images if padding is None else images.masked_fill(padding[:, None], 0.0)
        # On a CPU depthwise and pointwise convolutions are up to a fifth faster when a pixel's channels are neighbours;
        # BatchNorm's statistics are then far less exact, so only where they stand still.
        still = self.frozen_batch_norm or not self.training
        return images.contiguous(memory_format=torch.channels_last) if still and images.device.type == "cpu" else images

    def begin(self, images: Tensor, padding: Tensor | None = None) -> Passed | None:
        """What the first layers, those that stand still, make of images (B, 3, H, W): the same for a teacher's.

        None of a network that is no chain of modules, and where its inside is not kept.
        """
        links = links_of(self.network) if self._is_chain and not self.recompute else ()
        if not links:
            return None
        still = self._standing_still(links)
        begun = Passed(self.normalise(images, padding), (), 0)
        if self.one_by_one and images.device.type == "cpu":
            large = still[: self._finest_link(links)]
            begun = one_by_one(large, begun)
        return pass_through(still[begun.links :], begun)

    def begins_like(self, other: Backbone) -> bool:
        """Whether `begin` gives the same for both: asked once per step, because it compares all numbers."""
        if not self._is_chain or not other._is_chain:
            return False
        ours, theirs = (each._standing_still(links_of(each.network)) for each in (self, other))
        if len(ours) > len(theirs):
            return False
        one, another = self._numbers(ours), other._numbers(theirs[: len(ours)])
        return one.keys() == another.keys() and all(torch.equal(one[name], another[name]) for name in one)

    def _numbers(self, links: tuple[Link, ...]) -> dict[str, Tensor]:
        """All that the links compute with."""
        found = {"mean": self.mean, "std": self.std}
        for place, link in enumerate(links):
            found |= {f"{place}.{name}": tensor for name, tensor in link.module.state_dict().items()}
        return found

    def _finest_link(self, links: tuple[Link, ...]) -> int:
        """How many links it takes to the feature of stride 4."""
        taken = [place for place, link in enumerate(links, start=1) if link.taken]
        return taken[self._indices[0]]

    def _standing_still(self, links: tuple[Link, ...]) -> tuple[Link, ...]:
        """The first links, as long as nothing in them learns."""
        count = 0
        for link in links:
            learns = any(parameter.requires_grad for parameter in link.module.parameters())
            follows = any(module.training for module in link.module.modules() if _is_norm(module))
            if learns or follows:
                break
            count += 1
        return links[:count]

    def forward(
        self, images: Tensor, padding: Tensor | None = None, begun: Passed | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(B, 3, H, W) in 0..1 -> four maps (B, c, H / s, W / s), s = 4, 8, 16, 32.

        What `begin` gave for the images, of this backbone or of one that begins like it, is not computed again.
        """
        begun = begun or self.begin(images, padding)
        if begun is None:
            features = self._run(self.normalise(images, padding))
        else:
            features = pass_through(links_of(self.network)[begun.links :], begun).features
        first, second, third, fourth = (features[index] for index in self._indices)
        return first, second, third, fourth

    def _run(self, images: Tensor) -> Sequence[Tensor]:
        """The features; with `recompute` the inside of a stage, or of a network without any, is not kept."""
        follows_data = self.training and not self.frozen_batch_norm and self._has_batch_norm
        if not self.recompute or follows_data:  # statistics that follow the data would follow it twice
            return self.network(images)
        if not isinstance(self.network, FeatureListNet):
            return self.lightly(self.network, images)
        features: list[Tensor] = []
        for name, stage in self.network.items():
            images = self.lightly(stage, images) if isinstance(stage, nn.Sequential) else stage(images)
            if name in self.network.return_layers:
                features.append(images)
        return features


def _is_norm(module: nn.Module) -> bool:
    """Whether it follows the statistics of batches."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _stages(reductions: list[int], strides: list[int]) -> tuple[int, ...]:
    """Which feature of a network is that of each stride: the deepest, where a network gives several of one stride.

    Strides that come several times are those of dilated stages, the last ones of the network.
    """
    found: list[int] = []
    end = len(reductions)
    for stride in reversed(strides):
        end -= 1 + reductions[:end][::-1].index(stride)
        found.insert(0, end)
    return tuple(found)


def _create(config: BackboneConfig, output_stride: int) -> Any:
    """The timm network with the weights that the configuration names."""
    options: dict[str, Any] = {} if output_stride == 32 else {"output_stride": output_stride}
    state: dict[str, Tensor] | None = None
    if config.weights == "hub":
        options["pretrained"] = True
    elif config.weights != "none":
        # timm maps a full state dict onto the feature pyramid itself; reading the file safely stays ours.
        state = read_state_dict(Path(config.weights))
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": state}}
    try:
        # Of unexpected keys timm warns at every start: a classifier's layers, which no segmenter has.
        with short_of_retries() if config.weights == "hub" else quiet("timm"):
            network: Any = (
                SwinPyramid(config.name, **options)
                if is_swin(config.name)
                else timm.create_model(config.name, features_only=True, **options)
            )
    except RuntimeError as error:
        if "Unknown model" in str(error) or "Invalid pretrained tag" in str(error):
            raise UserError(
                f"backbone.name {config.name!r} is not a timm model; close names: {_close_names(config.name)}."
            ) from error
        if state is not None and "state_dict" in str(error):
            raise _misfit(config) from error
        if config.weights == "hub" and "pretrained" in str(error):
            raise UserError(
                f"There are no public weights of {config.name!r}: give a local file or 'none' as --backbone.weights."
            ) from error
        raise
    except (TypeError, AssertionError, NotImplementedError) as error:
        if output_stride == 32:
            raise
        raise UserError(
            f"backbone.name {config.name!r} cannot give features at stride {output_stride}, as it has no dilated form: "
            "choose a network such as resnet50.tv_in1k, convnext_tiny or tf_efficientnet_lite0."
        ) from error
    except OSError as error:
        raise UserError(
            f"The weights of {config.name!r} could not be fetched ({type(error).__name__}): "
            "check the network, or give a local .safetensors file or 'none' as --backbone.weights."
        ) from error
    if state is not None and not _comes_from(network, state):
        raise _misfit(config)
    return network


def _comes_from(network: nn.Module, state: dict[str, Tensor]) -> bool:
    """Whether every kernel of the network is in the state: timm leaves what it finds no weights for random, silently.

    Extremes tell kernels apart, whatever names and layout the file has.
    """

    def extremes(tensor: Tensor) -> tuple[int, float, float]:
        tensor = tensor.detach().float()
        return tensor.numel(), tensor.min().item(), tensor.max().item()

    given = {extremes(tensor) for tensor in state.values() if tensor.numel()}
    return all(extremes(parameter) in given for parameter in network.parameters() if parameter.dim() > 1)


def _misfit(config: BackboneConfig) -> UserError:
    return UserError(
        f"backbone.weights {config.weights!r} do not fit backbone.name {config.name!r}: "
        "give the weights of that very network, or 'none'."
    )


def _close_names(name: str) -> str:
    """Names of timm that look like `name`; its pretrained variants where only the tag is wrong."""
    architecture = name.split(".")[0]
    variants = timm.list_pretrained(f"{architecture}.*")
    return ", ".join(variants or difflib.get_close_matches(architecture, timm.list_models(), n=5)) or "none"


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors of a .safetensors or state-dict file, without ever running code from it."""
    if not path.is_file():
        raise UserError(f"backbone.weights: there is no file {str(path)!r}; give 'hub', 'none' or an existing file.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd pickles, which are refused here anyway
            state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # weights_only refuses pickles that hold anything but tensors.
        raise UserError(
            f"backbone.weights: {str(path)!r} holds more than tensors and is not opened, as it could run code; "
            "save its state dict as .safetensors."
        ) from error
    except Exception as error:  # what a damaged file raises depends on where the damage is
        raise UserError(f"backbone.weights: {str(path)!r} is damaged or not a weights file; fetch it again.") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"backbone.weights: {str(path)!r} is not a state dict of tensors.")
    return {name.removeprefix("module."): value for name, value in state.items()}
