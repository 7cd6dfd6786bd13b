"""Semi-relaxed entropic transport of query tokens over a pool of candidates, one program per query.

Every query token ``i`` spreads its mass ``a_i`` over the candidates; the column masses ``pi`` are
free and start uniform. One step is ``pi_c <- sum_i a_i P_ic`` with
``P_ic = pi_c exp(A_ic / T) / sum_c' pi_c' exp(A_ic' / T)``, a Blahut-Arimoto step that lowers
``F(pi) = -T sum_i a_i log sum_c pi_c exp(A_ic / T)``. A candidate stays when its mass is at least
``eta`` times the mean. Everything is in the log domain: small masses keep their order.

Semantics at the edges:

* a candidate without tokens (maxima -inf) gets no mass;
* a token that no candidate can take (-inf everywhere) follows the current masses, so that a query
  without any evidence keeps uniform masses and all its candidates, with contrast 0;
* NaN or +inf in a maximum of a real token and candidate makes the query's masses and contrast NaN
  and keeps its candidates: flagged, never a silent drop;
* padding may hold anything.
"""

# Kernel arguments have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ricci_kernels.configs import transport_launch

#: Masses within this relative distance under the threshold are kept: equal candidates sit on it.
TIE = 1e-5
MAX_CANDIDATES = 128

_LN2 = tl.constexpr(math.log(2.0))


@triton.jit(
    do_not_specialize=[
        "candidates",
        "length",
        "stride_query",
        "steps",
        "sharpness",
        "log_threshold",
    ]
)
def token_transport_kernel(
    maxima,  # [B, K, L], any strides
    token_mass,  # [B, L]
    candidate_mask,  # [B, K]
    log_mass,  # [B, K]
    contrast,  # [B]
    keep,  # [B, K]
    candidates,
    length,
    stride_query,
    stride_candidate,
    stride_token,
    steps,
    sharpness,  # log2(e) / T: the kernel works with logarithms to base 2
    log_threshold,  # log2(eta) less the tie tolerance
    BLOCK_C: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """Program b treats query b; grid ``(B,)``."""
    query = tl.program_id(0).to(tl.int64)
    offs_c = tl.arange(0, BLOCK_C)
    offs_l = tl.arange(0, BLOCK_L)
    pool = query * candidates + offs_c
    real = tl.load(candidate_mask + pool, mask=offs_c < candidates, other=0) != 0
    count = tl.sum(real.to(tl.float32), 0)
    uniform = -tl.log2(tl.maximum(count, 1.0))
    log_pi = tl.where(real, uniform, float("-inf"))
    rows = maxima + query * stride_query + offs_c.to(tl.int64)[:, None] * stride_candidate
    masses = token_mass + query * length

    for _ in range(steps):
        # log sum_i a_i P_ic for every candidate, over blocks of tokens: running maximum and sum
        top = tl.full([BLOCK_C], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_C], tl.float32)
        for first in range(0, length, BLOCK_L):
            mass, maximum = _load_tokens(rows, masses, real, first + offs_l, length, stride_token)
            energy = maximum * sharpness + log_pi[:, None]
            log_row, open_row = _log_partition(energy)
            # a token of mass 0 has share -inf
            share = tl.where(open_row[None, :], energy - log_row[None, :], log_pi[:, None])
            share += tl.log2(mass)[None, :]
            new_top = tl.maximum(top, tl.max(share, 1))
            shift = tl.where(new_top == float("-inf"), 0.0, new_top)
            total = total * tl.exp2(top - shift) + tl.sum(tl.exp2(share - shift[:, None]), 1)
            top = new_top
        # a sum, because it keeps NaN; it is 0 when the query has no token
        moved = tl.sum(total, 0) != 0.0
        log_pi = tl.where(real, tl.where(moved, top + tl.log2(total), log_pi), float("-inf"))

    # T sum_i a_i log sum_c pi_c exp(A_ic / T) - sum_i a_i mean_c A_ic
    free_energy = 0.0
    for first in range(0, length, BLOCK_L):
        mass, maximum = _load_tokens(rows, masses, real, first + offs_l, length, stride_token)
        log_row, open_row = _log_partition(maximum * sharpness + log_pi[:, None])
        seen = maximum != float("-inf")
        mean = tl.sum(tl.where(seen, maximum, 0.0), 0) / tl.maximum(
            tl.sum(seen.to(tl.float32), 0), 1.0
        )
        gain = tl.where(open_row, log_row / sharpness - mean, 0.0)
        free_energy += tl.sum(tl.where(mass != 0.0, mass * gain, 0.0), 0)

    tl.store(contrast + query, free_energy)
    tl.store(log_mass + pool, log_pi * _LN2, mask=offs_c < candidates)
    # negated, so that NaN keeps
    low = log_pi - uniform < log_threshold
    tl.store(keep + pool, real & ~low, mask=offs_c < candidates)


