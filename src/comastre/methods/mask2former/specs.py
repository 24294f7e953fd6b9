"""Mask2Former, as the registry knows it."""

from __future__ import annotations

from dataclasses import replace

from comastre.config.methods import MethodSpec
from comastre.methods.mask2former.config import Mask2FormerConfig

MASK2FORMER = MethodSpec(
    name="mask2former",
    title="Mask2Former",
    about="Mask2Former, fine-tuned: its classifier grows, and nothing remembers; the floor of query methods",
    config=Mask2FormerConfig,
    implementation="comastre.methods.mask2former.method:mask2former",
    section="mask2former",
    gives=frozenset({"labels", "segments", "proposals"}),
    learns_on_as="comformer",
    presets="comastre.methods.mask2former.presets",
)
MASK2FORMER_JOINT = replace(
    MASK2FORMER,
    name="mask2former-joint",
    title="Mask2Former, joint training",
    about="Mask2Former on all classes at once: the ceiling of query methods (paper Table 3)",
    all_at_once=True,
)
