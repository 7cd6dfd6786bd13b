"""Token transport: the query's tokens hand out their mass among the chunks of the pool.

Each query token distributes its mass over the chunks by a semi-relaxed entropic transport with
cost ``1 - A``, where ``A[i, c]`` is the MaxSim maximum of token i in chunk c. Column masses are
free and flow for a few steps (the alternating minimisation of Blahut 1972 and Arimoto 1972 for
``F(pi) = -T sum_i a_i log sum_c pi_c exp(A_ic / T)``). A chunk that alone matches a token receives
that token's mass; a token that every chunk matches decides nothing. It is optimal transport, and
not a curvature flow.

Stopping early is part of the rule: many steps make the masses sparse. Identical chunks share
their common mass, by construction.

On a CUDA device float32 pools of up to 128 candidates take the Triton kernel of `ricci_kernels`,
unless a trace is asked for; everything else takes the torch operations below.
"""

from typing import Any, NamedTuple

import torch

from ricci_gpu.errors import InputError, SettingError
from ricci_gpu.ops.kernels import define_kernel, on_kernels
from ricci_gpu.shapes import Bool, Float, Tensor

# Masses of interchangeable chunks are all exactly the mean; float32 sums them to within 1e-6.
KEEP_TOLERANCE = 1e-5
# Candidates that the Triton kernel takes; larger pools take the torch route.
LARGEST_POOL = 128


class TokenTransport(NamedTuple):
    """``log_mass`` orders the chunks; ``share = K_b * mass`` is 1 at the mean of the pool.

    ``abstention`` is the free-energy contrast: higher means something relevant is more likely in
    the pool. ``trace`` holds the plan ``P[b, i, c]`` (rows sum to 1) of every step when asked for.
    """

    log_mass: Float[Tensor, "B K"]
    share: Float[Tensor, "B K"]
    abstention: Float[Tensor, "B"]
    trace: list[Tensor]


def token_transport(
    maxima: Float[Tensor, "B L K"],
    token_mask: Bool[Tensor, "B L"],
    candidate_mask: Bool[Tensor, "B K"],
    temperature: float = 0.15,
    steps: int = 5,
    token_mass: Float[Tensor, "B L"] | None = None,
    trace: bool = False,
) -> TokenTransport:
    """Distribute the query's token mass over the chunks.

    Args:
        maxima: ``A``; read only at real tokens and candidates. ``-inf`` for an empty chunk, which
            then receives nothing.
        temperature: entropic blur ``T``, in units of similarity.
        steps: number of mass updates, at least 1.
        token_mass: mass of each token, non-negative; uniform over real tokens by default.
            Rescaled to sum 1.

    A query without tokens, or whose chunks are all empty, tells nothing apart: every chunk gets
    the mean. Padding has ``-inf`` log mass and share 0.
    """
    if not temperature > 0:
        raise SettingError(f"`temperature` must be greater than 0; got {temperature}.")
    if steps < 1:
        raise SettingError(f"`steps` must be at least 1; got {steps}.")
    if token_mass is not None and bool((token_mask & (token_mass < 0)).any()):
        least = float(torch.where(token_mask, token_mass, 0.0).min())
        raise InputError(f"`token_mass` must not be negative; got {least:g}.")
    present = candidate_mask[:, None, :] & token_mask[:, :, None]
    similarity = torch.where(present, maxima, -torch.inf)
    # A token that no chunk can take (all chunks empty) is left out of the sum. One at NaN is not:
    # it makes the masses NaN, for the caller to see.
    usable = (~torch.isneginf(similarity)).any(dim=2)
    mass = similarity.new_ones(token_mask.shape) if token_mass is None else token_mass
    mass = torch.where(usable, mass, 0.0)
    total = mass.sum(dim=1, keepdim=True)
    told = total > 0
    mass = mass / torch.where(told, total, 1.0)
    log_token = torch.where(mass > 0, mass, 1.0).log().masked_fill(mass <= 0, -torch.inf)

    count = candidate_mask.sum(dim=1, keepdim=True).clamp(min=1).to(similarity.dtype)
    log_prior = torch.where(candidate_mask, -count.log(), -torch.inf)
    if not trace and _kernel_serves(similarity):
        log_mass, contrast = _by_kernel(similarity, mass, candidate_mask, temperature, steps)
        log_mass = torch.where(told & candidate_mask, log_mass, log_prior)
        abstention = torch.where(told[:, 0], contrast, torch.nan)
        return TokenTransport(log_mass, count * log_mass.exp(), abstention, [])
    log_mass = log_prior
    scaled = similarity / temperature
    plans: list[Tensor] = []
    for _ in range(steps):
        exponent = scaled + log_mass[:, None, :]
        # Rows of unusable tokens are all -inf; zeros keep their soft-max finite, and their mass
        # of 0 keeps them out of the sum.
        log_plan = torch.where(usable[..., None], exponent, 0.0).log_softmax(dim=2)
        if trace:
            plans.append(torch.where(usable[..., None], log_plan.exp(), 0.0))
        updated = (log_token[:, :, None] + log_plan).logsumexp(dim=1)
        log_mass = torch.where(told & candidate_mask, updated, log_prior)

    # FE = T sum_i a_i log sum_c pi_c exp(A_ic / T) - mean_c sum_i a_i A_ic
    attained = torch.where(usable, (scaled + log_mass[:, None, :]).logsumexp(dim=2), 0.0)
    finite = present & ~torch.isneginf(similarity)
    chunks = finite.any(dim=1).sum(dim=1).clamp(min=1)
    average = torch.where(finite, mass[:, :, None] * similarity, 0.0).sum(dim=(1, 2)) / chunks
    contrast = temperature * (mass * attained).sum(dim=1) - average
    abstention = torch.where(told[:, 0], contrast, torch.nan)
    return TokenTransport(log_mass, count * log_mass.exp(), abstention, plans)


def _kernel_serves(similarity: Float[Tensor, "B L K"]) -> bool:
    """The Triton kernel keeps a pool of up to 128 candidates on the chip for all steps."""
    fits = similarity.dtype is torch.float32 and similarity.shape[2] <= LARGEST_POOL
    return fits and on_kernels(similarity)


def _by_kernel(
    similarity: Float[Tensor, "B L K"],
    mass: Float[Tensor, "B L"],
    candidate_mask: Bool[Tensor, "B K"],
    temperature: float,
    steps: int,
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B"]]:
    """Log masses and free-energy contrast, in one launch."""
    masks = mass.contiguous(), candidate_mask.contiguous()
    return torch.ops.ricci_gpu.token_transport_kernel(similarity.mT, *masks, temperature, steps)


def _launch(
    maxima: Tensor, mass: Tensor, candidate_mask: Tensor, temperature: float, steps: int
) -> tuple[Tensor, Tensor]:
    from ricci_kernels.token_transport import token_transport as kernel

    result = kernel(maxima, mass, candidate_mask, temperature=temperature, steps=steps)
    return result.log_mass, result.contrast


def _launch_shapes(maxima: Tensor, mass: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return maxima.new_empty(maxima.shape[:2]), maxima.new_empty(maxima.shape[:1])


define_kernel(
    "token_transport_kernel",
    "(Tensor maxima, Tensor mass, Tensor candidate_mask, float temperature, int steps)"
    " -> (Tensor, Tensor)",
    _launch,
    _launch_shapes,
)
