"""From the data section of a configuration to the training and the validation set."""

from __future__ import annotations

from typing import Literal

from comastre.config.datasets import find_dataset
from comastre.config.run import DataConfig
from comastre.data.dataset import SegmentationDataset
from comastre.data.files import FileDataset
from comastre.errors import UserError


def build_datasets(config: DataConfig, require_files: bool = True) -> tuple[SegmentationDataset, SegmentationDataset]:
    """The training and the validation set that `config` names; files are read when samples are asked for."""
    training, validation = build_dataset(config, "train"), build_dataset(config, "val")
    for dataset in (training, validation):
        if require_files and isinstance(dataset, FileDataset):
            dataset.require_files()
    if training.class_names != validation.class_names:
        raise UserError(
            f"The training and validation split of {config.dataset} in {config.root} have different classes: "
            "give both the same list of classes."
        )
    return training, validation


def build_dataset(config: DataConfig, split: Literal["train", "val", "all"]) -> SegmentationDataset:
    """One split of the dataset that `config` names; "all" only where it has no validation split of its own."""
    dataset: SegmentationDataset = find_dataset(config.dataset).open(config, split)
    return dataset
