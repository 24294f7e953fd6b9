"""CoMasTRe and its variants, as the registry knows them."""

from __future__ import annotations

from dataclasses import replace

from comastre.config.methods import MethodSpec
from comastre.methods.comastre.config import ComastreConfig

COMASTRE = MethodSpec(
    name="comastre",
    title="CoMasTRe",
    about="masks first, names after; the old model teaches objectness and classes (CVPR 2024)",
    config=ComastreConfig,
    implementation="comastre.methods.comastre.method:comastre",
    section="comastre",
    gives=frozenset({"labels", "segments", "proposals"}),
    taught_at_once_by="comastre-exact",
    presets="comastre.methods.comastre.presets",
)
FINETUNE = replace(
    COMASTRE,
    name="finetune",
    title="fine-tuning",
    about="CoMasTRe's segmenter and losses on the new classes, with nothing that remembers: the floor",
    implementation="comastre.methods.comastre.method:finetune",
    taught_at_once_by=None,
    presets=("comastre.methods.comastre.presets", "comastre.methods.comastre.finetune_presets"),
)
JOINT = replace(
    COMASTRE,
    name="joint",
    title="joint training",
    about="CoMasTRe's segmenter on all classes at once: the ceiling",
    implementation="comastre.methods.comastre.method:joint",
    all_at_once=True,
    learns_on_as="comastre",
)
OBJECTNESS = replace(
    COMASTRE,
    name="objectness",
    title="stage 1 alone",
    about="CoMasTRe's stage 1 alone, which proposes masks and names none (paper Table 4)",
    implementation="comastre.methods.comastre.stage_one:objectness",
    gives=frozenset({"proposals"}),
    all_at_once=True,
    learns_on_as="comastre",
)
