"""A trained segmenter that stays as it is, with the statistics of all classes beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from comastre.errors import UserError
from comastre.methods.comastre.config import ModelConfig
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.methods.exact import inference
from comastre.methods.exact.discriminant import Discriminant
from comastre.methods.exact.own_queries import OwnQueries, build_own
from comastre.methods.features_in_masks import LEVELS
from comastre.segmentation import Segmentation, Size

_DIGEST = 32
_STATISTICS = ("discriminant.means", "discriminant.counts")


class ExactSegmenter(Segmenter):
    """Classes of the first tasks are recognised by a trained stage 2, those of later tasks by their statistics.

    A step that ends puts a seal on all tensors, by which the next one can tell that none has moved since.
    """

    seal: Tensor
    """(32,) uint8: SHA-256 of everything that is learned; zeros while the first step is trained."""

    def __init__(self, trained: Segmenter, later: Sequence[int], own_queries: int = 0) -> None:
        super().__init__(
            trained.config, trained.backbone, trained.pixel_decoder, trained.mask_decoder, trained.class_decoder
        )
        self.later_tasks = list(later)
        width = LEVELS * trained.config.pixel_decoder.dim
        self.discriminant = Discriminant(width, sum(self.tasks))
        self.num_own = own_queries
        self.own = build_own(trained.config, own_queries, later)
        self.register_buffer("seal", torch.zeros(_DIGEST, dtype=torch.uint8))

    @property
    def tasks(self) -> tuple[int, ...]:
        return (*self.class_decoder.tasks, *self.later_tasks)

    def add_task(self, num_classes: int) -> None:
        """Grow by a task: rows for its statistics, and queries of its own where steps have some."""
        if num_classes < 1:
            raise ValueError(f"a task needs at least one class, not {num_classes}")
        self.later_tasks.append(num_classes)
        self.discriminant.grow(num_classes)
        if self.num_own:
            own = OwnQueries(self.config, self.num_own, num_classes).to(self.discriminant.means.device)
            own.start(self.mask_decoder, self.class_decoder)
            self.own.append(own)

    @property
    def newest(self) -> OwnQueries:
        """The queries of the newest task."""
        own = self.own[-1]
        assert isinstance(own, OwnQueries)
        return own

    @torch.no_grad()
    def scores(self, images: Tensor, padding: Tensor | None = None) -> dict[str, Tensor]:
        """With the log-odds (B, N, 1 + C) of all classes."""
        stage_one = self.propose(images, padding, every_layer=False)
        features, _ = self.look_at(stage_one.pixels, stage_one.final.mask_logits >= 0)
        return {**super().scores(images, padding), "log-odds": self.discriminant(features)}

    def segment(
        self,
        images: Tensor,
        padding: Tensor | None = None,
        sizes: Sequence[Size] | None = None,
        original_sizes: Sequence[Size] | None = None,
    ) -> list[Segmentation]:
        return inference.segment(self, images, padding, sizes, original_sizes)

    # --- a model that stays as it is ---------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """What is sealed is never in training mode, in which BatchNorm's statistics would move."""
        return super().train(mode and not self.sealed)

    def hold_still(self) -> None:
        """Let nothing be trained but the newest queries."""
        self.requires_grad_(False)
        if self.own:
            self.newest.requires_grad_(True)

    @property
    def sealed(self) -> bool:
        """Whether its first step has ended."""
        return bool(self.seal.any())

    def close(self, num_classes: int) -> None:
        """Put a seal on everything but the statistics of classes after the first `num_classes`."""
        self.seal.copy_(self._digest(num_classes))

    def refuse_changed(self, num_classes: int) -> None:
        """Make sure that all is as it was sealed, when there were `num_classes` classes."""
        if not torch.equal(self.seal.cpu(), self._digest(num_classes)):
            raise UserError(
                "numbers of the model are not those that were sealed after its last step, so that nothing can be "
                "promised of its old classes: start from the model as it was written"
            )

    def _digest(self, num_classes: int) -> Tensor:
        """SHA-256 of all tensors that are of the first `num_classes` classes."""
        mark = hashlib.sha256()
        before = sum(self.class_decoder.tasks)
        later = tuple(
            f"own.{number}."
            for number in range(len(self.own))
            if before + sum(self.later_tasks[:number]) >= num_classes
        )
        for name, tensor in sorted(self.state_dict().items()):
            if name == "seal" or name.startswith(later):
                continue
            rows = tensor[: 1 + num_classes] if name in _STATISTICS else tensor
            mark.update(name.encode())
            mark.update(rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return torch.tensor(list(mark.digest()), dtype=torch.uint8)


def build_exact(config: ModelConfig, tasks: Sequence[int], trained_tasks: int, own_queries: int = 0) -> ExactSegmenter:
    """A model whose first tasks have classifiers and whose later ones have statistics, none of them known yet."""
    return ExactSegmenter(build_segmenter(config, tasks[:trained_tasks]), tasks[trained_tasks:], own_queries)
