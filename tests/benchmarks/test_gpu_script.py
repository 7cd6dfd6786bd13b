"""`make gpu` proves itself on a CPU: it reports, claims nothing, and survives what breaks."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.parts import Bench, Part, run_together
from benchmarks.gpu.report import Aim, Check, Failed, Figure, Machine, Report, Skipped

ROOT = Path(__file__).parents[2]
TIMED = ("copy", "maxsim ours", "maxsim eager", "flow float32", "flow float64", "end to end")


def run_script(*arguments: str, interpret: bool = False) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'kernels'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> dict:
    return json.loads(done.stdout.splitlines()[-1])


def test_tiny_runs_every_part_and_claims_no_gpu() -> None:
    done = run_script("--tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    result = last_line(done)
    assert result["bench"] == "gpu"
    assert result["device"] == "cpu"
    assert result["failed"] == []
    assert all(check["passed"] for check in result["checks"])
    names = [figure["name"] for figure in result["figures"]]
    for start in TIMED:
        assert any(name.startswith(start) for name in names), start
    assert all(figure["value"] > 0 for figure in result["figures"])
    # Nothing of a kernel that did not run, and no aim reached.
    assert result["proven"] == ["maxsim gradients"]
    assert not any(word in name for word in ("fused", "exact", "kernels") for name in names)
    assert [(aim["value"], aim["met"]) for aim in result["aims"]] == [(None, None)] * 5


@pytest.mark.slow
def test_tiny_in_the_interpreter_proves_every_kernel() -> None:
    pytest.importorskip("triton")
    done = run_script("--tiny", interpret=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = last_line(done)
    assert result["device"] == "cpu"
    assert "interpreter" in result["machine"]
    kinds = ("bf16", "fp16", "fp32 ieee", "fp32 tf32", "fp32 tf32x3", "gradients", "int8")
    wanted = {f"maxsim {kind}" for kind in kinds}
    wanted |= {"token transport", "flow ieee", "flow tf32x3"}
    wanted |= {"flow exact float32", "flow exact float64", "order"}
    assert set(result["proven"]) == wanted
    assert all(aim["met"] is None for aim in result["aims"])


def test_a_run_without_time_says_what_it_left_out(capsys) -> None:
    assert main(["--tiny", "--seconds", "0"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["figures"] == []
    assert {"ceilings", "maxsim", "flow"} <= {skip["name"] for skip in result["skipped"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tiny", "--record"], "--record keeps figures of a GPU only; leave out --tiny."),
        (["--record", "--csv", "no/such/folder/gpu.csv"], "the folder of --csv must exist"),
    ],
)
def test_impossible_options_are_refused(arguments: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


# --- the parts, each in a process of its own ----------------------------------------------------


def right(bench: Bench) -> None:
    bench.check("sum", 0.0)


def wrong(bench: Bench) -> None:
    bench.check("sum", float("nan"), 1.0)


def raises(bench: Bench) -> None:
    bench.check("sum", 0.0)
    raise RuntimeError("an illegal\nmemory access")


def dies(bench: Bench) -> None:
    bench.check("sum", 0.0)
    os._exit(7)


def hangs(bench: Bench) -> None:
    bench.figure("before", 1.0, "GB/s")
    bench.check("sum", 0.0)
    time.sleep(600)


def gated(bench: Bench) -> None:
    bench.time("fast", lambda: None, 1.0, kernel="right")
    bench.time("unproven", lambda: None, 1.0, kernel="wrong")
    bench.attempt("broken", lambda: 1 / 0)
    bench.figure("after", bench.values.get("before", -1.0), "GB/s")


def report_of(*parts: Part, seconds: float = 60.0, report: Report | None = None) -> Report:
    report = Report(None, "abc1234") if report is None else report
    run_together(parts, report, True, time.monotonic() + seconds)
    return report


def test_only_a_part_whose_checks_all_hold_proves_its_kernel() -> None:
    works = (right, wrong, raises, dies)
    report = report_of(*(Part(work.__name__, work, 60, work.__name__) for work in works))
    assert report.proven == {"right"}
    assert sorted(report.failed) == [
        Failed("dies", "ended with exit code 7"),
        Failed("raises", "RuntimeError: an illegal memory access"),
    ]


def test_a_part_that_hangs_is_ended_and_keeps_its_figures() -> None:
    report = report_of(Part("hangs", hangs, 2, "hangs"))
    assert report.proven == set()
    assert report.values == {"before": 1.0}
    assert report.skipped == [Skipped("hangs", "the rest of this part: its time is up")]


def test_an_unproven_kernel_gets_no_figure_and_a_failure_ends_one_figure_only() -> None:
    report = Report(None, "abc1234", proven={"right"}, figures=[Figure("before", 5.0, "GB/s")])
    report_of(Part("gated", gated, 60), report=report)
    assert set(report.values) == {"before", "fast", "after"}
    assert report.values["after"] == 5.0
    assert report.skipped == [
        Skipped("unproven", "the kernel (wrong) is not proven on this device")
    ]
    assert report.failed == [Failed("broken", "ZeroDivisionError: division by zero")]


# --- the report ---------------------------------------------------------------------------------


def test_rows_are_written_for_a_gpu_only_and_at_once(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    report = Report(path, "abc1234")
    for device in ("cpu", "cuda"):
        report.take(Machine(device, f"a {device}"))
        report.take(Figure("copy", 4300.0, "GB/s", 0.01, 9))
    with path.open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    columns = "name value unit spread machine torch triton commit date"
    assert list(row) == columns.split()
    assert (row["value"], row["unit"], row["machine"]) == ("4300", "GB/s", "a cuda")
    assert row["commit"] == "abc1234"


def test_aims_are_judged_by_the_best_figure_on_a_gpu_only() -> None:
    aims = (
        Aim("share", ("a", "b"), 0.85),
        Aim("times a peer", ("a",), 1.0, divided_by=("peer", "other")),
        Aim("not measured", ("missing",), 1.0),
    )
    judged = {}
    for device in ("cpu", "cuda"):
        report = Report(None, "abc1234", Machine(device, "a machine"))
        for name, value in (("a", 0.8), ("b", 0.9), ("peer", 1.0), ("other", 0.5)):
            report.take(Figure(name, value, "of copy"))
        found = json.loads(report.as_json(aims, 1.0))["aims"]
        judged[device] = [(aim["value"], aim["met"]) for aim in found]
    assert judged["cpu"] == [(None, None)] * 3
    assert judged["cuda"] == [(0.9, True), (0.8, False), (None, None)]


def test_errors_without_a_number_are_still_json() -> None:
    report = Report(None, "abc1234")
    report.take(Check("sum", float("nan"), 0.0))
    (check,) = json.loads(report.as_json((), 1.0), parse_constant=pytest.fail)["checks"]
    assert check == {"name": "sum", "error": "nan", "bound": 0.0, "passed": False}
