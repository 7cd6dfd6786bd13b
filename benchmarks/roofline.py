"""What bounds each kernel on an H200, from bytes, operations and the compiled code.

An estimate: no GPU is needed and nothing is timed. Three times are computed for a workload, and
the longest is the ceiling: device memory at the rate of a copy, matrix products at their measured
or derived rate (with the padding of the tiles), and warp instructions at one per scheduler and
clock. Run ``python benchmarks/roofline.py``; the last line is one JSON object.
"""

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

KERNELS = Path(__file__).parents[1] / "kernels"
if str(KERNELS) not in sys.path:
    sys.path.insert(0, str(KERNELS))  # a checkout that is not installed

from ricci_kernels.flow_configs import flow_launch  # noqa: E402
from ricci_kernels.inspect_aot import (  # noqa: E402
    MATRIX_OPCODES,
    Report,
    compile_maxsim,
    compile_order,
    compile_transport,
)
from ricci_kernels.inspect_flow import compile_exact, compile_flow  # noqa: E402
from ricci_kernels.maxsim import specialize  # noqa: E402

# One H200. Copy and bf16 rates were measured on one; tf32 is taken as half of bf16, float32 as
# 128 fused multiply-adds per multiprocessor and clock.
CAPABILITY = 90
PROCESSORS, CLOCK = 132, 1.98e9
COPY = 4.3e12
ISSUE = 4 * PROCESSORS * CLOCK
RATE = {"half": 788e12, "tf32": 394e12, "ieee": 2 * 128 * PROCESSORS * CLOCK}

QUERIES, TOKENS, CANDIDATES, DOCUMENT_TOKENS = 10_000, 32, 100, 180
# The query graph of 20 candidates, joined at the median: 20 query edges and half of 190 pairs.
NODES, EDGES, STEPS, ITERATIONS = 21, 115, 20, 10


@dataclass(frozen=True)
class Row:
    """One kernel on one workload; times in milliseconds."""

    kernel: str
    gigabytes: float
    gigaflop: float
    registers: int
    shared: int
    inner_loop: int
    matrix: int
    memory_ms: float
    matrix_ms: float
    issue_ms: float

    @property
    def bound(self) -> str:
        times = {"memory": self.memory_ms, "matrix": self.matrix_ms, "issue": self.issue_ms}
        return max(times, key=lambda name: times[name])

    @property
    def ceiling(self) -> float:
        """Queries per second."""
        return QUERIES / max(self.memory_ms, self.matrix_ms, self.issue_ms) * 1e3


