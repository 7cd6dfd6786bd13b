"""Nearest passages of a query vector by inner product, on faiss.

=========  ==========================================================================
kind       what it does
=========  ==========================================================================
``flat``   compares with every vector: exact, the default
``hnsw``   walks a graph of neighbours: approximate, fast, needs more memory
``ivf``    looks into the nearest of some clusters: approximate, fast to build
=========  ==========================================================================

faiss adds up in an order that depends on how many queries come together, so its scores move in
the last digits, and equal vectors can end up with unequal scores. Here faiss proposes rows; their
scores are computed again, each from its two vectors alone, and equal scores are ordered by row.
With ``flat`` the proposal is widened until nothing outside can belong to the answer, so the
answer is exact and does not depend on the other queries of a call.

Vectors are known by their row; names of other types belong to the caller (`CorpusStore` keeps
passages by row). Rows never move: a deleted one is passed over and its number stays taken.
"""

import math
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ricci_gpu.errors import InputError, SettingError, missing, suggest
from ricci_gpu.output import atomic_file
from ricci_gpu.shapes import Float, Int, Tensor

KINDS = ("flat", "hnsw", "ivf")

SPARE = 8  # rows asked for beyond k, so that ties at the end seldom need a second search
BLOCK = 1 << 24  # numbers held at once while scores are computed again

HNSW_NEIGHBOURS = 32
HNSW_BUILD_WIDTH = 200
HNSW_SEARCH_WIDTH = 128
IVF_POINTS_PER_CLUSTER = 39  # faiss warns below this
IVF_CLUSTERS_SEARCHED = 16


