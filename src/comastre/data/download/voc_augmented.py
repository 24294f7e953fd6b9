"""VOC's train_aug as plain files: SBD's MATLAB labels become PNG masks beside VOC's own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from comastre.data.parallel import each_in_parallel
from comastre.data.sets.sbd import find_sbd, read_sbd
from comastre.data.sets.voc import find_voc, train_aug_names, voc_colours
from comastre.errors import UserError


def make_train_aug(root: Path) -> None:
    """Write SegmentationClassAug, SegmentationObjectAug and train_aug.txt, which comes last and says all is there."""
    folder = find_voc(root)
    final = folder / "ImageSets" / "Segmentation" / "train_aug.txt"
    if final.exists():
        return
    sbd = find_sbd(root, folder)
    if sbd is None:
        raise UserError(f"{root} holds no SBD (benchmark_RELEASE/dataset): run `comastre data prepare voc` again.")
    names = train_aug_names(folder, sbd)
    for own, source, made in (
        ("SegmentationClass", "cls", "SegmentationClassAug"),
        ("SegmentationObject", "inst", "SegmentationObjectAug"),
    ):
        aside = folder / f".{made}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        convert = _Convert(tuple(names), folder / own, sbd / source, aside)
        _refuse_errors(each_in_parallel(convert, len(names), f"{made} from SBD"))
        shutil.rmtree(folder / made, ignore_errors=True)
        aside.replace(folder / made)
    aside = final.with_name(f".{final.name}.partial")
    aside.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    aside.replace(final)


def _refuse_errors(answers: Sequence[object]) -> None:
    for answer in answers:
        if isinstance(answer, UserError):
            raise answer


@dataclass(frozen=True)
class _Convert:
    """Writes the mask of one image: VOC's own where there is one, else SBD's."""

    names: tuple[str, ...]
    own: Path
    sbd: Path
    out: Path

    def __call__(self, index: int) -> None:
        name = self.names[index]
        target = self.out / f"{name}.png"
        own = self.own / f"{name}.png"
        if own.exists():
            shutil.copyfile(own, target)
            return
        mask = Image.fromarray(read_sbd(self.sbd / f"{name}.mat"))
        mask.putpalette([channel for colour in voc_colours(256) for channel in colour])
        mask.save(target)
