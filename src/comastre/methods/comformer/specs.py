"""CoMFormer and its adaptations of MiB and PLOP, as the registry knows them."""

from __future__ import annotations

from dataclasses import replace

from comastre.config.methods import MethodSpec
from comastre.methods.comformer.config import ComformerConfig

COMFORMER = MethodSpec(
    name="comformer",
    title="CoMFormer",
    about="Mask2Former that distils classes query by query and labels what the old model sees (CVPR 2023)",
    config=ComformerConfig,
    implementation="comastre.methods.comformer.method:comformer",
    section="comformer",
    gives=frozenset({"labels", "segments", "proposals"}),
    presets="comastre.methods.comformer.presets",
)
MIB_MASK = replace(
    COMFORMER,
    name="mib-mask",
    title="MiB on masks",
    about="CoMFormer's adaptation of MiB to queries: unbiased cross-entropy and distillation of classes",
    implementation="comastre.methods.comformer.method:mib_mask",
)
PLOP_MASK = replace(
    COMFORMER,
    name="plop-mask",
    title="PLOP on masks",
    about="CoMFormer's adaptation of PLOP to queries: labels of the old model and pooled features",
    implementation="comastre.methods.comformer.method:plop_mask",
)
