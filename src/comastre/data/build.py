"""From the data section of a configuration to the training and the validation set."""

from __future__ import annotations

from comastre.config.run import DataConfig
from comastre.data.dataset import SegmentationDataset
from comastre.data.files import FileDataset
from comastre.errors import UserError


def build_datasets(config: DataConfig, require_files: bool = True) -> tuple[SegmentationDataset, SegmentationDataset]:
    """The training and the validation set that `config` names; files are read when samples are asked for."""
    training, validation = _pair(config)
    for dataset in (training, validation):
        if require_files and isinstance(dataset, FileDataset):
            dataset.require_files()
    if training.class_names != validation.class_names:
        raise UserError(
            f"The training and validation split of {config.dataset} in {config.root} have different classes: "
            "give both the same list of classes."
        )
    return training, validation


def _pair(config: DataConfig) -> tuple[SegmentationDataset, SegmentationDataset]:
    match config.dataset:
        case "shapes":
            from comastre.data.sets.shapes import drawn_once

            size, seed = config.image_size, config.seed
            return drawn_once("train", size, config.train_images, seed), drawn_once(
                "val", size, config.val_images, seed
            )
        case "voc":
            from comastre.data.sets.voc import voc

            return voc(config.root, "train"), voc(config.root, "val")
        case "ade20k":
            from comastre.data.sets.ade20k import ade20k

            return ade20k(config.root, "train"), ade20k(config.root, "val")
        case "coco":
            from comastre.data.sets.coco import coco
            from comastre.data.sets.removal import Removal

            labels, removal = config.coco_labels, Removal.of(config)
            return coco(config.root, "train", labels, removal), coco(config.root, "val", labels, removal)
        case "folder":
            from comastre.data.sets.folder import folder

            return folder(config.root, "train", config.held_out), folder(config.root, "val", config.held_out)
        case "coco_json":
            from comastre.data.sets.coco_json import coco_json
            from comastre.data.sets.removal import Removal

            options = (config.train_json, config.val_json, config.held_out, Removal.of(config))
            return coco_json(config.root, "train", *options), coco_json(config.root, "val", *options)
    raise UserError(f"data.dataset is '{config.dataset}' but must be shapes, voc, ade20k, coco, folder or coco_json.")
