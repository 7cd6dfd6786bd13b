"""All-pairs shortest paths of a batch of small graphs."""

import torch

from ricci_gpu.shapes import Float, Tensor


def shortest_paths(lengths: Float[Tensor, "B N N"]) -> Float[Tensor, "B N N"]:
    """Shortest-path distances (Floyd-Warshall), ``inf`` between components.

    Args:
        lengths: non-negative edge lengths, ``inf`` where there is no edge, 0 on the diagonal.
    """
    distance = lengths.clone()
    for via in range(lengths.shape[1]):
        detour = distance[:, :, via, None] + distance[:, None, via, :]
        torch.minimum(distance, detour, out=distance)
    return distance
