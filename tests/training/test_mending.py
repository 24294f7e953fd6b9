"""A finished run whose files were lost: the checkpoint gives back what it holds, and the rest is named."""

import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import TINY, tiny_config

from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.report.gather import read_run
from comastre.training.mending import finished_results
from comastre.training.run import run

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "finished"
    run(tiny_config(), out, parts=TINY)
    return out


@pytest.fixture
def out(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def again(out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Results, str]:
    results = run(tiny_config(), out, parts=TINY)
    return results, capsys.readouterr().err


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "one digit"])
def test_results_come_back_from_the_checkpoint(out, finished, damage, capsys):
    file, whole = out / "results.json", (finished / "results.json").read_text()
    if damage == "missing":
        file.unlink()
    else:
        place = whole.index('"avg": ') + 7
        digit = whole[:place] + str((int(whole[place]) + 1) % 10) + whole[place + 1 :]
        file.write_text({"cut": whole[: len(whole) // 2], "empty": "", "one digit": digit}[damage])
    results, said = again(out, capsys)
    assert results.as_json() == Results.load(finished / "results.json").as_json()
    assert file.read_text() == whole
    assert "results.json was missing or damaged: restored from the checkpoint" in said
    assert "1/5" not in said  # nothing was trained


def test_any_bit_of_the_results_is_given_back(out, finished):
    file, whole = out / "results.json", (finished / "results.json").read_bytes()
    luck = random.Random(0)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[luck.randrange(len(damaged))] ^= 1 << luck.randrange(8)
        file.write_bytes(bytes(damaged))
        assert finished_results(out, TINY) is None
    file.write_bytes(whole)
    assert finished_results(out, TINY) is not None


def test_damaged_lines_of_the_log_are_left_out_and_named(out, finished, capsys):
    file, lines = out / "metrics.jsonl", (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:3], lines[3].replace('"step"', '"st,p"'), "}" + lines[4], *lines[5:]]))
    results, said = again(out, capsys)
    assert results.as_json() == Results.load(finished / "results.json").as_json()
    assert file.read_text() == "".join([*lines[:3], *lines[5:]])
    assert f"{file}: 2 damaged lines are left out" in said
    assert "damaged" not in again(out, capsys)[1]


@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_the_last_model_comes_back_and_earlier_ones_are_named(out, finished, damage, capsys):
    for step in ("01", "02"):
        weights = out / "steps" / step / "model.safetensors"
        if damage == "missing":
            shutil.rmtree(weights.parent)
        else:
            weights.write_bytes(b"" if damage == "empty" else weights.read_bytes()[:-7])
    results, said = again(out, capsys)
    assert results.as_json() == Results.load(finished / "results.json").as_json()
    restored, expected = (load_file(each / "steps" / "02" / "model.safetensors") for each in (out, finished))
    assert restored.keys() == expected.keys()
    assert all(torch.equal(restored[name], expected[name]) for name in expected)
    assert f"{out / 'steps' / '02'} was missing or damaged: restored from the checkpoint" in said
    assert f"{out / 'steps' / '01'} is missing or damaged" in said and "--fresh" in said
    assert "learning" not in said and "1/5" not in said  # nothing was trained
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 16


def test_without_a_checkpoint_what_is_there_is_shown(out, finished, capsys):
    shutil.rmtree(out / "checkpoints")
    shutil.rmtree(out / "steps" / "00")
    results, _ = again(out, capsys)
    assert results.as_json() == Results.load(finished / "results.json").as_json()
    (out / "results.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        again(out, capsys)


def test_a_report_says_how_lost_results_come_back(out):
    (out / "results.json").write_text("{")
    with pytest.raises(UserError, match=r"comastre train .*config.yaml --out .*` restores it from the checkpoint"):
        read_run(out)
    (out / "results.json").unlink()
    (remark,) = read_run(out).remarks
    assert "results.json is missing: `comastre train" in remark


def test_a_damaged_last_checkpoint_costs_no_more_than_what_came_after_it(out, finished, capsys):
    newest = max((out / "checkpoints").glob("step-*"))
    flip(newest)
    (out / "results.json").unlink()
    results, said = again(out, capsys)
    expected = Results.load(finished / "results.json")
    assert [step.per_class for step in results.steps] == [step.per_class for step in expected.steps]
    assert "is damaged" in said
    restored, first = (load_file(each / "steps" / "02" / "model.safetensors") for each in (out, finished))
    assert all(torch.equal(restored[name], first[name]) for name in first)
