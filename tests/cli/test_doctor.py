"""The doctor's lines for good and bad machines."""

from __future__ import annotations

from typing import Any

import pytest
from command import run

from comastre.cli import doctor
from comastre.cli.doctor import Check, check_fit, check_package, check_python, check_weights, render

GIGABYTE = 1024**3


@pytest.mark.parametrize(
    "needs", [["torch==2.15.0"], ["torch (>=2.14.0)"], ["numpy", "torch==2.15.0 ; python_version > '3'"]]
)
@pytest.mark.parametrize("torch", ["2.15.0", "2.15.0+cu130"])
def test_fitting_versions_are_ok(torch: str, needs: list[str]) -> None:
    assert check_fit(torch, "0.30.0", needs, None).status == "ok"


@pytest.mark.parametrize("needs", [["torch==2.15.0"], ["torch (>=2.15.0)"]])
def test_mismatching_versions_fail_and_name_both(needs: list[str]) -> None:
    check = check_fit("2.12.1+cpu", "0.30.0", needs, None)
    assert check.status == "fail"
    assert "2.12.1+cpu" in check.detail
    assert "2.15.0" in check.detail
    assert "torch torchvision" in check.fix


def test_operators_that_do_not_load_fail_though_versions_fit() -> None:
    check = check_fit("2.15.0", "0.30.0", ["torch==2.15.0"], "operator torchvision::nms does not exist")
    assert check.status == "fail"
    assert "torchvision::nms" in check.detail


def test_missing_packages_fail() -> None:
    assert check_fit(None, "0.30.0", [], None).status == "fail"
    assert check_package("timm", None, "1.0").status == "fail"
    assert check_package("timm", "0.9.2", "1.0.20").status == "fail"
    assert check_package("timm", "1.0.100", "1.0.20").status == "ok"


def test_old_python_fails() -> None:
    assert check_python((3, 10, 4)).status == "fail"
    assert check_python((3, 11, 0)).status == "ok"


def test_weights_offline_unreachable_and_reachable() -> None:
    def never() -> None:
        raise AssertionError("offline must not touch the network")

    assert check_weights(offline=True, probe=never).status == "warn"
    unreachable = check_weights(offline=False, probe=lambda: "no route")
    assert (unreachable.status, "no route" in unreachable.detail) == ("warn", True)
    assert "--backbone.weights" in unreachable.fix
    assert check_weights(offline=False, probe=lambda: None) == Check("pretrained weights", "ok", "the hub answers")


def test_scarce_resources_warn() -> None:
    assert doctor.check_memory(8 * GIGABYTE, GIGABYTE).status == "warn"
    assert doctor.check_memory(8 * GIGABYTE, 4 * GIGABYTE).status == "ok"
    assert doctor.check_disk(GIGABYTE // 2).status == "warn"
    assert doctor.check_disk(5 * GIGABYTE).status == "ok"
    assert doctor.check_cores(1).status == "warn"
    assert doctor.describe_devices([], mps=False).status == "warn"
    assert doctor.describe_devices(["A100"], mps=False).detail == "CPU, CUDA A100"


def test_everything_that_is_not_ok_comes_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "probe_hub", lambda: "no network in this test")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    checks = doctor.diagnose()
    assert {"Python", "torch", "torchvision", "torch + torchvision", "cores", "memory", "disk"} <= {
        c.name for c in checks
    }
    lacking = [check for check in checks if check.status != "ok"]
    assert "pretrained weights" in {check.name for check in lacking}
    assert all(check.fix for check in lacking)
    assert "fail" not in {check.status for check in checks}


def test_render_shows_status_and_fix() -> None:
    text = render([Check("Python", "ok", "3.12"), Check("torch", "fail", "not installed", "pip install torch")])
    assert text.splitlines() == [
        "ok    Python  3.12",
        "fail  torch   not installed",
        "              fix: pip install torch",
    ]


def test_an_import_that_fails_is_told_in_one_line() -> None:
    assert doctor.import_error("json") is None
    assert "no_such_module" in (doctor.import_error("no_such_module") or "")


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor_fails_only_when_a_check_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: Any, code: int
) -> None:
    monkeypatch.setattr("comastre.cli.doctor.diagnose", lambda: [Check("torch", status, "detail")])
    done = run(capsys, "doctor")
    assert done.code == code
    assert done.out.startswith(status)