@triton.jit
def _load_tokens(rows, masses, real, offs_l, length, stride_token):
    """Masses of a block of tokens, and their maxima; -inf where token or candidate is not real."""
    mass = tl.load(masses + offs_l, mask=offs_l < length, other=0.0)
    pointers = rows + offs_l.to(tl.int64)[None, :] * stride_token
    used = real[:, None] & (mass != 0.0)[None, :]
    return mass, tl.load(pointers, mask=used, other=float("-inf"))


@triton.jit
def _log_partition(energy):
    """Base-2 log-sum-exp over the candidates, and whether a token has any that can take it."""
    top = tl.max(energy, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(energy - shift[None, :]), 0)
    return shift + tl.log2(total), total != 0.0


_INTERPRETED = not isinstance(token_transport_kernel, triton.JITFunction)


class TransportResult(NamedTuple):
    """What `token_transport` returns; ``-inf`` and ``False`` for candidates that are not real."""

    log_mass: Tensor  # [B, K] float32
    contrast: Tensor  # [B] float32
    keep: Tensor  # [B, K] bool


def token_transport(
    maxima: Tensor,
    token_mass: Tensor,
    candidate_mask: Tensor,
    temperature: float = 0.15,
    steps: int = 5,
    eta: float = 1.0,
) -> TransportResult:
    """Masses that the candidates of each query receive from its tokens.

    Args:
        maxima: ``[B, K, L]`` float32 with any strides: the largest similarity of token ``i`` with
            a token of candidate ``c``, -inf where there is none. `token_maxima_pairs` with the
            pairs of a query side by side, reshaped, or a transposed ``[B, L, K]``.
        token_mass: ``[B, L]`` float32, at least 0, summing to 1 over a query's real tokens and 0
            elsewhere.
        candidate_mask: ``[B, K]`` bool; at most 128 candidates.
        temperature: ``T``, in units of similarity.
        steps: ``M``; stopping early is part of the rule.
        eta: keep a candidate whose mass is at least ``eta / (number of candidates)``.

    Returns:
        Natural logarithms of the masses, the free-energy contrast
        ``T sum_i a_i log sum_c pi_c exp(A_ic / T) - sum_i a_i mean_c A_ic``, and the kept mask.

    Raises:
        ValueError: impossible settings, or tensors that do not fit together.
    """
    _check(maxima, token_mass, candidate_mask, temperature, steps, eta)
    queries, candidates, length = maxima.shape
    device = maxima.device
    result = TransportResult(
        torch.empty((queries, candidates), dtype=torch.float32, device=device),
        torch.empty(queries, dtype=torch.float32, device=device),
        torch.empty((queries, candidates), dtype=torch.bool, device=device),
    )
    if queries == 0:
        return result
    launch = transport_launch(candidates)
    with torch.cuda.device_of(maxima):
        token_transport_kernel[(queries,)](
            maxima,
            token_mass,
            candidate_mask,
            *result,
            candidates,
            length,
            *maxima.stride(),
            steps,
            math.log2(math.e) / temperature,
            math.log2(eta) + math.log2(1.0 - TIE) if eta > 0 else -math.inf,
            BLOCK_C=launch.block_c,
            BLOCK_L=launch.block_l,
            **launch.options,
        )
    return result


def _check(
    maxima: Tensor,
    token_mass: Tensor,
    candidate_mask: Tensor,
    temperature: float,
    steps: int,
    eta: float,
) -> None:
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"`temperature` must be positive and finite; got {temperature}.")
    if steps < 0:
        raise ValueError(f"`steps` must be at least 0; got {steps}.")
    if not (eta >= 0 and math.isfinite(eta)):
        raise ValueError(f"`eta` must be at least 0 and finite; got {eta}.")
    if maxima.dim() != 3 or maxima.dtype is not torch.float32:
        raise ValueError(
            f"`maxima` must be float32 of shape [queries, candidates, tokens]; got {maxima.dtype} "
            f"of shape {tuple(maxima.shape)}."
        )
    queries, candidates, length = maxima.shape
    if candidates > MAX_CANDIDATES:
        raise ValueError(
            f"the token transport kernel treats at most {MAX_CANDIDATES} candidates per query; "
            f"got {candidates}. Take the best {MAX_CANDIDATES} first, or use the torch backend."
        )
    for name, tensor, dtype, shape in (
        ("token_mass", token_mass, torch.float32, (queries, length)),
        ("candidate_mask", candidate_mask, torch.bool, (queries, candidates)),
    ):
        found = (tensor.dtype, tuple(tensor.shape), tensor.device)
        if found != (dtype, shape, maxima.device) or not tensor.is_contiguous():
            raise ValueError(
                f"`{name}` must be contiguous {dtype} of shape {shape} on {maxima.device}; got "
                f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}."
            )
    if maxima.device.type != "cuda" and not _INTERPRETED:
        raise ValueError(
            f"the Triton kernels run on a CUDA device; the tensors are on {maxima.device}. "
            "Use the torch backend there."
        )