class DenseIndex:
    """Vectors by row, searchable. Make one with `DenseIndex.build` or `DenseIndex.load`.

    Attributes:
        kind: ``flat``, ``hnsw`` or ``ivf``.
        width: length ``D`` of the vectors.
    """

    def __init__(
        self, index: Any, kind: str, deleted: np.ndarray | None = None, mapped: bool = False
    ) -> None:
        self.kind = kind
        self.width: int = index.d
        self._index = index
        self._gpu: Any = None
        self._mapped = mapped
        self._deleted = np.zeros(index.ntotal, dtype=bool)
        if deleted is not None:
            self._deleted[deleted[deleted < index.ntotal]] = True
        if kind == "ivf":
            index.make_direct_map()  # to get a vector by its row

    @property
    def size(self) -> int:
        """Number of rows ``M``, deleted ones included."""
        return len(self._deleted)

    @property
    def live(self) -> int:
        """Number of rows that can be found."""
        return self.size - int(self._deleted.sum())

    @classmethod
    def build(cls, vectors: Float[Tensor, "M D"], kind: str = "flat") -> "DenseIndex":
        """Index the rows of ``vectors``.

        Raises:
            InputError: no row, or a row that is zero or not finite.
            SettingError: an unknown kind.
            MissingDependencyError: without faiss.
        """
        if kind not in KINDS:
            raise SettingError(f"unknown index kind `{kind}`. {suggest(kind, KINDS)}")
        faiss = _import_faiss()
        rows = _as_rows(vectors, "index")
        if len(rows) == 0:
            raise InputError("an index needs at least one vector; got none. Check the corpus.")
        count, width = rows.shape
        if kind == "flat":
            index = faiss.IndexFlatIP(width)
        elif kind == "hnsw":
            index = faiss.IndexHNSWFlat(width, HNSW_NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = HNSW_BUILD_WIDTH
        else:
            clusters = max(1, min(4 * math.isqrt(count), count // IVF_POINTS_PER_CLUSTER))
            index = faiss.IndexIVFFlat(
                faiss.IndexFlatIP(width), width, clusters, faiss.METRIC_INNER_PRODUCT
            )
            index.nprobe = IVF_CLUSTERS_SEARCHED
            index.train(rows)
        index.add(rows)
        return cls(index, kind)

    def search(
        self, queries: Float[Tensor, "q D"], k: int
    ) -> tuple[Float[Tensor, "q k"], Int[Tensor, "q k"]]:
        """Scores and rows of the best ``k`` vectors per query, best first, ties by lower row.

        A ``k`` above the number of vectors gives all, so `live` columns. An approximate index may
        find fewer than ``k``: the last places then have score -inf and row -1.

        Raises:
            SettingError: ``k`` is not positive.
            InputError: queries of another width, zero, or not finite.
        """
        if k < 1:
            raise SettingError(f"`k` must be at least 1; got {k}. Raise it.")
        rows = _as_rows(queries, "search")
        if rows.shape[1] != self.width:
            raise InputError(
                f"query vectors must have the width of the index, {self.width}; got "
                f"{rows.shape[1]}. Encode the queries with the model of the corpus."
            )
        k = min(k, self.live)
        if k == 0:
            return torch.empty((len(rows), 0)), torch.empty((len(rows), 0), dtype=torch.int64)
        scores, found = self._search(rows, k, min(k + SPARE, self.live))
        return torch.from_numpy(scores), torch.from_numpy(found)

    def add(self, vectors: Float[Tensor, "m D"]) -> range:
        """Append vectors; the rows that they got.

        Raises:
            InputError: vectors of another width, zero or not finite; or an index that is mapped
                from its file or copied to GPUs.
        """
        self._require_changeable()
        rows = _as_rows(vectors, "add")
        if rows.shape[1] != self.width:
            raise InputError(
                f"vectors to add must have the width of the index, {self.width}; got "
                f"{rows.shape[1]}. Encode them with the model of the corpus."
            )
        first = self.size
        self._index.add(rows)
        self._deleted = np.concatenate([self._deleted, np.zeros(len(rows), dtype=bool)])
        self.__dict__.pop("_longest", None)
        return range(first, self.size)

    def delete(self, rows: Sequence[int]) -> None:
        """Let some rows no longer be found; the others keep their numbers.

        The vectors stay in the file: build the index again to get their room back.

        Raises:
            InputError: a row that does not exist; or an index that was copied to GPUs.
        """
        if self._gpu is not None:
            raise _on_gpus()
        bad = [row for row in rows if not 0 <= row < self.size]
        if bad:
            raise InputError(
                f"rows to delete must lie between 0 and {self.size - 1}; got {bad[0]}. Correct it."
            )
        self._deleted[list(rows)] = True

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a file, which appears only when it is complete.

        Deleted rows lie beside it, under the same name with ``.deleted.npy``, and are written
        first: a crash between the two brings no deleted row back.
        """
        path = Path(path)
        if self._deleted.any():
            with atomic_file(_deleted_file(path)) as temporary, temporary.open("wb") as file:
                np.save(file, np.flatnonzero(self._deleted))
        with atomic_file(path) as temporary:
            _import_faiss().write_index(self._index, str(temporary))

    @classmethod
    def load(cls, path: str | os.PathLike[str], mapped: bool = False) -> "DenseIndex":
        """Read an index that `save` wrote.

        Args:
            mapped: leave the vectors in the file and read what a search touches; nothing can be
                added then.

        Raises:
            InputError: no such file, damaged, or an index of another kind.
        """
        faiss = _import_faiss()
        kinds = {"IndexFlatIP": "flat", "IndexHNSWFlat": "hnsw", "IndexIVFFlat": "ivf"}
        flags = faiss.IO_FLAG_MMAP_IFC if mapped else 0
        try:
            index = faiss.read_index(os.fspath(path), flags)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise InputError(
                f"{path}: not a readable faiss index ({reason}). Build the index again."
            ) from error
        kind = kinds.get(type(index).__name__)
        if kind is None or index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InputError(
                f"{path}: must be a flat, hnsw or ivf index by inner product, written by this "
                f"library; got {type(index).__name__}. Build the index again."
            )
        beside = _deleted_file(Path(path))
        return cls(index, kind, np.load(beside) if beside.is_file() else None, mapped)

    def copy_to_gpus(self) -> None:
        """Propose rows on all GPUs of this machine, each with a share of the vectors.

        Scores are computed here in any case, so the answers keep their guarantees. Nothing can be
        added or deleted afterwards.

        Raises:
            SettingError: an hnsw index, a faiss without GPU support, no GPU, or deleted rows.
        """
        faiss = _import_faiss()
        if self.kind == "hnsw":
            raise SettingError("faiss searches hnsw on CPUs alone. Use `flat` or `ivf` on GPUs.")
        if not hasattr(faiss, "index_cpu_to_all_gpus") or faiss.get_num_gpus() == 0:
            raise SettingError(
                "searching on GPUs needs a GPU and faiss built for it; one of them is not here. "
                'Install it with: pip install "ricci-gpu[faiss-gpu]" (in place of faiss-cpu).'
            )
        if self._deleted.any():
            raise SettingError("an index with deleted rows stays on the CPU. Build it again first.")
        options = faiss.GpuMultipleClonerOptions()
        options.shard = True
        self._gpu = faiss.index_cpu_to_all_gpus(self._index, co=options)

    def _require_changeable(self) -> None:
        if self._gpu is not None:
            raise _on_gpus()
        if self._mapped:
            raise InputError(
                "nothing can be added to an index that is mapped from its file. Load it with "
                "mapped=False."
            )

    def _search(self, queries: np.ndarray, k: int, asked: int) -> tuple[np.ndarray, np.ndarray]:
        """The best ``k`` of the ``asked`` rows that faiss proposes, widened as far as needed."""
        faiss_scores, found = self._propose(queries, asked)
        scores = np.concatenate(
            [
                self._score(queries[block], found[block])
                for block in _blocks(len(queries), asked * self.width)
            ]
            or [np.empty((0, asked), dtype=np.float32)]
        )
        order = np.lexsort((found, -scores), axis=-1)[:, :k]
        scores, found = np.take_along_axis(scores, order, -1), np.take_along_axis(found, order, -1)
        if self.kind == "flat" and asked < self.live:
            # What was not proposed scores at most the last proposal, give or take the rounding:
            # D * 2**-24 of both lengths in any order of summation, once there and once here.
            rounding = 2 * self.width * 2.0**-24 * self._longest * _lengths(queries)
            bound = faiss_scores[:, -1] + rounding
            (open_,) = np.nonzero(bound >= scores[:, -1])
            if len(open_):
                wider = min(4 * asked, self.live)
                scores[open_], found[open_] = self._search(queries[open_], k, wider)
        return scores, found

    def _propose(self, queries: np.ndarray, asked: int) -> tuple[np.ndarray, np.ndarray]:
        if self._gpu is not None:
            return self._gpu.search(queries, asked)
        faiss, settings = _import_faiss(), {}
        if self._deleted.any():
            bits = np.packbits(~self._deleted, bitorder="little")
            settings["sel"] = faiss.IDSelectorBitmap(bits)
        if self.kind == "hnsw":
            width = max(HNSW_SEARCH_WIDTH, 2 * asked)
            parameters = faiss.SearchParametersHNSW(efSearch=width, **settings)
        elif self.kind == "ivf":
            parameters = faiss.SearchParametersIVF(nprobe=self._index.nprobe, **settings)
        else:
            parameters = faiss.SearchParameters(**settings)
        return self._index.search(queries, asked, params=parameters)

    def _score(self, queries: np.ndarray, found: np.ndarray) -> np.ndarray:
        """Inner products, each summed by itself along contiguous memory."""
        vectors = self._index.reconstruct_batch(np.where(found < 0, 0, found).reshape(-1))
        products = vectors.reshape(*found.shape, self.width) * queries[:, None, :]
        return np.where(found < 0, np.float32(-np.inf), products.sum(axis=-1))

    @cached_property
    def _longest(self) -> float:
        blocks = _blocks(self.size, self.width)
        vectors = (self._index.reconstruct_n(rows.start, rows.stop - rows.start) for rows in blocks)
        return max(float(_lengths(each).max()) for each in vectors)


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise missing("faiss", "a dense index", "faiss-cpu") from error
    return faiss


def _deleted_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.deleted.npy")


def _on_gpus() -> InputError:
    return InputError(
        "an index that was copied to GPUs cannot be changed. Load it again, change it, and copy it "
        "then."
    )


def _as_rows(vectors: Tensor, purpose: str) -> np.ndarray:
    """Contiguous float32 rows on the host, none of them zero or not finite."""
    rows = np.ascontiguousarray(vectors.detach().to(device="cpu", dtype=torch.float32).numpy())
    lengths = _lengths(rows)
    bad = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
    if len(bad):
        shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise InputError(
            f"vectors to {purpose} must be finite and not zero; {len(bad)} of {len(rows)} are not "
            f"(rows {shown}). Encode these texts again, or leave them out."
        )
    return rows


def _lengths(rows: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.linalg.norm(rows, axis=-1)


def _blocks(count: int, numbers_each: int) -> list[slice]:
    """Slices of ``range(count)`` that hold at most `BLOCK` numbers (or a single item)."""
    step = max(1, BLOCK // numbers_each)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
