"""The per-pixel methods, as the registry knows them.

Those whose first step is plain cross-entropy share a section, so that one may start from another's first step.
"""

from __future__ import annotations

from dataclasses import replace

from comastre.config.methods import MethodSpec
from comastre.methods.perpixel.config import DeepLabConfig, MibConfig

_SHARED = "comastre.methods.perpixel.presets"

DEEPLAB_FINETUNE = MethodSpec(
    name="deeplab-finetune",
    title="DeepLabv3, fine-tuning",
    about="DeepLabv3 on the new classes, with nothing that remembers: the floor of the per-pixel methods",
    config=DeepLabConfig,
    implementation="comastre.methods.perpixel.finetune:DeepLabAlone",
    section="deeplab",
    gives=frozenset({"labels", "segments"}),
    presets=(_SHARED, f"{_SHARED}.deeplab"),
)
DEEPLAB_JOINT = replace(
    DEEPLAB_FINETUNE,
    name="deeplab-joint",
    title="DeepLabv3, joint training",
    about="DeepLabv3 on all classes at once: the ceiling of the per-pixel methods",
    all_at_once=True,
    learns_on_as="mib",
)
MIB = replace(
    DEEPLAB_FINETUNE,
    name="mib",
    title="MiB",
    about="labels pixels; background may be an old class, in labels and in what the old model teaches (CVPR 2020)",
    config=MibConfig,
    implementation="comastre.methods.perpixel.mib:Mib",
    presets=(_SHARED, f"{_SHARED}.mib"),
)
