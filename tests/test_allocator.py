"""Freed memory stays with the process for what comes next, and is handed back at the end."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from comastre.allocator import keeping_freed_memory

_SCRIPT = """
import resource
import torch
from comastre.allocator import keeping_freed_memory

def faults_of_twenty_tensors():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(48 * 2**20 // 4).add_(1)  # 48 MiB: above what glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

torch.set_num_threads(1)
before = faults_of_twenty_tensors()
with keeping_freed_memory() as kept:
    with keeping_freed_memory():
        pass  # a block inside another hands nothing back
    inside = faults_of_twenty_tensors()
    while_training = held()
print(kept, before, inside, while_training - held())
"""


def _in_a_process_of_its_own(**environment: str) -> list[str]:
    unset = {"LD_PRELOAD", "GLIBC_TUNABLES"}
    inherited = {k: v for k, v in os.environ.items() if k not in unset and not k.startswith("MALLOC_")}
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=inherited | environment, capture_output=True, text=True, check=True
    )
    return run.stdout.split()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_pages_are_cleared_once_and_handed_back_at_the_end() -> None:
    kept, before, inside, handed_back = _in_a_process_of_its_own()
    assert kept == "True"
    pages = 48 * 2**20 // os.sysconf("SC_PAGESIZE")
    assert int(before) > 10 * pages  # every tensor anew
    assert int(inside) < 4 * pages  # the first one, and what lies around it
    assert int(handed_back) > 40 * 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_what_somebody_has_chosen_stays() -> None:
    kept, *_ = _in_a_process_of_its_own(MALLOC_MMAP_THRESHOLD_="1048576")
    assert kept == "False"


def test_other_devices_are_left_alone() -> None:
    with keeping_freed_memory("cuda") as kept:
        assert not kept
