"""Graphs with known curvature, as sorted edge lists ``[(x, y), ...]`` with ``x < y``.

Imports nothing of the library under test.
"""

from itertools import combinations, product

import numpy as np

Edge = tuple[int, int]


def _sorted(edges: set[Edge]) -> list[Edge]:
    return sorted({(min(edge), max(edge)) for edge in edges})


def complete(n: int) -> list[Edge]:
    return list(combinations(range(n), 2))


def cycle(n: int) -> list[Edge]:
    return _sorted({(x, (x + 1) % n) for x in range(n)})


def path(n: int) -> list[Edge]:
    return [(x, x + 1) for x in range(n - 1)]


def star(leaves: int) -> list[Edge]:
    """Node 0 is the hub."""
    return [(0, leaf) for leaf in range(1, leaves + 1)]


def tree(branching: int, height: int) -> list[Edge]:
    """Balanced tree, numbered level by level from the root 0."""
    nodes = sum(branching**level for level in range(height + 1))
    return _sorted({((child - 1) // branching, child) for child in range(1, nodes)})


def hypercube(dimension: int) -> list[Edge]:
    nodes = range(2**dimension)
    return _sorted({(x, x ^ (1 << bit)) for x in nodes for bit in range(dimension)})


def torus(rows: int, columns: int) -> list[Edge]:
    edges = set()
    for r, c in product(range(rows), range(columns)):
        here = r * columns + c
        for there in ((r + 1) % rows * columns + c, r * columns + (c + 1) % columns):
            edges.add((here, there))
    return _sorted(edges)


def complete_bipartite(n: int) -> list[Edge]:
    return [(x, n + y) for x in range(n) for y in range(n)]


def petersen() -> list[Edge]:
    outer = {(x, (x + 1) % 5) for x in range(5)}
    inner = {(5 + x, 5 + (x + 2) % 5) for x in range(5)}
    return _sorted(outer | inner | {(x, x + 5) for x in range(5)})


def communities(a: int, b: int) -> tuple[list[Edge], np.ndarray]:
    """G(a, b) of Ni et al. 2019: b + 1 complete graphs of a + 1 nodes whose hubs are all joined.

    The hub of community i is node ``i (a + 1)``. Also returns the type of each edge: 0 between
    hubs, 1 from a hub to a member of its community, 2 between two members.
    """
    size = a + 1
    edges = [
        (x, y)
        for x, y in combinations(range(size * (b + 1)), 2)
        if x // size == y // size or (x % size == 0 and y % size == 0)
    ]
    hubs = np.array([(x % size == 0) + (y % size == 0) for x, y in edges])
    return edges, 2 - hubs


def named(name: str) -> list[Edge]:
    """The graph behind a name of the facts file."""
    if name.startswith("Star_"):
        return star(int(name.removeprefix("Star_").removesuffix("leaves")))
    fixed = {
        "BinaryTree_r2h3": lambda: tree(2, 3),
        "Tree_r3h2": lambda: tree(3, 2),
        "Torus_6x6": lambda: torus(6, 6),
        "Petersen": petersen,
    }
    if name in fixed:
        return fixed[name]()
    family, number = name.split("_")
    if "," in number:
        return complete_bipartite(int(number.split(",")[0]))
    return {"K": complete, "C": cycle, "Path": path, "Hypercube": hypercube}[family](int(number))


def random_connected(
    rng: np.random.Generator, nodes: int, density: float, decades: tuple[float, float]
) -> tuple[list[Edge], np.ndarray]:
    """A random spanning tree plus random edges; log-uniform lengths ``10^decades``."""
    order = rng.permutation(nodes)
    edges = {(int(order[rng.integers(i)]), int(order[i])) for i in range(1, nodes)}
    edges = set(_sorted(edges))
    edges |= {edge for edge in combinations(range(nodes), 2) if rng.random() < density}
    return sorted(edges), 10.0 ** rng.uniform(*decades, size=len(edges))


def length_matrix(edges: list[Edge], lengths: np.ndarray, nodes: int) -> np.ndarray:
    """Edge lengths as a matrix: inf where there is no edge, 0 on the diagonal."""
    matrix = np.full((nodes, nodes), np.inf)
    np.fill_diagonal(matrix, 0.0)
    for (x, y), length in zip(edges, lengths, strict=True):
        matrix[x, y] = matrix[y, x] = length
    return matrix


def clustered_vectors(
    rng: np.random.Generator, rows: int, width: int = 32, clusters: int = 3
) -> np.ndarray:
    """Rows around a few centres, as the embeddings of a retrieved pool are; row 0 is the query."""
    centres = rng.normal(size=(clusters, width))
    return centres[rng.integers(clusters, size=rows)] + 0.7 * rng.normal(size=(rows, width))
