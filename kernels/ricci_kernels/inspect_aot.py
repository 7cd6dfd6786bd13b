"""Compile the shipped kernels for a chip that is not here, and read the machine code.

Needs the triton wheel alone (it ships the assembler and disassembler). A static view: it proves
that a kernel compiles, what it needs, and which instructions it runs; not results, not time.
Does not work in a process with ``TRITON_INTERPRET=1``.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ricci_kernels.configs import transport_launch
from ricci_kernels.maxsim import maxsim_kernel, specialize
from ricci_kernels.order import WARPS, order_kernel, row_block
from ricci_kernels.token_transport import token_transport_kernel

_POINTER = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]*)\b(.*)")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"\.L_x_\d+")

#: Opcodes that multiply matrices: of sm_80, sm_90, sm_100, and plain arithmetic.
MATRIX_OPCODES = ("HMMA", "HGMMA", "UTCHMMA", "FFMA", "FFMA2")


@dataclass(frozen=True)
class Report:
    """What the assembler says about one compiled kernel.

    Args:
        threads: of one block.
        registers: per thread.
        stack: bytes of stack and local memory per thread.
        spills: instructions that store to or load from local memory.
        shared: bytes of shared memory per block.
        opcodes: how often each opcode stands in the code, by its first word.
        loops: opcodes of every loop body, in the order of the code.
        ptx: the code before the assembler.
    """

    threads: int
    registers: int
    stack: int
    spills: int
    shared: int
    opcodes: Counter[str]
    loops: tuple[Counter[str], ...]
    ptx: str

    def inner_loop(self, *opcodes: str) -> Counter[str]:
        """The smallest loop body that holds one of ``opcodes``."""
        bodies = [body for body in self.loops if any(body[opcode] for opcode in opcodes)]
        return min(bodies, key=lambda body: sum(body.values()), default=Counter())


def compile_maxsim(
    capability: int,
    token_type: torch.dtype,
    dim: int,
    mean_length: int,
    precision: str = "ieee",
    scaled: bool = False,
    write_maxima: bool = False,
) -> Report:
    """The MaxSim kernel as `maxsim_pairs` or `token_maxima_pairs` would launch it.

    The arguments are those of `ricci_kernels.maxsim.specialize`.
    """
    constants, launch = specialize(
        capability, token_type, dim, mean_length, precision, scaled, write_maxima
    )
    tokens = _POINTER[token_type]
    arguments = {
        "query_tokens": tokens,
        "query_offsets": "*i64",
        "document_tokens": "*i8" if scaled else tokens,
        "document_offsets": "*i64",
        "pair_query": "*i64",
        "pair_document": "*i64",
        "scores": "*fp32",
        "queries": "i32",
        "documents": "i32",
        "width": "i32",
    }
    for name, present in (("document_scales", scaled), ("maxima", write_maxima)):
        if present:
            arguments[name] = "*fp32"
        else:
            constants[name] = None
    return compile_kernel(maxsim_kernel, capability, arguments, constants, launch.options)


def compile_transport(capability: int, candidates: int, layout: str = "BKL") -> Report:
    """The token transport kernel as `token_transport` would launch it.

    Args:
        capability: compute capability, for example 90.
        candidates: per query.
        layout: order of the maxima in memory, ``BKL`` or ``BLK``.
    """
    launch = transport_launch(candidates)
    arguments = {
        "maxima": "*fp32",
        "token_mass": "*fp32",
        "candidate_mask": "*i1",
        "log_mass": "*fp32",
        "contrast": "*fp32",
        "keep": "*i1",
        "candidates": "i32",
        "length": "i32",
        "stride_query": "i32",
        "steps": "i32",
        "sharpness": "fp32",
        "log_threshold": "fp32",
        ("stride_candidate" if layout == "BKL" else "stride_token"): "i32",
    }
    constants: dict[str, object] = {
        "BLOCK_C": launch.block_c,
        "BLOCK_L": launch.block_l,
        ("stride_token" if layout == "BKL" else "stride_candidate"): 1,
    }
    return compile_kernel(token_transport_kernel, capability, arguments, constants, launch.options)


def compile_order(capability: int, candidates: int) -> Report:
    """The order kernel as `descending_order` would launch it."""
    arguments = {"scores": "*fp32", "mask": "*i1", "order": "*i64", "candidates": "i32"}
    constants: dict[str, object] = {"BLOCK": row_block(candidates)}
    return compile_kernel(order_kernel, capability, arguments, constants, {"num_warps": WARPS})


def compile_kernel(
    kernel: triton.JITFunction,
    capability: int,
    arguments: Mapping[str, str],
    constants: Mapping[str, object],
    options: Mapping[str, int],
) -> Report:
    """Compile ``kernel`` for ``sm_<capability>`` and inspect it.

    Args:
        kernel: a ``@triton.jit`` function.
        capability: 80, 90, 100, ...
        arguments: Triton types of the run-time arguments, for example ``{"scores": "*fp32"}``.
            Pointers are taken as 16-byte aligned, as torch allocates them.
        constants: values of the ``tl.constexpr`` arguments, and None for absent pointers.
        options: launch settings, for example ``{"num_warps": 4}``.
    """
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={name: arguments.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (names.index(name),): [["tt.divisibility", 16]]
            for name, kind in arguments.items()
            if kind.startswith("*")
        },
    )
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=dict(options))
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(compiled.asm["cubin"])
        usage = _run(triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(binary))
        code = _run(triton.knobs.nvidia.nvdisasm.path, "-c", str(binary))
    resource = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    opcodes, loops = _read_code(code)
    return Report(
        threads=compiled.metadata.num_warps * 32,
        registers=resource["REG"],
        stack=resource["STACK"] + resource["LOCAL"],
        spills=opcodes["STL"] + opcodes["LDL"],
        shared=compiled.metadata.shared,
        opcodes=opcodes,
        loops=loops,
        ptx=compiled.asm["ptx"],
    )


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _read_code(code: str) -> tuple[Counter[str], tuple[Counter[str], ...]]:
    """Opcode counts of a listing, and of each loop: from a label to a later branch back to it."""
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    loops: dict[int, int] = {}
    for line in code.splitlines():
        if label := _LABEL.match(line):
            labels[label.group(1)] = len(opcodes)
        elif instruction := _INSTRUCTION.search(line):
            opcode = instruction.group(2).split(".")[0]
            opcodes.append(opcode)
            target = _TARGET.search(instruction.group(3)) if opcode == "BRA" else None
            if target and target.group() in labels:
                first = labels[target.group()]
                # the trailing `BRA .` after the last instruction is a trap, not a loop
                if first < len(opcodes) - 1:
                    loops[first] = len(opcodes)
    bodies = tuple(Counter(opcodes[first:last]) for first, last in sorted(loops.items()))
    return Counter(opcodes), bodies
