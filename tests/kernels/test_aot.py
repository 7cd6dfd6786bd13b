"""Every shipped kernel configuration, compiled for chips that are not here and gated.

Run with ``python -m pytest tests/kernels/test_aot.py -m aot`` (no GPU, no CUDA toolkit). What is
proved is the code, not its results or its speed.
"""

import os
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("needs a process without TRITON_INTERPRET", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton")

from ricci_kernels.configs import SHARED_LIMIT
from ricci_kernels.configs import chip as chip_row
from ricci_kernels.inspect_aot import Report, compile_maxsim, compile_order, compile_transport
from ricci_kernels.maxsim import maxsim_pairs, token_maxima_pairs
from ricci_kernels.order import descending_order
from ricci_kernels.token_transport import token_transport

pytestmark = pytest.mark.aot

CHIPS = (80, 90, 100)
#: The instruction that a chip multiplies matrices with.
TENSOR_CORE = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}

HALF, BRAIN, FLOAT = torch.float16, torch.bfloat16, torch.float32

# (type, width, mean query length, further settings)
MAXSIM: dict[str, tuple[torch.dtype, int, int, dict[str, Any]]] = {
    "fp16-D64": (HALF, 64, 32, {}),
    "fp16-D96": (HALF, 96, 32, {}),
    "fp16-D128": (HALF, 128, 32, {}),
    "fp16-D128-L16": (HALF, 128, 16, {}),
    "fp16-D128-L64": (HALF, 128, 64, {}),
    "fp16-D128-maxima": (HALF, 128, 32, {"write_maxima": True}),
    "fp16-D127": (HALF, 127, 32, {}),
    "fp16-D130": (HALF, 130, 32, {}),
    "fp16-D130-L64": (HALF, 130, 64, {}),
    "fp16-D768": (HALF, 768, 32, {}),
    "fp16-D1024-L64": (HALF, 1024, 64, {}),
    "bf16-D128": (BRAIN, 128, 32, {}),
    "bf16-D768": (BRAIN, 768, 32, {}),
    "int8-fp16-D128": (HALF, 128, 32, {"scaled": True}),
    "int8-fp16-D130-L64": (HALF, 130, 64, {"scaled": True}),
    "int8-fp16-D768": (HALF, 768, 32, {"scaled": True}),
    "ieee-D128": (FLOAT, 128, 32, {}),
    "ieee-D128-L64": (FLOAT, 128, 64, {}),
    "ieee-D130": (FLOAT, 130, 32, {}),
    "tf32-D96-L64": (FLOAT, 96, 64, {"precision": "tf32"}),
    "tf32-D128": (FLOAT, 128, 32, {"precision": "tf32"}),
    "tf32-D130-L64": (FLOAT, 130, 64, {"precision": "tf32"}),
    "tf32-D768-L64": (FLOAT, 768, 64, {"precision": "tf32"}),
    "tf32x3-D128": (FLOAT, 128, 32, {"precision": "tf32x3"}),
    "tf32x3-D128-L64": (FLOAT, 128, 64, {"precision": "tf32x3"}),
    "tf32x3-D768": (FLOAT, 768, 32, {"precision": "tf32x3"}),
}

#: Gates that a variant cannot hold, and why. They hold on every chip alike.
NO_TENSOR_CORE = "no chip multiplies float32 exactly on its tensor cores"
NO_ASYNC_COPY = "rows of 254 bytes start on odd half-words; the smallest copy has 4 bytes"
EXCEPTIONS = {
    ("ieee-D128", "tensor core"): NO_TENSOR_CORE,
    ("ieee-D128-L64", "tensor core"): NO_TENSOR_CORE,
    ("ieee-D130", "tensor core"): NO_TENSOR_CORE,
    ("fp16-D127", "asynchronous copy"): NO_ASYNC_COPY,
}


def check_resources(report: Report, chip: int) -> None:
    assert report.spills == 0
    assert report.stack == 0
    assert report.shared <= SHARED_LIMIT[chip]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("variant", MAXSIM)
