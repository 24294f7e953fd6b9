"""Classes that are taken out of a dataset, such as those of VOC out of COCO (paper Table 4: no information leaks)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comastre.config.run import DataConfig
from comastre.data.sets.annotations import Categories
from comastre.errors import UserError
from comastre.text import shortened

VOC = "voc"
# The 20 classes of Pascal VOC under COCO's names.
VOC_IN_COCO: Mapping[str, str] = {
    "aeroplane": "airplane",
    "bicycle": "bicycle",
    "bird": "bird",
    "boat": "boat",
    "bottle": "bottle",
    "bus": "bus",
    "car": "car",
    "cat": "cat",
    "chair": "chair",
    "cow": "cow",
    "diningtable": "dining table",
    "dog": "dog",
    "horse": "horse",
    "motorbike": "motorcycle",
    "person": "person",
    "pottedplant": "potted plant",
    "sheep": "sheep",
    "sofa": "couch",
    "train": "train",
    "tvmonitor": "tv",
}


@dataclass(frozen=True)
class Removal:
    """Which classes go, and whether images that show one go with them."""

    names: tuple[str, ...] = ()
    """Category names, or 'voc' for all of VOC's."""
    whole_images: bool = False
    """Else only the objects go, and their pixels become background."""

    @classmethod
    def of(cls, config: DataConfig) -> Removal:
        return cls(config.without, config.without_removes == "images")

    def title(self, dataset: str) -> str:
        """The name of a dataset after the removal."""
        if not self.names:
            return dataset
        removed = VOC if self.names == (VOC,) else f"{len(self.names)}-classes"
        return f"{dataset}-without-{removed}"

    def apply(self, categories: Categories, path: Path) -> Categories:
        """The categories of the file `path` that stay, numbered anew; the others are mapped to 0."""
        gone = self._removed(categories.class_names, path)
        kept = [label for label, name in enumerate(categories.class_names, 1) if name not in gone]
        if not kept:
            raise UserError(f"data.without takes away every class of {path}: leave at least one.")
        renumbered = {old: new for new, old in enumerate(kept, 1)}
        return Categories(
            tuple(categories.class_names[label - 1] for label in kept),
            {category: renumbered.get(label, 0) for category, label in categories.label_of.items()},
            frozenset(renumbered[label] for label in categories.things if label in renumbered),
        )

    def drops(self, objects: Sequence[Mapping[str, Any]], categories: Categories) -> bool:
        """Whether the image with these annotations goes."""
        return self.whole_images and any(categories.label_of.get(each.get("category_id")) == 0 for each in objects)  # type: ignore[arg-type]

    def _removed(self, names: Collection[str], path: Path) -> frozenset[str]:
        own = frozenset(self.names) - {VOC}
        unknown = sorted(own - set(names))
        if unknown:
            raise UserError(
                f"data.without names '{unknown[0]}', which is no class of {path}: its classes are "
                f"{shortened(sorted(names), most=8)}."
            )
        # A small copy of COCO need not have them all.
        return own | (frozenset(VOC_IN_COCO.values()) if VOC in self.names else frozenset())


NOTHING = Removal()
