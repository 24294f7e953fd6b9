"""Batches that do not fit, and nodes that nobody else joins: one sentence, before anything waits or fills."""

from __future__ import annotations

import psutil
import pytest

from comastre.config.run import TrainingConfig
from comastre.config.settings import load_config
from comastre.errors import UserError
from comastre.training.launch import build_fabric
from comastre.training.memory import named_when_full, refuse_too_large


def test_a_batch_larger_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("demo", {"training": {"batch_size": 64}, "data": {"crop": 512}})
    pixels = 64 * 3 * 512 * 512 * 4

    def memory(total: int) -> None:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": total}))

    memory(pixels)
    refuse_too_large(config)
    memory(pixels - 1)
    with pytest.raises(UserError, match="64 images of 512 x 512 pixels are 0 GB of pixels alone"):
        refuse_too_large(config)
    refuse_too_large(load_config("demo", {"training": {"batch_size": 64, "accumulate": 2}, "data": {"crop": 512}}))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    ],
)
def test_a_full_memory_is_named(error: Exception) -> None:
    with pytest.raises(UserError, match="need more memory than there is: lower"), named_when_full(load_config("demo")):
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="memory format"), named_when_full(load_config("demo")):
        raise RuntimeError("unsupported memory format option Preserve")


@pytest.mark.parametrize("given", [(), ("MASTER_ADDR",), ("MASTER_ADDR", "MASTER_PORT")])
def test_a_node_that_cannot_know_the_others_is_refused(given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in given:
        monkeypatch.setenv(name, "1")
    with pytest.raises(UserError, match=r"training\.nodes is 2, but nothing says where the nodes meet .*NODE_RANK not"):
        build_fabric(TrainingConfig(nodes=2, batch_size=2, accelerator="cpu"))


def test_a_node_says_whom_it_waits_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from comastre.training import launch

    for name, value in (("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500"), ("NODE_RANK", "0")):
        monkeypatch.setenv(name, value)
    fabric = build_fabric(TrainingConfig(nodes=2, batch_size=2, accelerator="cpu"))
    monkeypatch.setattr(fabric, "launch", lambda *_: launch.Opaque("done"))
    assert launch.launch(fabric, lambda _: None) == "done"  # type: ignore[arg-type,return-value]
    assert "node 0 of 2 waits at 10.0.0.1:29500 for the other node" in capsys.readouterr().out
