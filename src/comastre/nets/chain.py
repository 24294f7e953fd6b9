"""A backbone as modules in a row, so that its first ones can run apart from the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.models._features import FeatureListNet
from timm.models.efficientnet import EfficientNetFeatures
from torch import Tensor, nn


@dataclass(frozen=True)
class Link:
    """One module of a chain."""

    module: nn.Module
    taken: bool
    """Whether what it gives is a feature of the network."""


@dataclass(frozen=True)
class Passed:
    """What the first links of a chain have made of a batch."""

    maps: Tensor
    """The last one's result, (B, c, h, w)."""
    features: tuple[Tensor, ...]
    """Features on the way."""
    links: int
    """How many there were."""


def links_of(network: Any) -> tuple[Link, ...]:
    """The modules of a network of timm that is a chain, in order; none of another."""
    if getattr(network, "grad_checkpointing", False):  # its own pass knows what to compute again
        return ()
    if isinstance(network, FeatureListNet):
        return tuple(Link(module, name in network.return_layers) for name, module in network.items())
    if isinstance(network, EfficientNetFeatures) and network.feature_hooks is None:
        taken = network._stage_out_idx
        stem = (Link(network.conv_stem, False), Link(network.bn1, 0 in taken))
        return (*stem, *(Link(block, place in taken) for place, block in enumerate(network.blocks, start=1)))
    return ()


def is_chain(network: Any, images: Tensor) -> bool:
    """Whether the links of a network give what the network gives for the images (B, 3, H, W)."""
    links, was_training = links_of(network), network.training
    if not links or any(parameter.is_meta for parameter in network.parameters()):  # shapes only: nothing to compare
        return False
    with torch.no_grad():
        expected = network.eval()(images)
        found = _run(links, images)
    network.train(was_training)
    if found is None or len(found.features) != len(expected):
        return False
    return all(map(torch.equal, found.features, expected))


def pass_through(links: Sequence[Link], given: Passed) -> Passed:
    """Send a batch on through more links."""
    passed = _run(links, given.maps)
    assert passed is not None
    return Passed(passed.maps, (*given.features, *passed.features), given.links + len(links))


def one_by_one(links: Sequence[Link], given: Passed) -> Passed:
    """The same, image by image: on a CPU what lies between two layers then stays in the cache."""
    if not links:
        return given
    images = [pass_through(links, Passed(image, (), 0)) for image in given.maps.split(1)]
    features = tuple(torch.cat(maps) for maps in zip(*(image.features for image in images), strict=True))
    # Where the last result is a feature, too, it is copied once.
    maps = features[-1] if links[-1].taken else torch.cat([image.maps for image in images])
    return Passed(maps, (*given.features, *features), given.links + len(links))


def _run(links: Sequence[Link], maps: Any) -> Passed | None:
    """None where a module gives anything but a tensor."""
    features: list[Tensor] = []
    for link in links:
        maps = link.module(maps)
        if not isinstance(maps, Tensor):
            return None
        if link.taken:
            features.append(maps)
    return Passed(maps, tuple(features), len(links))
