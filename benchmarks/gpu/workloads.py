"""The data of the run: packed tokens for MaxSim, clustered pool graphs for the flow."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ricci_gpu.ops.adjacency import EdgeList
from ricci_gpu.stages.ricci_filter import RicciFilter

# One query of the MaxSim workload.
QUERY_TOKENS, DOCUMENTS, DOCUMENT_TOKENS, DIM = 32, 100, 180, 128


class TokenWorkload:
    """Queries with their own documents, none shared: float16, of length 1 in expectation."""

    def __init__(
        self,
        generator: torch.Generator,
        count: int,
        pool: int,
        tokens: int = DOCUMENT_TOKENS,
    ) -> None:
        device = generator.device

        def vectors(rows: int) -> Tensor:
            empty = torch.empty(rows, DIM, dtype=torch.float16, device=device)
            return empty.normal_(std=DIM**-0.5, generator=generator)

        self.count, self.pool, self.tokens = count, pool, tokens
        self.queries = vectors(count * QUERY_TOKENS)
        self.documents = vectors(count * pool * tokens)
        self.query_offsets = torch.arange(count + 1, device=device) * QUERY_TOKENS
        self.document_offsets = torch.arange(count * pool + 1, device=device) * tokens
        self.pair_document = torch.arange(count * pool, device=device)
        self.pair_query = self.pair_document // pool

    @property
    def packed(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.queries, self.query_offsets, self.documents, self.document_offsets

    def pairs(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Every document of the queries from ``first`` on."""
        rows = slice(first * self.pool, (first + count) * self.pool)
        return self.pair_query[rows], self.pair_document[rows]

    def dense(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """The same as ``[B, L, D]`` and ``[B, K, T, D]``, without a copy."""
        queries = self.queries.view(-1, QUERY_TOKENS, DIM)
        documents = self.documents.view(-1, self.pool, self.tokens, DIM)
        return queries[first : first + count], documents[first : first + count]


def query_bytes(pool: int, tokens: int = DOCUMENT_TOKENS) -> int:
    """Bytes that MaxSim must move for one query: tokens, pairs, offsets and scores."""
    return 2 * DIM * (pool * tokens + QUERY_TOKENS) + pool * (16 + 8 + 4) + 8


@dataclass(frozen=True)
class Graphs:
    """Pool graphs as the published filter builds them (rule ``ge``), node 0 the query."""

    adjacency: Tensor  # [B, N, N]
    edges: EdgeList

    @classmethod
    def of(cls, node_emb: Tensor) -> "Graphs":
        mask = torch.ones(node_emb.shape[:2], dtype=torch.bool, device=node_emb.device)
        adjacency, _, edges = RicciFilter().pool_graph(node_emb, mask)
        return cls(adjacency, edges)

    def __len__(self) -> int:
        return len(self.adjacency)

    @property
    def nodes(self) -> int:
        return self.adjacency.shape[1]

    def rows(self, first: int, count: int) -> "Graphs":
        chosen = slice(first, first + count)
        return Graphs(self.adjacency[chosen], EdgeList(*(part[chosen] for part in self.edges)))

    def unit_lengths(self, dtype: torch.dtype) -> Tensor:
        return torch.ones(self.edges.mask.shape, dtype=dtype, device=self.adjacency.device)


def clustered_nodes(generator: torch.Generator, count: int, k: int, dim: int = 64) -> Tensor:
    """Unit vectors ``[B, k + 1, dim]`` in four clusters per query."""
    device = generator.device
    centres = torch.randn(count, 4, dim, generator=generator, device=device)
    chosen = torch.randint(0, 4, (count, k + 1, 1), generator=generator, device=device)
    nodes = centres.gather(1, chosen.expand(-1, -1, dim))
    noise = torch.randn(nodes.shape, generator=generator, device=device)
    return torch.nn.functional.normalize(nodes + 0.7 * noise, dim=2)