def test_maxsim(variant: str, chip: int) -> None:
    dtype, dim, length, settings = MAXSIM[variant]
    report = compile_maxsim(chip, dtype, dim, length, **settings)
    check_resources(report, chip)
    gates = {
        "tensor core": report.inner_loop(TENSOR_CORE[chip])[TENSOR_CORE[chip]],
        "asynchronous copy": report.opcodes["LDGSTS"],
    }
    for gate, count in gates.items():
        # an exception that is no longer needed fails too
        assert (count == 0) == ((variant, gate) in EXCEPTIONS), (gate, count)


def test_nan_is_propagated_by_the_maximum_itself() -> None:
    """One instruction, max.NaN, in the loop and in the reduction: no compare and select."""
    report = compile_maxsim(90, HALF, 128, 32)
    assert "max.NaN.f32" in report.ptx
    assert "max.f32" not in report.ptx


def test_the_inner_loop_stays_lean() -> None:
    """Instructions per tile of 64 document tokens x 32 query tokens x 128 columns, per warp."""
    body = compile_maxsim(90, HALF, 128, 32).inner_loop("HGMMA")
    assert body["HGMMA"] == 8
    assert sum(body.values()) <= 130


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(
    ("candidates", "layout"),
    [(15, "BKL"), (31, "BKL"), (63, "BKL"), (128, "BKL"), (31, "BLK"), (128, "BLK")],
)
def test_transport(candidates: int, layout: str, chip: int) -> None:
    report = compile_transport(chip, candidates, layout)
    check_resources(report, chip)
    assert report.registers * report.threads <= 65_536  # one block fits a multiprocessor


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("candidates", [15, 31, 127, 1024])
def test_order(candidates: int, chip: int) -> None:
    check_resources(compile_order(chip, candidates), chip)


def test_what_this_machine_cannot_run_is_refused() -> None:
    tokens, offsets, pairs = torch.ones(2, 32), torch.tensor([0, 2]), torch.tensor([0])
    with pytest.raises(ValueError, match=r"run on a CUDA device; .* on cpu. Use the torch"):
        maxsim_pairs(tokens, offsets, tokens, offsets, pairs, pairs)
    with pytest.raises(ValueError, match=r"run on a CUDA device; .* on cpu. Use the torch"):
        token_transport(
            torch.ones(1, 3, 2), torch.full((1, 2), 0.5), torch.ones(1, 3, dtype=torch.bool)
        )
    with pytest.raises(ValueError, match=r"run on a CUDA device; .* on cpu. Use the torch"):
        descending_order(torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"8.0 or newer; this GPU has 7.5. Use the torch backend"):
        chip_row(75)


@pytest.mark.parametrize(
    ("capability", "row"),
    [(80, 80), (86, 80), (89, 80), (90, 90), (100, 100), (103, 100), (120, 80)],
)
def test_every_chip_has_a_row(capability: int, row: int) -> None:
    assert chip_row(capability) == row


def test_a_batch_of_another_size_compiles_nothing_new(launches: list[str]) -> None:
    for queries, length, pairs in ((1, 32, 1), (1, 20, 5), (16, 31, 16), (7, 17, 1000)):
        tokens = torch.ones(queries * length, 128, dtype=HALF)
        offsets = torch.arange(queries + 1) * length
        index = torch.zeros(pairs, dtype=torch.int64)
        maxsim_pairs(tokens, offsets, tokens, offsets, index, index)
        token_maxima_pairs(tokens, offsets, tokens, offsets, index, index, width=length)
    assert len(launches) == 8
    assert len(set(launches)) == 2


def test_pools_of_another_size_compile_nothing_new(launches: list[str]) -> None:
    for queries, candidates, length in ((1, 20, 30), (16, 31, 33), (7, 17, 100)):
        token_transport(
            torch.ones(queries, candidates, length),
            torch.full((queries, length), 1 / length),
            torch.ones(queries, candidates, dtype=torch.bool),
            steps=queries,
        )
    assert len(launches) == 3
    assert len(set(launches)) == 1
