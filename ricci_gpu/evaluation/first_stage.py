"""First stages over a whole corpus, as full score matrices: fine for corpora of this size."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.errors import missing
from ricci_gpu.ops.cutoffs import z_scores
from ricci_gpu.ops.topk import rank_of
from ricci_gpu.output import atomic_file
from ricci_gpu.shapes import Bool, Float, Int, Tensor

RRF_CONSTANT = 60.0  # Cormack et al. 2009
DEPTH = 100  # of each list that is fused


@runtime_checkable
class SparseStage(Protocol):
    """A first stage over words."""

    @property
    def name(self) -> str: ...

    def scores(self, texts: list[str]) -> Float[Tensor, "B M"]:
        """Score of every passage."""
        ...


class Bm25:
    """BM25 (Lucene's form, k1 1.2, b 0.75) over English stems without stop words."""

    name = "BM25"

    def __init__(self, store: CorpusStore) -> None:
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise missing("bm25s", "BM25", "eval") from error
        self._bm25s: Any = bm25s
        self._stemmer = Stemmer.Stemmer("english")
        texts = [passage.full_text for passage in store.passages]
        self._index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
        self._index.index(self._tokens(texts), show_progress=False)

    def _tokens(self, texts: list[str]) -> Any:
        return self._bm25s.tokenize(
            texts, stopwords="en", stemmer=self._stemmer, return_ids=False, show_progress=False
        )

    def scores(self, texts: list[str]) -> Float[Tensor, "B M"]:
        """Score of every passage; 0 where no word matches."""
        rows = [self._index.get_scores(tokens) for tokens in self._tokens(texts)]
        return torch.stack([torch.from_numpy(row) for row in rows])


@runtime_checkable
class SparseModel(Protocol):
    """Makes sparse vectors over a vocabulary; `ricci_gpu.models.splade.Splade` is one."""

    name: str
    vocabulary: int

    @property
    def fingerprint(self) -> str: ...

    def encode(
        self,
        texts: Sequence[str],
        *,
        progress: Callable[[int, int], None] | None = None,
        log_truncated: bool = True,
    ) -> Tensor: ...


class SpladeStage:
    """SPLADE over the corpus, whose vectors are kept in the cache in float16."""

    def __init__(
        self,
        model: SparseModel,
        store: CorpusStore,
        cache: Path,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.name = f"SPLADE {model.name}"
        self._model = model
        path = cache / f"splade-{model.fingerprint[:16]}-{store.meta.sha256[:16]}.npz"
        if not path.is_file():
            texts = [passage.full_text for passage in store.passages]
            rows = model.encode(texts, progress=progress, log_truncated=False).cpu()
            with atomic_file(path) as temporary, temporary.open("wb") as file:
                np.savez(
                    file,
                    starts=rows.crow_indices().numpy(),
                    words=rows.col_indices().numpy().astype(np.int32),
                    weights=rows.values().numpy().astype(np.float16),
                )
        self._passages = _read_sparse(path, (len(store.passages), model.vocabulary))

    def scores(self, texts: list[str]) -> Float[Tensor, "B M"]:
        """Inner product with every passage."""
        queries = self._model.encode(texts, log_truncated=False).cpu().to_dense()
        return (self._passages @ queries.mT).mT.contiguous()


def _read_sparse(path: Path, size: tuple[int, int]) -> Tensor:
    with np.load(path) as kept, warnings.catch_warnings():
        # torch says once per process that the layout is young
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(kept["starts"]),
            torch.from_numpy(kept["words"].astype(np.int64)),
            torch.from_numpy(kept["weights"].astype(np.float32)),
            size,
            check_invariants=True,
        )


def reciprocal_ranks(score: Float[Tensor, "B M"], depth: int = DEPTH) -> Float[Tensor, "B M"]:
    """``1 / (60 + rank)``, ranks from 1, within the best ``depth``; 0 beyond them."""
    rank = rank_of(score, torch.ones_like(score, dtype=torch.bool)) + 1
    return torch.where(rank <= depth, 1.0 / (RRF_CONSTANT + rank.double()), 0.0)


def listed(score: Float[Tensor, "B M"], depth: int = DEPTH) -> Bool[Tensor, "B M"]:
    """The best ``depth`` of every row."""
    return rank_of(score, torch.ones_like(score, dtype=torch.bool)) < depth


def z_fusion(
    scores: list[tuple[float, Float[Tensor, "B M"]]], depth: int = DEPTH
) -> Float[Tensor, "B M"]:
    """Weighted sum of scores standardised over the union of their best ``depth``.

    Passages outside the union are ``-inf``.
    """
    union = torch.stack([listed(score, depth) for _, score in scores]).any(dim=0)
    total = torch.zeros_like(scores[0][1], dtype=torch.float64)
    for weight, score in scores:
        z = z_scores(score.double(), union)
        total += weight * torch.where(torch.isfinite(z), z, 0.0)
    return torch.where(union, total, -torch.inf)


def best(score: Float[Tensor, "B M"], size: int) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
    """Scores and corpus rows of the best ``size``, equal scores by the lower row."""
    order = score.argsort(dim=1, descending=True, stable=True)[:, :size]
    return score.gather(1, order), order


def finite(score: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Places that the union of short lists cannot fill score below all others."""
    real = torch.isfinite(score)
    lowest = torch.where(real, score, torch.inf).amin(dim=1, keepdim=True)
    return torch.where(real, score, lowest - 1.0)
