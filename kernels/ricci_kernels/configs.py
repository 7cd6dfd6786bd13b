"""Launch settings: a small table per chip with bucketed keys.

There is no autotuner: a log with ragged lengths would tune again and again. A kernel compiles
once per (data type, width of the embedding, bucket of the query length, output), never per batch.
Every entry is compiled and inspected in ``tests/kernels/test_aot.py``.
"""

from dataclasses import dataclass

#: Shared memory that one block may use, in bytes, per row of the table. Row 80 also serves 8.6,
#: 8.9 and 12.x, whose limit of 99 KiB is below the 163 KiB of 8.0.
SHARED_LIMIT = {80: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}


@dataclass(frozen=True)
class MaxSimLaunch:
    """Tile of document tokens x embedding columns, and the resources of one block."""

    block_t: int
    block_d: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        """Keyword arguments of a Triton launch."""
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class TransportLaunch:
    """Tile of candidates x query tokens; it lives in registers, 8 values per thread."""

    block_c: int
    block_l: int
    warps: int

    @property
    def options(self) -> dict[str, int]:
        """Keyword arguments of a Triton launch."""
        # Left alone, the assembler spills a few values to stay at 80 registers.
        return {"num_warps": self.warps, "maxnreg": 128}


def chip(capability: int) -> int:
    """The row of the table for a compute capability (major * 10 + minor)."""
    if capability < 80:
        raise ValueError(
            f"the Triton kernels need compute capability 8.0 or newer; this GPU has "
            f"{capability // 10}.{capability % 10}. Use the torch backend."
        )
    if capability // 10 in (9, 10):
        return capability // 10 * 10
    return 80


# 64 document tokens on the M axis fill one warp group's instruction on sm_90. Stages are the
# bytes in flight that hide the latency of device memory. float32 tiles are twice as large, so
# tf32 keeps two stages; tf32x3 and ieee hold more operands in registers, so their columns are few.
_MAXSIM = {
    (80, "half"): MaxSimLaunch(block_t=64, block_d=128, warps=4, stages=3),
    (80, "int8"): MaxSimLaunch(block_t=64, block_d=128, warps=4, stages=3),
    (80, "tf32"): MaxSimLaunch(block_t=64, block_d=128, warps=4, stages=2),
    (80, "tf32x3"): MaxSimLaunch(block_t=64, block_d=32, warps=4, stages=3),
    (80, "ieee"): MaxSimLaunch(block_t=64, block_d=32, warps=4, stages=3),
    (90, "half"): MaxSimLaunch(block_t=64, block_d=128, warps=4, stages=3),
    (90, "int8"): MaxSimLaunch(block_t=64, block_d=128, warps=4, stages=3),
    (90, "tf32"): MaxSimLaunch(block_t=64, block_d=128, warps=4, stages=2),
    (90, "tf32x3"): MaxSimLaunch(block_t=64, block_d=32, warps=4, stages=3),
    (90, "ieee"): MaxSimLaunch(block_t=64, block_d=32, warps=4, stages=3),
    (100, "half"): MaxSimLaunch(block_t=64, block_d=128, warps=4, stages=3),
    (100, "int8"): MaxSimLaunch(block_t=64, block_d=128, warps=4, stages=3),
    (100, "tf32"): MaxSimLaunch(block_t=64, block_d=64, warps=4, stages=3),
    (100, "tf32x3"): MaxSimLaunch(block_t=64, block_d=32, warps=4, stages=3),
    (100, "ieee"): MaxSimLaunch(block_t=64, block_d=32, warps=4, stages=3),
}


def maxsim_launch(capability: int, kind: str, dim: int, row_bytes: int) -> MaxSimLaunch:
    """Settings of the MaxSim kernel.

    Args:
        capability: compute capability, for example 90.
        kind: ``half``, ``int8``, ``ieee``, ``tf32`` or ``tf32x3``.
        dim: width of the embedding.
        row_bytes: bytes of one document token.
    """
    launch = _MAXSIM[chip(capability), kind]
    columns = min(launch.block_d, max(32, power_of_two(dim)))
    # Rows that do not start on 16 bytes are copied in small pieces, each with an address of its
    # own: fewer columns keep those in registers. So do widths that do not fill their last step.
    if row_bytes % 16 or (dim > columns and dim % columns):
        columns = min(columns, 64)
    return MaxSimLaunch(launch.block_t, columns, launch.warps, launch.stages)


def query_block(mean_length: int) -> int:
    """Query tokens per tile: 16, 32 or 64. Longer queries take several tiles."""
    return min(64, max(16, power_of_two(mean_length)))


def transport_launch(candidates: int) -> TransportLaunch:
    """Settings of the token transport kernel, the same on every chip."""
    # The block of tokens is fixed: sums then add in one order, however far a batch is padded.
    block_c, block_l = max(16, power_of_two(candidates)), 32
    return TransportLaunch(block_c, block_l, block_c * block_l // 256)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()
