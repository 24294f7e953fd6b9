"""What a lesson's model is measured by: scores, what it sees otherwise than the old one, and what it may not move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.evaluation.results import StepResult
from comastre.learning.comparing import Comparison
from comastre.learning.learned import Outcome
from comastre.learning.plan import Plan
from comastre.learning.scoring import score_old, shown_by_old_data
from comastre.training.launch import build_fabric


def measure(
    work: Path,
    plan: Plan,
    config: RunConfig,
    model: Any,
    before: StepResult | None,
    after: StepResult,
    old_before: Mapping[str, float | None],
    until: float | None = None,
    pictures: Path | None = None,
) -> Outcome:
    """Everything that can be said of the new `model`, no longer than `until` without labels.

    `before` and `after` are what the old and the new one scored where the lesson is scored, and `old_before` what the
    old one scored on data of old classes.
    """
    lesson, roles = plan.lesson, plan.lesson.roles
    outcome = Outcome(
        scores={name: after.per_class.get(name) for name in roles.names if name in lesson.scored},
        before=before.per_class if before is not None else {},
        old_before={},
        old_after={},
        errors={name: after.errors[name] for name in roles.taught if name in after.errors},
        alpha=after.alpha,
    )
    device = build_fabric(config.training).device
    model.to(device)
    if plan.old_data is not None:
        old_after = score_old(model, 1, config, plan, plan.old_data, device)
        shown = shown_by_old_data(plan, plan.old_data)
        outcome = replace(outcome, old_before=old_before, old_after=old_after, shown=shown)
    if roles.old:
        counts, sights = Comparison(work, lesson, config, device).look_after(model, until, pictures)
        agreement = tuple(counts.of(label) for label in range(1, len(roles.old) + 1))
        outcome = replace(outcome, agreement=agreement, compared=len(sights), sights=sights)
    model.cpu()
    return outcome


def largest_change(work: Path, plan: Plan, config: RunConfig, old: Any, new: Any) -> float:
    """The largest difference between what two models say of any proposal in the images at hand, by old classes."""
    device = build_fabric(config.training).device
    comparison = Comparison(work, plan.lesson, config, device)
    return _largest_change(comparison.shown_to_models(), old.to(device).eval(), new.to(device).eval())


def _largest_change(images: Iterable[tuple[Tensor, Tensor | None]], old: Any, new: Any) -> float:
    largest = 0.0
    for image, padding in images:
        was, now = old.scores(image, padding), new.scores(image, padding)
        if not was.keys() <= now.keys():
            raise UserError("the two models do not say the same things of a proposal: nothing can be guaranteed")
        for name, tensor in was.items():
            kept = now[name][:, : tensor.shape[1]]  # queries and classes that came later stand behind
            kept = kept[..., : tensor.shape[2]] if tensor.dim() == 3 else kept
            # Of minus infinity, a class that nobody has seen, the difference would be no number.
            differs = torch.where(kept == tensor, 0.0, (kept.double() - tensor.double()).abs())
            largest = max(largest, float(differs.nan_to_num(nan=torch.inf, posinf=torch.inf).max()))
    return largest
