"""Launch settings of the flow and the exact transport kernel: small tables with bucketed keys.

Every entry is compiled and inspected in ``tests/kernels/test_aot_flow.py``.
"""

from dataclasses import dataclass

from ricci_kernels.configs import chip, power_of_two

#: Nodes of the largest graph that the flow kernel and the exact kernel treat.
MAX_NODES = 64
MAX_EXACT_NODES = 32


@dataclass(frozen=True)
class FlowLaunch:
    """Tile of edges x nodes, and the resources of one program.

    Args:
        block_n: padded nodes of a graph.
        block_e: edges treated at once.
        warps: of one program.
        programs: that a multiprocessor holds at once; its registers decide.
        registers: per thread, where the assembler would otherwise spill to stay below.
    """

    block_n: int
    block_e: int
    warps: int
    programs: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """Keyword arguments of a Triton launch."""
        # One stage: nothing is copied ahead in the loop over edges, whose tiles are in the cache.
        options = {"num_warps": self.warps, "num_stages": 1}
        return options if self.registers is None else options | {"maxnreg": self.registers}


# Exact products keep their share of the kernel matrix in registers over all iterations: 32 edges
# x 32 nodes on 4 warps are 4 x 2 products per thread and 64 registers of the matrix. Larger tiles
# spill. Tensor cores read the matrix from shared memory, 16 edges at a time.
_FLOW = {
    (80, 16, "ieee"): FlowLaunch(block_n=16, block_e=32, warps=2, programs=5, registers=200),
    (80, 32, "ieee"): FlowLaunch(block_n=32, block_e=32, warps=4, programs=2),
    (80, 64, "ieee"): FlowLaunch(block_n=64, block_e=16, warps=8, programs=1),
    (80, 32, "tf32x3"): FlowLaunch(block_n=32, block_e=16, warps=4, programs=2, registers=200),
    (80, 64, "tf32x3"): FlowLaunch(block_n=64, block_e=16, warps=8, programs=1, registers=200),
    (90, 16, "ieee"): FlowLaunch(block_n=16, block_e=32, warps=2, programs=5, registers=200),
    (90, 32, "ieee"): FlowLaunch(block_n=32, block_e=32, warps=4, programs=2),
    (90, 64, "ieee"): FlowLaunch(block_n=64, block_e=16, warps=8, programs=1),
    (90, 32, "tf32x3"): FlowLaunch(block_n=32, block_e=16, warps=4, programs=2, registers=200),
    (90, 64, "tf32x3"): FlowLaunch(block_n=64, block_e=16, warps=8, programs=1),
    (100, 16, "ieee"): FlowLaunch(block_n=16, block_e=32, warps=2, programs=5, registers=200),
    (100, 32, "ieee"): FlowLaunch(block_n=32, block_e=32, warps=4, programs=2),
    (100, 64, "ieee"): FlowLaunch(block_n=64, block_e=16, warps=8, programs=1),
    (100, 32, "tf32x3"): FlowLaunch(block_n=32, block_e=16, warps=4, programs=2, registers=200),
    (100, 64, "tf32x3"): FlowLaunch(block_n=64, block_e=16, warps=8, programs=1),
}


def flow_launch(capability: int, nodes: int, precision: str) -> FlowLaunch:
    """Settings of the flow kernel.

    Args:
        capability: compute capability, for example 90.
        nodes: of the largest graph, at most `MAX_NODES`.
        precision: ``ieee`` or ``tf32x3``.
    """
    # A tile of 16 nodes is too narrow for the tensor cores: it takes longer than one of 32.
    smallest = 16 if precision == "ieee" else 32
    return _FLOW[chip(capability), max(smallest, power_of_two(nodes)), precision]


@dataclass(frozen=True)
class ExactLaunch:
    """Padded nodes, and the resources of one program; it solves one edge at a time.

    Args:
        block_n: padded nodes of a graph.
        warps: of one program.
        programs: that a multiprocessor holds at once.
        registers: per thread, where the assembler would otherwise spill to stay below.
    """

    block_n: int
    warps: int
    programs: int
    registers: int

    @property
    def options(self) -> dict[str, int]:
        """Keyword arguments of a Triton launch."""
        return {"num_warps": self.warps, "num_stages": 1, "maxnreg": self.registers}


_EXACT = {
    (16, 4): ExactLaunch(block_n=16, warps=1, programs=16, registers=128),
    (32, 4): ExactLaunch(block_n=32, warps=1, programs=16, registers=128),
    (16, 8): ExactLaunch(block_n=16, warps=1, programs=12, registers=160),
    (32, 8): ExactLaunch(block_n=32, warps=2, programs=4, registers=255),
}


def exact_launch(capability: int, nodes: int, item_bytes: int) -> ExactLaunch:
    """Settings of the exact transport kernel, the same on every chip.

    Args:
        capability: compute capability, for example 90.
        nodes: of the largest graph, at most `MAX_EXACT_NODES`.
        item_bytes: 4 for float32, 8 for float64.
    """
    chip(capability)  # refuses what is too old
    return _EXACT[max(16, power_of_two(nodes)), item_bytes]
