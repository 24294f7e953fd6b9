"""Where the output goes, and where the command was started, may be gone: one sentence, and work is not lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell"), pytest.mark.timeout(60)]


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`comastre` in a shell, as `$C`."""
    variables = {**os.environ, "C": f"{sys.executable} -m comastre", **environment}
    return subprocess.run(["sh", "-c", line], cwd=folder, env=variables, capture_output=True, text=True)


def test_a_closed_output_is_no_error(tmp_path: Path):
    done = shell("$C data list >&- && $C presets >&- 2>&-", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["presets", "train --help"])
def test_a_full_output_is_one_sentence(tmp_path: Path, command: str):
    done = shell(f"$C {command} > /dev/full", tmp_path)
    assert done.returncode == 1
    sentence = "comastre: the output of this command cannot be written (No space left on device): send it elsewhere"
    assert done.stderr.startswith(sentence) and done.stderr.count("\n") == 1
    assert shell(f"$C {command} > /dev/full 2>&1", tmp_path).returncode == 1


def test_an_output_that_knows_ascii_only_gets_other_letters_replaced(tmp_path: Path):
    (tmp_path / "größe").mkdir()
    strict = {"PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C"}
    done = shell("$C data check größe; $C train --help", tmp_path, **strict)
    assert done.returncode == 0 and "this should not happen" not in done.stderr
    assert done.stderr.count("\n") == 1 and "comastre: " in done.stderr


def test_a_folder_that_was_deleted_meanwhile_is_one_sentence(tmp_path: Path):
    done = shell('mkdir gone && cd gone && rmdir "$PWD" && $C presets', tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("comastre: the folder that this command was started in is no longer there")
    assert done.stderr.count("\n") == 1
