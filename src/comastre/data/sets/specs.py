"""Our own datasets, as `pyproject.toml` names them to the entry points; like a third party's, without heavy imports."""

from __future__ import annotations

from dataclasses import replace

from comastre.config.datasets import DatasetSpec

SHAPES = DatasetSpec(
    name="shapes",
    title="Shapes",
    about="ten rendered shapes, drawn on the fly: built in",
    implementation="comastre.data.sets.shapes:build",
    needs_root=False,
    preset="shapes-6-2",
    fields=("train_images", "val_images", "image_size", "seed"),
    validation_fields=("image_size", "seed", "val_images"),
)
OTHER_SHAPES = replace(
    SHAPES,
    name="shapes_other",
    title="Other Shapes",
    about="eight rendered shapes that shapes lacks: built in",
    implementation="comastre.data.sets.shapes:build_other",
    preset=None,
)
VOC = DatasetSpec(
    name="voc",
    title="Pascal VOC",
    about="Pascal VOC 2012, 20 classes, with SBD where it is there",
    implementation="comastre.data.sets.voc:build",
    preset="voc-15-5",
    signs=("JPEGImages", "VOC2012", "VOCdevkit"),
)
ADE20K = DatasetSpec(
    name="ade20k",
    title="ADE20K",
    about="ADE20K as in the scene parsing challenge of 2016, 150 classes",
    implementation="comastre.data.sets.ade20k:build",
    preset="ade20k-100-50",
    signs=("ADEChallengeData2016",),
)
COCO = DatasetSpec(
    name="coco",
    title="COCO",
    about="COCO 2017: 133 panoptic classes, or 80 of objects",
    implementation="comastre.data.sets.coco:build",
    fields=("coco_labels", "without", "without_removes"),
    validation_fields=("coco_labels",),
)
FOLDER = DatasetSpec(
    name="folder",
    title="folder",
    about="your own images/, masks/ and classes.txt",
    implementation="comastre.data.sets.folder:build",
    fields=("held_out",),
    validation_fields=("held_out",),
    has_validation="comastre.data.sets.folder:has_validation",
)
COCO_JSON = DatasetSpec(
    name="coco_json",
    title="coco_json",
    about="your own images with a file in COCO's instance format",
    implementation="comastre.data.sets.coco_json:build",
    fields=("train_json", "val_json", "held_out", "without", "without_removes"),
    validation_fields=("held_out", "val_json"),
    has_validation="comastre.data.sets.coco_json:has_validation",
)
YOLO = DatasetSpec(
    name="yolo",
    title="yolo",
    about="your own images with data.yaml and polygons in YOLO's segmentation format",
    implementation="comastre.data.sets.yolo:build",
    fields=("held_out",),
    validation_fields=("held_out",),
    has_validation="comastre.data.sets.yolo:has_validation",
)
LABEL_STUDIO = DatasetSpec(
    name="label_studio",
    title="label_studio",
    about="your own images with Label Studio's JSON export",
    implementation="comastre.data.sets.label_studio:build",
    fields=("train_json", "held_out"),
    validation_fields=("held_out",),
    has_validation="comastre.data.sets.label_studio:has_validation",
)
CVAT = DatasetSpec(
    name="cvat",
    title="cvat",
    about="your own images with CVAT's export 'CVAT for images' or Datumaro's",
    implementation="comastre.data.sets.cvat:build",
    fields=("train_json", "held_out"),
    validation_fields=("held_out",),
    has_validation="comastre.data.sets.cvat:has_validation",
)
VOC_PAIRS = DatasetSpec(
    name="voc_pairs",
    title="voc_pairs",
    about="your own images and masks in Pascal VOC's folders, with labelmap.txt, class_names.txt or XML files",
    implementation="comastre.data.sets.voc_pairs:build",
    fields=("held_out",),
    validation_fields=("held_out",),
    has_validation="comastre.data.sets.voc_pairs:has_validation",
)
