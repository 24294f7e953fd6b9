"""From a method's name and settings to the method itself."""

from __future__ import annotations

import importlib

from comastre.config import methods
from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.methods.protocol import Method, Setup


def setup_of(config: RunConfig) -> Setup:
    """What a run's configuration says of its method."""
    return Setup(config.backbone, config.method_settings, config.size)


def build_method(name: str, setup: Setup) -> Method:
    """The method of that name with its settings."""
    spec = methods.find(name)
    module, _, attribute = spec.implementation.partition(":")
    try:
        make = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"the method {name} cannot be used: {spec.implementation} is not there ({error}); "
            "install its package again, or tell its authors"
        ) from error
    method: Method = make(setup)
    return method
