"""The per-pixel methods, as the registry knows them.

Those whose first step is plain cross-entropy share a section, so that one may start from another's first step.
"""

from __future__ import annotations

from dataclasses import replace

from comastre.config.methods import MethodSpec
from comastre.methods.perpixel.config import (
    DeepLabConfig,
    MibConfig,
    PlopConfig,
    RcilConfig,
    ReminderConfig,
    SdrConfig,
)

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
    needs_values=True,
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
PLOP = replace(
    MIB,
    name="plop",
    title="PLOP",
    about="labels pixels; background is what the old model is sure of, and features keep their local means (CVPR 2021)",
    config=PlopConfig,
    implementation="comastre.methods.perpixel.plop:Plop",
    presets=(_SHARED, f"{_SHARED}.plop"),
)
# First steps of their own: SDR's has one loss more, REMINDER's ends with prototypes, RCIL's has two branches.
SDR = replace(
    MIB,
    name="sdr",
    title="SDR",
    about="MiB with features that are sparse, near their class's prototype and far from others (CVPR 2021)",
    config=SdrConfig,
    implementation="comastre.methods.perpixel.sdr:Sdr",
    section="sdr",
    presets=(_SHARED, f"{_SHARED}.sdr"),
)
REMINDER = replace(
    PLOP,
    name="reminder",
    title="REMINDER",
    about="PLOP that also keeps old probabilities of new pixels, by how alike the classes are (CVPR 2022)",
    config=ReminderConfig,
    implementation="comastre.methods.perpixel.reminder:Reminder",
    section="reminder",
    presets=(_SHARED, f"{_SHARED}.reminder"),
)
RCIL = replace(
    MIB,
    name="rcil",
    title="RCIL",
    about="MiB with a still and a learning branch per convolution, folded after each step (CVPR 2022)",
    config=RcilConfig,
    implementation="comastre.methods.perpixel.rcil:Rcil",
    section="rcil",
    presets=(_SHARED, f"{_SHARED}.rcil"),
)
