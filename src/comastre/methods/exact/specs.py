"""CoMasTRe with an exact guarantee, as the registry knows it."""

from __future__ import annotations

from dataclasses import replace

from comastre.methods.comastre.specs import COMASTRE
from comastre.methods.exact.config import ExactConfig

EXACT = replace(
    COMASTRE,
    name="comastre-exact",
    title="CoMasTRe, exact",
    about="CoMasTRe whose first step never moves again; a later class is learned by one look at its images (ours)",
    config=ExactConfig,
    implementation="comastre.methods.exact.method:exact",
    teaches=frozenset({"comastre"}),
    taught_at_once_by=None,  # that is itself
    presets=("comastre.methods.comastre.presets", "comastre.methods.exact.presets"),
)
