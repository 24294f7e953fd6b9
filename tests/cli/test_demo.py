"""The demo from end to end, on a stream that is far too short to learn anything."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from comastre.cli.demo import CONVENTION, contenders, learn_and_compare, meaning, score_table
from comastre.config.conventions import CONVENTIONS
from comastre.config.settings import differences
from comastre.evaluation.results import Results, StepResult
from comastre.evaluation.scores import Miou
from comastre.methods.comastre.config import PAPER

SHORT = {
    "data": {"train_images": 60, "val_images": 6},
    "training": {"iterations": 2, "iterations_per_class": 1, "batch_size": 2},
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Results], str, Path]:
    out = tmp_path_factory.mktemp("demo")
    screen = StringIO()
    results = learn_and_compare(out, SHORT, console=Console(file=screen, width=140))
    return results, screen.getvalue(), out


def test_both_methods_learn_the_stream_from_one_base_model(shown: tuple[list[Results], str, Path]) -> None:
    (ours, plain), _, out = shown
    assert (ours.method, plain.method) == ("comastre", "finetune")
    assert [len(step.new_classes) for step in ours.steps] == [6, 2, 2]
    assert plain.as_json()["steps"][0] == ours.as_json()["steps"][0]  # as JSON, because nan is not equal to itself
    weights = [(out / run / "steps" / "00" / "model.safetensors").read_bytes() for run in ("comastre", "finetune")]
    assert weights[0] == weights[1]


def test_the_screen_shows_every_score(shown: tuple[list[Results], str, Path]) -> None:
    results, screen, out = shown
    rows = screen.splitlines()
    # Classes may go over two lines; the scores stand in the first, those of all methods one after the other.
    for number in range(3):
        (row,) = [row.split() for row in rows if row.strip().startswith(f"{number + 1}: ")]
        scores = [result.steps[number].conventions[CONVENTION] for result in results]
        expected = [value for score in scores for value in (score.base, score.inc, score.all)]
        assert row[-len(expected) :] == ["-" if value is None else f"{value:.1f}" for value in expected]
    (row,) = [row.split() for row in rows if row.strip().startswith("avg over the steps")]
    assert row[-2:] == [f"{result.avg:.1f}" for result in results]
    assert str(out) in screen


def test_scores_stand_in_the_column_of_their_method(shown: tuple[list[Results], str, Path]) -> None:
    """Of made-up scores: those of the short stream above are all alike."""
    made = [
        replace(result, steps=tuple(scored(step, 10 * (column + 1) + step.step) for step in result.steps))
        for column, result in enumerate(shown[0])
    ]
    screen = StringIO()
    Console(file=screen, width=140).print(score_table(("ours", "plain"), made))
    rows = [row.split() for row in screen.getvalue().splitlines()]
    (second,) = [row for row in rows if row[:1] == ["2:"]]
    assert second[-6:] == ["11.0", "11.2", "11.1", "21.0", "21.2", "21.1"]
    (average,) = [row for row in rows if row[:1] == ["avg"]]
    assert average[-2:] == ["11.1", "21.1"]


def scored(step: StepResult, base: float) -> StepResult:
    scores = Miou(base, None if step.step == 0 else base + 0.2, base + 0.1)
    return replace(step, conventions=dict.fromkeys(CONVENTIONS, scores))


def test_the_last_sentence_says_where_the_report_is(shown: tuple[list[Results], str, Path]) -> None:
    _, screen, out = shown
    assert f"Open {out / 'report.html'} to see" in screen.splitlines()[-1]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "fine-tuning" in page and 'class="labels"' in page and "not recorded" not in page


def test_shown_again_without_training(shown: tuple[list[Results], str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    results, _, out = shown
    monkeypatch.setattr("comastre.training.run._train", None)
    again = learn_and_compare(out, SHORT, console=Console(file=StringIO()))
    assert [result.as_json() for result in again] == [result.as_json() for result in results]


def test_paper_run_has_the_papers_switches_and_the_demos_schedule(tmp_path: Path) -> None:
    ours, _, paper = contenders(tmp_path, {"seed": 3}, paper=True)
    settings = paper.config.method_settings
    assert not settings.class_decoder.masked_attention
    assert settings.inference.alpha == 0.8
    assert settings.matching.objectness_cost == 0
    assert not any(getattr(settings.classification, ours) for ours in ("negatives_for_new", "negatives_for_old"))
    assert not settings.classification.across_tasks
    assert settings.weights.score_kd == settings.weights.mask_kd == 1
    assert settings.optimiser == ours.config.method_settings.optimiser
    assert paper.config.seed == ours.config.seed == 3
    assert paper.config.training == ours.config.training
    assert settings.distillation.mask_loss == "printed"
    assert set(PAPER) == {"class_decoder", "inference", "matching", "classification", "distillation", "weights"}


def test_fine_tuning_differs_in_what_remembers_only(tmp_path: Path) -> None:
    ours, plain = contenders(tmp_path, {"seed": 3}, paper=False)
    assert [str(each) for each in differences(ours.config, plain.config)] == [
        "method: comastre -> finetune",
        "comastre.optimiser.later_learning_rate: 0.001 -> 0.003",
        "comastre.optimiser.later_backbone_factor: 0.1 -> None",
    ]


def test_meaning_is_computed_from_the_scores(shown: tuple[list[Results], str, Path]) -> None:
    (ours, plain), _, _ = shown

    def with_scores(results: Results, first: float, last: float, new: float) -> Results:
        steps = list(results.steps)
        steps[0] = replace(steps[0], conventions=dict.fromkeys(CONVENTIONS, Miou(first, None, first)))
        steps[-1] = replace(steps[-1], conventions=dict.fromkeys(CONVENTIONS, Miou(last, new, last)))
        return replace(results, steps=tuple(steps))

    sentence = meaning(with_scores(ours, 60.0, 54.0, 31.4), with_scores(plain, 60.0, 3.0, 40.0))
    assert "kept 90 %" in sentence and "4 new ones (31 mIoU)" in sentence and "fine-tuning kept 5 %" in sentence
