"""Several processes end together, and tell their caller why; `test_real_run` compares what they learn."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import TINY, TinyMethod, tiny_config
from torch import Tensor, nn

from comastre.config.run import TrainingConfig
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.stream.loading import training_batches
from comastre.training.checkpoint import load_latest
from comastre.training.launch import build_fabric, spawns
from comastre.training.run import run
from comastre.training.stopping import Diverged, Interrupted


class Diverging(TinyMethod):
    """The loss of the second process breaks at the third iteration."""

    def losses(self, model: nn.Module, batch: Any, points: Any) -> dict[str, Tensor]:
        terms = super().losses(model, batch, points)
        bad = batch.iteration == 2 and batch.rows.start > 0
        return terms | ({"recognition": terms["recognition"] / 0} if bad else {})


def test_an_error_of_one_process_arrives_as_one_sentence(tmp_path: Path):
    with pytest.raises(Diverged, match="term recognition became inf at step 0, iteration 3"):
        run(tiny_config(frozen=True, devices=2), tmp_path / "run", parts=replace(TINY, method=Diverging))


def signal_to_second_process(data: Any, task: Any, *rest: Any) -> Iterator[Any]:
    for batch in training_batches(data, task, *rest):
        if batch[0].iteration == 2 and batch[0].rows.start > 0:
            os.kill(os.getpid(), signal.SIGTERM)
        yield batch


def test_a_signal_to_any_process_stops_all_at_the_same_iteration(tmp_path: Path):
    config = tiny_config(frozen=True, devices=2, checkpoint_every=100)
    with pytest.raises(Interrupted) as caught:
        run(config, tmp_path / "run", parts=replace(TINY, batches=signal_to_second_process))
    assert caught.value.exit_code == 143
    saved = load_latest(tmp_path / "run" / "checkpoints", pytest.fail)
    assert saved is not None
    assert saved.position.iteration == 3
    assert len(saved.random_states) == 2


def test_processes_that_were_started_outside_share_a_base(tmp_path: Path):
    """As torchrun and SLURM start them: every one of them calls `run`."""
    base, out = tmp_path / "base", tmp_path / "run"
    short = {"frozen": True, "iterations": 2, "iterations_per_class": 2}
    run(tiny_config(**short), base, parts=TINY)
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from tiny_run import TINY, tiny_config\nfrom comastre.training.run import run\n"
        f"run(tiny_config(devices=2, **{short!r}), {str(out)!r}, base={str(base)!r}, parts=TINY)\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    team = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in team]
    finally:
        for process in team:  # where one waits for the other in vain
            process.kill()
            process.communicate()
    assert [process.returncode for process in team] == [0, 0], errors
    assert len(Results.load(out / "results.json").steps) == 3
    first = Path("steps") / "00" / "model.safetensors"
    assert (out / first).read_bytes() == (base / first).read_bytes()
    # The later steps are learned from that model, as by one process.
    found, expected = (load_file(folder / "steps" / "02" / "model.safetensors") for folder in (out, base))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_the_machine_lacks_is_one_sentence():
    if torch.cuda.is_available():
        pytest.skip("this machine has what the test asks for in vain")
    with pytest.raises(UserError, match="not possible here"):
        build_fabric(TrainingConfig(accelerator="cuda"))


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork", "ddp_notebook"])
def test_other_ways_to_start_processes_are_ours(strategy: str) -> None:
    fabric = build_fabric(tiny_config(strategy=strategy, devices=2).training)
    assert type(fabric.strategy) is type(build_fabric(tiny_config(strategy="ddp", devices=2).training).strategy)
    assert spawns(fabric)
    assert not spawns(build_fabric(tiny_config(strategy=strategy).training))
