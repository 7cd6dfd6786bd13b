"""The random-walk measure of each node, of which curvature compares neighbours."""

import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.shapes import Bool, Float, Tensor


def node_measures(
    lengths: Float[Tensor, "B N N"],
    adjacency: Bool[Tensor, "B N N"],
    alpha: float = 0.5,
    p: float = 2.0,
) -> Float[Tensor, "B N N"]:
    """Row x is the measure m_x: ``alpha`` at x, the rest on its neighbours as ``exp(-w^p)``.

    Ni et al. 2019 (Scientific Reports 9), m^{alpha,p}. ``p = 0`` is the uniform walk. The largest
    exponent is subtracted first, so that the measure sums to 1 however long the edges are (a plain
    ``exp(-w^2)`` is zero in any precision at w = 30). A node without neighbour keeps all its mass.

    Args:
        lengths: edge lengths; read only where ``adjacency`` is true.
        alpha: laziness, in [0, 1).
        p: exponent, at least 0.
    """
    if not 0.0 <= alpha < 1.0:
        raise SettingError(f"`alpha` must lie in [0, 1); got {alpha}.")
    if not p >= 0.0:
        raise SettingError(f"`p` must be at least 0; got {p}.")
    alone = ~adjacency.any(dim=2, keepdim=True)
    # Lengths so long that their power overflows share the largest number instead of inf - inf.
    power = torch.where(adjacency, lengths, 0.0).pow(p).clamp(max=torch.finfo(lengths.dtype).max)
    exponent = torch.where(adjacency, -power, -torch.inf)
    top = torch.where(alone, 0.0, exponent.amax(dim=2, keepdim=True))
    unnormalised = torch.where(adjacency, (exponent - top).exp(), 0.0)
    total = unnormalised.sum(dim=2, keepdim=True)
    neighbours = (1.0 - alpha) * unnormalised / torch.where(alone, 1.0, total)
    at_home = torch.full_like(neighbours[..., 0], alpha).masked_fill(alone[..., 0], 1.0)
    return neighbours + torch.diag_embed(at_home)
