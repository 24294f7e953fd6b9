"""The verb `comastre demo`: the main job on embedded data on a CPU in minutes, and what was forgotten."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from comastre.config.run import RunConfig
    from comastre.evaluation.results import Results

Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]

# Background is nearly all of a small image: left in, it would hide what happens to the classes.
CONVENTION = "no_background_in_base"


def demo(
    out: Out = Path("comastre-demo"),
    seed: int = 0,
    paper: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    fresh: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Learn a stream of classes on built-in data, with no download, and show what was forgotten.

    Args:
        out: Folder for the runs; started again, an interrupted demo goes on.
        seed: Seed of weights, order and points.
        paper: Also run with the paper's own switches, to see what is the paper's and what is ours.
        fresh: Start over; what was there is kept aside.
    """
    learn_and_compare(out, {"seed": seed}, paper=paper, fresh=fresh)
    return 0


@dataclass(frozen=True)
class Contender:
    """One row of the demo's table."""

    title: str
    config: RunConfig
    folder: Path
    base: Path | None = None
    """The run whose first step this one takes as its own."""


def contenders(out: Path, changes: Mapping[str, Any], paper: bool) -> list[Contender]:
    """CoMasTRe and plain fine-tuning from the same base model; on demand CoMasTRe with the paper's switches."""
    from comastre.config.settings import load_config
    from comastre.methods.comastre.config import PAPER
    from comastre.section import merge

    ours = load_config("demo", changes)
    plain = load_config("demo", merge(changes, {"method": "finetune"}))
    rows = [
        Contender("CoMasTRe", ours, out / "comastre"),
        Contender("fine-tuning", plain, out / "finetune", base=out / "comastre"),
    ]
    if paper:
        rows.append(
            Contender("paper's switches", load_config("demo", merge(changes, {"comastre": PAPER})), out / "paper")
        )
    return rows


def learn_and_compare(
    out: Path,
    changes: Mapping[str, Any],
    *,
    paper: bool = False,
    fresh: bool = False,
    console: Console | None = None,
) -> list[Results]:
    """Run the contenders one after the other and compare them; finished ones are shown at once.

    `changes` are laid over the preset `demo`, such as {"seed": 1}.
    """
    from rich.console import Console

    from comastre.report.write import REPORT, report_after
    from comastre.text import readable_time
    from comastre.training.run import run

    console = console or Console()
    began = time.perf_counter()
    rows = contenders(out, changes, paper)
    results = []
    for number, row in enumerate(rows, start=1):
        console.print(f"[{number}/{len(rows)}] {row.title} learns a stream of shapes", markup=False, highlight=False)
        results.append(run(row.config, row.folder, fresh=fresh, base=row.base))
    titles, page = [row.title for row in rows], out / REPORT
    console.print()
    console.print(score_table(titles, results))
    console.print(meaning(results[0], results[1]), highlight=False)
    console.print(
        f"Took {readable_time(time.perf_counter() - began)}. Results, models of every step and logs are in {out}: "
        f"try `comastre predict {out / 'comastre' / 'steps' / '02'} IMAGES --out DIR`.",
        highlight=False,
        soft_wrap=True,
    )
    if report_after([row.folder for row in rows], page, titles=titles, convention=CONVENTION) is not None:
        console.print(f"Open {page} to see what was remembered, class by class and picture by picture.", soft_wrap=True)
    return results


def score_table(titles: Sequence[str], results: Sequence[Results]) -> Table:
    """mIoU of base, incremented and all classes after every step, and the mean of `all` over the steps."""
    from rich import box
    from rich.table import Table

    table = Table(title="mIoU in % (base and inc without background, all with it)", box=box.SIMPLE_HEAD)
    table.add_column("learned", max_width=24)
    for title in titles:
        table.add_column(f"{title}\n base   inc   all", justify="right", no_wrap=True)
    for number, step in enumerate(results[0].steps):
        scores = [result.steps[number].conventions[CONVENTION] for result in results]
        cells = ["".join(_cell(value) for value in (score.base, score.inc, score.all)) for score in scores]
        table.add_row(f"{number + 1}: {', '.join(step.new_classes)}", *cells)
    table.add_section()
    table.add_row("avg over the steps", *(f"{result.avg:.1f}" for result in results))
    return table


def _cell(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.1f'):>6}"


def meaning(ours: Results, plain: Results) -> str:
    """One sentence on what the table says."""
    last, known = ours.steps[-1].conventions[CONVENTION], len(ours.steps[0].new_classes)
    return (
        f"Without an old image, CoMasTRe kept {_share(ours)} of what it knew of the first {known} "
        f"classes and learned {len(ours.class_order) - known} new ones ({last.inc or 0.0:.0f} mIoU); "
        f"plain fine-tuning kept {_share(plain)}."
    )


def _share(results: Results) -> str:
    return "nothing" if results.kept is None else f"{results.kept:.0f} %"
