"""Pools whose candidates are given: as places in an index, or as vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from ricci_gpu.batch import TokenPool
from ricci_gpu.corpus.candidates import CandidateList
from ricci_gpu.corpus.index import DenseIndex
from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.errors import InputError
from ricci_gpu.pipeline import Pools, pack_documents
from ricci_gpu.reranker import cosine
from ricci_gpu.shapes import Float, Int, Tensor


class GivenRows(DenseIndex):
    """Stands in for an index: finds the rows that it was given, for the queries in their order.

    Args:
        vectors: of all passages.
        rows: of the candidates of each query.
        scores: first-stage scores of each query, or None for the cosines.
    """

    def __init__(
        self,
        vectors: Float[Tensor, "M D"],
        rows: Sequence[Sequence[int]],
        scores: Sequence[Sequence[float] | None],
    ) -> None:
        self.kind = "given"
        self.width = vectors.shape[1]
        self._vectors, self._rows, self._scores = vectors, rows, scores

    @property
    def size(self) -> int:
        return len(self._vectors)

    def search(
        self, queries: Float[Tensor, "q D"], k: int
    ) -> tuple[Float[Tensor, "q K"], Int[Tensor, "q K"]]:
        """Scores and rows of all candidates in the order given; short pools end in row -1."""
        places = pack_documents(self._rows)
        scores = torch.full(places.shape, -torch.inf)
        for at, (rows, given) in enumerate(zip(self._rows, self._scores, strict=True)):
            scores[at, : len(rows)] = (
                cosine(queries[at].cpu(), self._vectors[list(rows)])
                if given is None
                else torch.tensor(given)
            )
        return scores, places


def store_of_pools(
    store: CorpusStore, lists: Sequence[CandidateList], row_of: Mapping[str, int]
) -> CorpusStore:
    """The store, in which a search for the queries of ``lists`` finds just their candidates.

    Raises:
        InputError: a candidate that the index does not have.
    """
    for each in lists:
        unknown = [passage.id for passage in each.passages if passage.id not in row_of]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise InputError(
                f"query `{each.query.id}`: every candidate must be a passage of the index; "
                f"`{unknown[0]}`{more} is not. Use the index that the candidates came from."
            )
    rows = [[row_of[passage.id] for passage in each.passages] for each in lists]
    found = GivenRows(store.vectors, rows, [each.scores for each in lists])
    return replace(store, index=found)


def given_pools(lists: Sequence[CandidateList], device: torch.device, token_vectors: bool) -> Pools:
    """Pools of ready embeddings, with their token vectors if asked for; no model is involved."""
    query_emb = np.stack([_given(each.query_embedding) for each in lists])
    embeddings = [torch.from_numpy(_given(each.embeddings)) for each in lists]
    scores = [
        torch.tensor(each.scores)
        if each.scores is not None
        else cosine(torch.from_numpy(query), vectors)
        for each, query, vectors in zip(lists, query_emb, embeddings, strict=True)
    ]
    return Pools(
        query_ids=[each.query.id for each in lists],
        queries=[each.query.text for each in lists],
        candidate_ids=[[passage.id for passage in each.passages] for each in lists],
        prior=scores,
        query_emb=_to_device(torch.from_numpy(query_emb), device),
        candidate_emb=[_to_device(each, device) for each in embeddings],
        tokens=_token_pool(lists, device) if token_vectors else None,
        texts=[[passage.full_text for passage in each.passages] for each in lists]
        if all(each.has_text for each in lists)
        else None,
    )


def _token_pool(lists: Sequence[CandidateList], device: torch.device) -> TokenPool:
    queries = [_given(each.query_tokens) for each in lists]
    documents = [tokens for each in lists for tokens in each.tokens or []]
    first = np.cumsum([0, *(len(each.passages) for each in lists)]).tolist()
    places = [list(range(a, b)) for a, b in pairwise(first)]
    nothing = np.zeros((0, queries[0].shape[1]), dtype=np.float32)
    return TokenPool(
        query_tokens=_to_device(torch.from_numpy(np.concatenate([nothing, *queries])), device),
        query_offsets=_offsets(queries).to(device),
        document_tokens=_to_device(torch.from_numpy(np.concatenate([nothing, *documents])), device),
        document_offsets=_offsets(documents).to(device),
        document_of=pack_documents(places).to(device),
    )


def _offsets(matrices: Sequence[np.ndarray]) -> Int[Tensor, "_"]:
    return torch.tensor([0, *map(len, matrices)]).cumsum(0)


def _given(array: np.ndarray | None) -> np.ndarray:
    assert array is not None  # every row of a job brings the same; others carry an error
    return array


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """From pinned memory, which a GPU reads without the processor."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