def maxsim_row(
    name: str,
    token_type: torch.dtype,
    dim: int,
    precision: str = "ieee",
    scaled: bool = False,
    write_maxima: bool = False,
) -> Row:
    """10,000 queries with 100 documents each, none shared."""
    settings = (token_type, dim, TOKENS, precision, scaled, write_maxima)
    report = compile_maxsim(CAPABILITY, *settings)
    constants, launch = specialize(CAPABILITY, *settings)
    pairs = QUERIES * CANDIDATES
    item = token_type.itemsize
    document = DOCUMENT_TOKENS * (dim + 4 if scaled else dim * item) + 8
    outputs = 4 + (4 * TOKENS if write_maxima else 0)
    bytes_moved = pairs * (document + outputs + 16) + QUERIES * (TOKENS * dim * item + 8)

    tiles, steps = -(-DOCUMENT_TOKENS // launch.block_t), -(-dim // launch.block_d)
    block_l = constants["BLOCK_L"]
    assert isinstance(block_l, int)
    padded = 2 * pairs * tiles * launch.block_t * block_l * steps * launch.block_d
    kind = "half" if token_type is not torch.float32 else precision
    products = 3 if kind == "tf32x3" else 1
    rate = RATE["tf32" if kind == "tf32x3" else kind]
    body = report.inner_loop("HGMMA") or report.inner_loop("FFMA")
    once = report.opcodes.total() - body.total()
    instructions = pairs * launch.warps * (once + tiles * steps * body.total())
    return _row(
        name,
        report,
        bytes_moved,
        2 * pairs * DOCUMENT_TOKENS * TOKENS * dim,
        body.total(),
        sum(body[opcode] for opcode in MATRIX_OPCODES),
        products * padded / rate,
        instructions,
    )


def transport_row(candidates: int, steps: int = 5) -> Row:
    """10,000 pools, five steps; the code between loops is counted once."""
    report = compile_transport(CAPABILITY, candidates)
    bytes_moved = QUERIES * (4 * candidates * TOKENS + 4 * TOKENS + 6 * candidates + 4)
    step = report.loops[0].total()
    warps = report.threads // 32
    instructions = QUERIES * warps * (report.opcodes.total() + (steps - 1) * step)
    # per entry and step: two exponentials, and about eight other operations
    operations = QUERIES * candidates * TOKENS * 10 * steps
    return _row(
        f"token_transport K={candidates}",
        report,
        bytes_moved,
        operations,
        step,
        0,
        0.0,
        instructions,
    )


def flow_row(nodes: int, precision: str = "ieee") -> Row:
    """10,000 graphs of k = 20, 20 steps of 10 iterations each; what one step does besides the
    iterations is counted once per step and graph."""
    report = compile_flow(CAPABILITY, nodes, precision)
    launch = flow_launch(CAPABILITY, nodes, precision)
    blocks = -(-EDGES // launch.block_e)
    body = report.inner_loop("FFMA" if precision == "ieee" else "HMMA")
    around = report.opcodes.total() - body.total()
    warps = report.threads // 32
    instructions = QUERIES * STEPS * warps * (around + blocks * ITERATIONS * body.total())
    products = 2 * ITERATIONS + 4
    operations = QUERIES * STEPS * 2 * products * EDGES * NODES**2
    padded = QUERIES * STEPS * 2 * products * blocks * launch.block_e * launch.block_n**2
    kind, times = ("ieee", 1) if precision == "ieee" else ("tf32", 3)
    return _row(
        f"flow {precision} N={nodes}",
        report,
        QUERIES * EDGES * (4 + 8 + 8 + 4),
        operations,
        body.total(),
        sum(body[opcode] for opcode in MATRIX_OPCODES),
        times * padded / RATE[kind],
        instructions,
    )


def exact_row(kind: torch.dtype) -> Row:
    """One step of 10,000 graphs of k = 20. How often the search loops is decided by the data: the
    figures are those of a search that runs its code once, a floor and not an estimate."""
    report = compile_exact(CAPABILITY, 32, kind)
    warps = report.threads // 32
    bytes_moved = QUERIES * (2 * NODES**2 * kind.itemsize + EDGES * (16 + 2 * kind.itemsize))
    instructions = QUERIES * EDGES * warps * report.opcodes.total()
    name = f"exact {str(kind).removeprefix('torch.')} floor"
    return _row(name, report, bytes_moved, 0, 0, 0, 0.0, instructions)


def order_row(candidates: int) -> Row:
    """10,000 rows: the sort is straight code."""
    report = compile_order(CAPABILITY, candidates)
    instructions = QUERIES * (report.threads // 32) * report.opcodes.total()
    bytes_moved = QUERIES * candidates * (4 + 1 + 8)
    return _row(f"order K={candidates}", report, bytes_moved, 0, 0, 0, 0.0, instructions)


def _row(
    kernel: str,
    report: Report,
    bytes_moved: int,
    operations: int,
    inner_loop: int,
    matrix: int,
    matrix_s: float,
    instructions: int,
) -> Row:
    return Row(
        kernel=kernel,
        gigabytes=round(bytes_moved / 1e9, 3),
        gigaflop=round(operations / 1e9, 3),
        registers=report.registers,
        shared=report.shared,
        inner_loop=inner_loop,
        matrix=matrix,
        memory_ms=_significant(bytes_moved / COPY * 1e3),
        matrix_ms=_significant(matrix_s * 1e3),
        issue_ms=_significant(instructions / ISSUE * 1e3),
    )


def _significant(value: float) -> float:
    return round(value, 3 - math.ceil(math.log10(value))) if value else 0.0


def main() -> None:
    half, single = torch.float16, torch.float32
    rows = [
        maxsim_row("maxsim fp16 D=128", half, 128),
        maxsim_row("maxsim fp16 D=128 + maxima", half, 128, write_maxima=True),
        maxsim_row("maxsim bf16 D=128", torch.bfloat16, 128),
        maxsim_row("maxsim int8 D=128", half, 128, scaled=True),
        maxsim_row("maxsim fp32 tf32 D=128", single, 128, "tf32"),
        maxsim_row("maxsim fp32 tf32x3 D=128", single, 128, "tf32x3"),
        maxsim_row("maxsim fp32 ieee D=128", single, 128, "ieee"),
        maxsim_row("maxsim fp16 D=96", half, 96),
        maxsim_row("maxsim fp16 D=130", half, 130),
        maxsim_row("maxsim fp16 D=768", half, 768),
        transport_row(20),
        transport_row(100),
        flow_row(32),
        flow_row(32, "tf32x3"),
        exact_row(torch.float32),
        exact_row(torch.float64),
        order_row(20),
        order_row(100),
    ]
    print(
        f"H200, estimate: {QUERIES:,} queries of {TOKENS} tokens, {CANDIDATES} documents of "
        f"{DOCUMENT_TOKENS} tokens each, none shared"
    )
    titles = ("kernel", "GB", "GFLOP", "regs", "shared", "loop", "matrix", "mem ms", "mat ms")
    print("{:28}{:>9}{:>10}{:>6}{:>8}{:>6}{:>8}{:>9}{:>9}".format(*titles), end="")
    print("{:>10}{:>8}{:>12}".format("issue ms", "bound", "queries/s"))
    for row in rows:
        print(
            f"{row.kernel:28}{row.gigabytes:9.3g}{row.gigaflop:10.4g}{row.registers:6}"
            f"{row.shared:8}{row.inner_loop:6}{row.matrix:8}{row.memory_ms:9.3g}"
            f"{row.matrix_ms:9.3g}{row.issue_ms:10.3g}{row.bound:>8}{row.ceiling:12.3g}"
        )
    records = [
        asdict(row) | {"bound": row.bound, "queries_per_s": round(row.ceiling)} for row in rows
    ]
    print(json.dumps({"bench": "roofline", "device": "H200 (estimate)", "rows": records}))


if __name__ == "__main__":
    main()
