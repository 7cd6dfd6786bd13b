"""The flow kernel at every shipped configuration, compiled for chips that are not here and gated.

Run with ``python -m pytest tests/kernels/test_aot_flow.py -m aot`` (no GPU, no CUDA toolkit).
``-s`` prints registers, shared memory and the instructions of one Sinkhorn iteration.
"""

import os
from collections import Counter
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("needs a process without TRITON_INTERPRET", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton")

from ricci_kernels.configs import SHARED_LIMIT
from ricci_kernels.flow import ricci_flow
from ricci_kernels.flow_configs import exact_launch, flow_launch
from ricci_kernels.inspect_aot import Report
from ricci_kernels.inspect_flow import compile_exact, compile_flow

pytestmark = pytest.mark.aot

CHIPS = (80, 90, 100)
# (nodes, precision, further settings)
VARIANTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    f"N{nodes}-{precision}{name}": (nodes, precision, settings)
    for nodes, precision in (
        (16, "ieee"),
        (32, "ieee"),
        (64, "ieee"),
        (32, "tf32x3"),
        (64, "tf32x3"),
    )
    for name, settings in (("", {}), ("-p-bounds", {"p": 3.0, "bounds": True}))
}

#: Most instructions that may spill, where the gate cannot hold: with another exponent and bounds,
#: the largest tile passes 255 registers. They run once per step or per block of edges; the
#: iteration itself has none, which is asserted everywhere.
SPILLS = {("N64-tf32x3-p-bounds", 90): 7, ("N64-tf32x3-p-bounds", 100): 20}


def iteration(report: Report, precision: str) -> Counter[str]:
    """Opcodes of one iteration of Sinkhorn (two half-steps), per warp."""
    return report.inner_loop("FFMA" if precision == "ieee" else "HMMA")


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_flow(variant: str, chip: int) -> None:
    nodes, precision, settings = VARIANTS[variant]
    report = compile_flow(chip, nodes, precision, **settings)
    launch = flow_launch(chip, nodes, precision)
    body = iteration(report, precision)
    print(
        f"{variant} sm_{chip}: {report.registers} registers, {report.shared} B shared, "
        f"{report.spills} spills, {body.total()} instructions per iteration of "
        f"{launch.block_e} edges on {launch.warps} warps, "
        f"{body['FFMA'] + body['HMMA']} of them products"
    )
    spills = SPILLS.get((variant, chip), 0)
    assert report.spills <= spills
    assert report.stack <= 4 * spills
    assert body["STL"] + body["LDL"] == 0
    assert report.shared <= SHARED_LIMIT[chip]
    # Registers are handed out in units of eight; the launch table counts on this many programs.
    registers = -(-report.registers // 8) * 8
    assert launch.programs <= 65_536 // (registers * report.threads)
    assert launch.programs * (report.shared + 1024) <= SHARED_LIMIT[chip]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("nodes", [16, 32, 64])
def test_exact_products_are_exact_on_every_chip(nodes: int, chip: int) -> None:
    report = compile_flow(chip, nodes)
    assert not any("MMA" in opcode for opcode in report.opcodes)
    # One fused multiply-add per entry, and two products of edges x nodes x nodes per iteration.
    launch = flow_launch(chip, nodes, "ieee")
    assert iteration(report, "ieee")["FFMA"] == 2 * launch.block_e * nodes**2 // report.threads


@pytest.mark.parametrize("chip", CHIPS)
def test_the_iteration_stays_lean(chip: int) -> None:
    """At least three of four instructions multiply; division is one reciprocal."""
    report = compile_flow(chip, 32)
    body = iteration(report, "ieee")
    assert body["FFMA"] >= 0.75 * body.total()
    assert body["MUFU"] == 2 * 32 * 32 // report.threads


def test_what_this_machine_cannot_run_is_refused() -> None:
    ends = torch.tensor([[0]])
    with pytest.raises(ValueError, match=r"run on a CUDA device; .* on cpu. Use the torch"):
        ricci_flow(torch.ones(1, 1), ends, ends + 1, torch.tensor([1]), nodes=2)
    with pytest.raises(ValueError, match=r"8.0 or newer; this GPU has 7.5. Use the torch backend"):
        flow_launch(75, 21, "ieee")


def test_pools_and_settings_of_another_size_compile_nothing_new(launches: list[str]) -> None:
    for graphs, edges, nodes, alpha in ((1, 1, 17, 0.0), (16, 113, 21, 0.5), (300, 400, 32, 0.3)):
        ends = torch.zeros(graphs, edges, dtype=torch.int64)
        counts = torch.zeros(graphs, dtype=torch.int64)
        ricci_flow(
            torch.ones(graphs, edges),
            ends,
            ends,
            counts,
            nodes,
            alpha=alpha,
            step=1.0 - alpha / 2,
            iterations=graphs,
            sinkhorn_iterations=graphs,
            epsilon=0.05 + alpha,
        )
    assert len(launches) == 3
    assert len(set(launches)) == 1


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("nodes", [16, 32])
def test_exact_transport(nodes: int, kind: torch.dtype, chip: int) -> None:
    report = compile_exact(chip, nodes, kind)
    launch = exact_launch(chip, nodes, kind.itemsize)
    print(
        f"exact N{nodes} {kind} sm_{chip}: {report.registers} registers, {report.shared} B shared, "
        f"{report.spills} spills, {report.opcodes.total()} instructions in all"
    )
    assert report.spills == 0
    assert report.stack == 0
    assert report.shared <= SHARED_LIMIT[chip]
    registers = -(-report.registers // 8) * 8
    assert launch.programs <= 65_536 // (registers * report.threads)
