"""The run directory's promises: resume, refuse, start over, stop cleanly, never save nonsense."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import TINY, TinyMethod, tiny_config, tiny_evaluate
from torch import Tensor, nn

from comastre.errors import UserError
from comastre.stream.loading import training_batches
from comastre.training.checkpoint import load_latest
from comastre.training.parts import LearnedStep, Parts
from comastre.training.run import run
from comastre.training.stopping import Diverged, Interrupted


def with_batches(change: Any) -> Parts:
    """The tiny parts, where `change(step, batch)` is called before every iteration."""

    def batches(data: Any, task: Any, *rest: Any) -> Iterator[Any]:
        for batch in training_batches(data, task, *rest):
            change(task.step, batch[0].iteration)
            yield batch

    return replace(TINY, batches=batches)


def raise_signal(number: int, step: int, iteration: int) -> Parts:
    def change(now: int, at: int) -> None:
        if (now, at) == (step, iteration):
            os.kill(os.getpid(), number)

    return with_batches(change)


def must_not_train(config: Any) -> Any:
    raise AssertionError("a finished run looked for its data")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    run(tiny_config(), out, parts=TINY)
    return out


def test_a_run_directory_holds_what_the_design_says(finished: Path):
    names = {path.name for path in finished.iterdir() if not path.name.startswith(".")}
    files = {"config.yaml", "environment.json", "metrics.jsonl", "results.json"}
    assert names == files | {"checkpoints", "steps", "tensorboard"}
    document = json.loads((finished / "results.json").read_text())
    assert [step["new_classes"] for step in document["steps"]] == [["a", "b"], ["c"], ["d"]]
    assert document["steps"][0]["miou"]["inc"] is None
    assert all(step["seconds"] > 0 for step in document["steps"])
    assert document["method"] == "comastre"
    line = json.loads((finished / "metrics.jsonl").read_text().splitlines()[0])
    assert line.keys() == {
        *("step", "iteration", "total", "recognition", "points", "memory", "learning_rate", "images_per_second"),
    }


def test_a_finished_run_gives_its_results_at_once(finished: Path):
    results = run(tiny_config(), finished, parts=replace(TINY, data=must_not_train))
    assert results.as_json() == json.loads((finished / "results.json").read_text())


def test_a_changed_config_is_refused_with_the_difference(finished: Path):
    with pytest.raises(UserError, match=r"comastre\.optimiser\.learning_rate: 0\.05 -> 0\.06.*--fresh"):
        run(tiny_config(learning_rate=0.06), finished, parts=TINY)


def test_settings_that_change_no_result_may_change(finished: Path):
    run(tiny_config(log_every=3, checkpoint_every=100), finished, parts=replace(TINY, data=must_not_train))
    assert "log_every: 3" in (finished / "config.yaml").read_text()


def test_a_run_that_failed_at_once_may_be_corrected(tmp_path: Path):
    def refuse(*args: Any) -> Any:
        raise UserError("no such data")

    with pytest.raises(UserError, match="no such data"):
        run(tiny_config(), tmp_path / "run", parts=replace(TINY, data=refuse))
    run(tiny_config(iterations=1, iterations_per_class=1), tmp_path / "run", parts=TINY)
    assert "iterations: 1\n" in (tmp_path / "run" / "config.yaml").read_text()


def test_fresh_keeps_the_old_run_under_another_name(tmp_path: Path):
    config, out = tiny_config(iterations=1, iterations_per_class=1), tmp_path / "run"
    first = run(config, out, parts=TINY)
    run(config.model_copy(update={"seed": 9}), out, parts=TINY, fresh=True)
    run(config, out, parts=TINY, fresh=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.old-1", "run.old-2"]
    assert json.loads((tmp_path / "run.old-1" / "results.json").read_text()) == first.as_json()
    assert json.loads((tmp_path / "run.old-2" / "results.json").read_text())["seed"] == 9


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path, fresh: bool):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="is not a run"):
        run(tiny_config(), tmp_path, parts=TINY, fresh=fresh)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_as_out_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        run(tiny_config(), tmp_path / "file", parts=TINY)


def test_a_second_process_on_the_same_run_is_refused(tmp_path: Path, finished: Path):
    script = (
        "import sys, pathlib\nfrom comastre.training.directory import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", script, str(finished)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use by process {holder.pid} "):
            run(tiny_config(), finished, parts=TINY)
        holder.kill()
        holder.wait()
        # A dead process holds nothing, though its lock file is still there.
        run(tiny_config(), finished, parts=replace(TINY, data=must_not_train))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path: Path, finished: Path, number: int, code: int):
    out = tmp_path / "run"
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        run(tiny_config(checkpoint_every=100), out, parts=raise_signal(number, 1, 2))
    assert caught.value.exit_code == code
    assert f"comastre train {out / 'config.yaml'} --out {out}" in str(caught.value)
    assert signal.getsignal(number) is handler
    saved = load_latest(out / "checkpoints", pytest.fail)
    assert saved is not None
    # The iteration that the signal met was finished.
    assert (saved.position.step, saved.position.iteration) == (1, 3)
    results = run(tiny_config(checkpoint_every=100), out, parts=TINY)
    reference = json.loads((finished / "results.json").read_text())
    assert [step.conventions["paper"].all for step in results.steps] == [s["miou"]["all"] for s in reference["steps"]]


def test_a_signal_during_evaluation_does_not_wait_for_its_end(tmp_path: Path):
    def evaluate(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the evaluation went on")

    with pytest.raises(Interrupted, match="after 6 of 6 iterations"):
        run(tiny_config(), tmp_path / "run", parts=replace(TINY, evaluate=evaluate))


class Diverging(TinyMethod):
    def losses(self, model: nn.Module, batch: Any, points: Any) -> dict[str, Tensor]:
        terms = super().losses(model, batch, points)
        return terms | ({"points": terms["points"] / 0} if batch.iteration == 4 else {})


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path):
    out = tmp_path / "run"
    with pytest.raises(
        Diverged, match=r"term points became (inf|nan) at step 0, iteration 5 on images bar-\d+, bar-\d+"
    ):
        run(tiny_config(), out, parts=replace(TINY, method=Diverging))
    saved = load_latest(out / "checkpoints", pytest.fail)
    assert saved is not None
    assert saved.position.iteration == 4
    assert all(torch.isfinite(tensor).all() for tensor in saved.model.values())


def test_a_damaged_newest_checkpoint_costs_one_line(tmp_path: Path, finished: Path, capfd: pytest.CaptureFixture[str]):
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(tiny_config(), out, parts=raise_signal(signal.SIGTERM, 1, 2))
    newest = max((out / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    capfd.readouterr()
    run(tiny_config(), out, parts=TINY)
    assert capfd.readouterr().err.count("is damaged") == 1
    expected = (finished / "steps" / "02" / "model.safetensors").read_bytes()
    assert (out / "steps" / "02" / "model.safetensors").read_bytes() == expected


def test_a_full_disk_elsewhere_is_one_sentence_too(tmp_path: Path):
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device", "model.safetensors")

    with pytest.raises(UserError, match="the disk is full"):
        run(tiny_config(), tmp_path / "run", parts=replace(TINY, save=full))
    assert run(tiny_config(), tmp_path / "run", parts=TINY).steps[-1].step == 2


def test_other_errors_of_the_system_are_not_blamed_on_the_disk(tmp_path: Path):
    def missing(*args: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "image.jpg")

    with pytest.raises(FileNotFoundError, match=r"image\.jpg"):
        run(tiny_config(), tmp_path / "run", parts=replace(TINY, data=missing))


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path: Path):
    lines = {}
    for accumulate in (1, 2):
        out = tmp_path / str(accumulate)
        run(tiny_config(frozen=True, accumulate=accumulate), out, parts=TINY)
        lines[accumulate] = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(lines[1]) == 16
    for one, two in zip(lines[1], lines[2], strict=True):
        assert one["total"] == pytest.approx(two["total"], abs=1e-5)


def test_workers_do_not_change_what_is_learned(tmp_path: Path, finished: Path):
    config = tiny_config()
    config = config.model_copy(update={"data": config.data.model_copy(update={"workers": 1})})
    run(config, tmp_path / "run", parts=TINY)
    expected = (finished / "steps" / "02" / "model.safetensors").read_bytes()
    assert (tmp_path / "run" / "steps" / "02" / "model.safetensors").read_bytes() == expected


def test_tensorboard_has_the_terms_and_scores(finished: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished / "tensorboard")).Reload()
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    for name in ("total", "recognition", "points", "memory", "learning_rate"):
        found = events.Scalars(f"train/{name}")
        assert [event.step for event in found] == list(range(1, 17))
        assert [event.value for event in found] == pytest.approx([line[name] for line in lines])
    steps = json.loads((finished / "results.json").read_text())["steps"]
    found = events.Scalars("evaluation/all")
    assert [event.step for event in found] == [6, 11, 16]
    assert [event.value for event in found] == pytest.approx([step["miou"]["all"] for step in steps])


def test_methods_can_start_from_the_same_base_model(tmp_path: Path, finished: Path):
    def batches(data: Any, task: Any, *rest: Any) -> Iterator[Any]:
        assert task.step > 0, "the first step was trained again"
        return training_batches(data, task, *rest)

    def stop(*args: Any) -> Any:
        raise UserError("killed")

    config = tiny_config().model_copy(update={"method": "finetune"})
    with pytest.raises(UserError, match="killed"):
        run(config, tmp_path / "run", base=finished, parts=replace(TINY, evaluate=stop, batches=batches))
    results = run(config, tmp_path / "run", base=finished, parts=replace(TINY, batches=batches))
    assert (results.method, len(results.steps)) == ("finetune", 3)
    # The tiny method does not look at the name, so the end must be that of the run it started from.
    for step in ("00", "02"):
        weights = Path("steps") / step / "model.safetensors"
        assert (tmp_path / "run" / weights).read_bytes() == (finished / weights).read_bytes()


def test_a_base_of_other_settings_is_refused(tmp_path: Path, finished: Path):
    with pytest.raises(UserError, match="seed: 3 -> 4"):
        run(tiny_config().model_copy(update={"seed": 4}), tmp_path / "run", base=finished, parts=TINY)
    with pytest.raises(UserError, match="is not a run"):
        run(tiny_config(), tmp_path / "other", base=tmp_path, parts=TINY)


def test_evaluation_sees_an_eval_mode_model(tmp_path: Path):
    modes = []

    def evaluate(learned: LearnedStep) -> Any:
        modes.append(learned.model.training)
        return tiny_evaluate(learned)

    run(tiny_config(iterations=1, iterations_per_class=1), tmp_path / "run", parts=replace(TINY, evaluate=evaluate))
    assert modes == [False, False, False]
