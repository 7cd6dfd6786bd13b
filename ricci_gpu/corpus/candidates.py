"""Ready candidate lists: a query with what another system retrieved for it.

One query per line (``.jsonl``, ``.jsonl.gz``) or per row (``.parquet``, the same names, nested)::

    {"query_id": "q1", "query": "who wrote it", "query_embedding": [0.1, ...],
     "query_tokens": [[0.2, ...], ...],
     "candidates": [{"id": "d7", "title": "", "text": "...", "score": 12.5,
                     "embedding": [0.3, ...], "tokens": [[0.1, ...], ...]}, ...]}

* ``query_id`` (or ``_id``, ``id``) and ``candidates`` are required; ``candidates`` may be empty.
* A query and its candidates come with texts, with embeddings, or with both. Within one list,
  either all candidates have a text (score, embedding, token vectors) or none has. With embeddings,
  a query may have a text where its candidates have none.
* ``score`` must be finite; larger is better. Embeddings of one file have one length; a NaN in one
  is left for the run to report, per query.
* ``query_tokens`` and ``tokens`` are vectors per token, which MaxSim and token transport compare by
  inner product as they are: give them length 1 if the model means cosines. They come with
  embeddings. Offline jobs read them (`ricci_gpu.jobs`).
* Where an index has the passages, ids are enough: `candidate_ids`.
* Query ids are unique in the file, candidate ids in their list. ``title`` is optional.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ricci_gpu.corpus.files import as_path, file_format, json_rows, parquet_rows
from ricci_gpu.corpus.records import Passage, Query, as_id, as_text, field, require_unique
from ricci_gpu.errors import InputError

QUERY_ID = ("query_id", "_id", "id")
ID = ("id", "_id")
QUERY_FIELDS = ("query", "query_embedding", "query_tokens")


@dataclass(frozen=True)
class CandidateList:
    """A query and its candidates, in the order given.

    Args:
        scores: one per candidate, larger is better.
        query_embedding, embeddings: float32 of shape ``[D]`` and ``[K D]``, both or neither.
        has_text: false when the file gave no texts; they are then empty strings.
        query_tokens, tokens: vectors per token, of the query and of each candidate, float32 of
            shape ``[L D]``; both or neither. A text without tokens has shape ``[0 D]``.
    """

    query: Query
    passages: list[Passage]
    scores: list[float] | None
    query_embedding: np.ndarray | None
    embeddings: np.ndarray | None
    has_text: bool = True
    query_tokens: np.ndarray | None = None
    tokens: list[np.ndarray] | None = None


def read_candidates(path: str | os.PathLike[str]) -> list[CandidateList]:
    """All candidate lists of a file (format: module docstring), in file order.

    Raises:
        InputError: an unreadable file, a row that breaks a rule, or no row at all.
    """
    source = as_path(path)
    lists: list[CandidateList] = []
    width: int | None = None
    for place, row in _rows(source):
        lists.append(candidate_list(row, place))
        embedding = lists[-1].query_embedding
        if embedding is not None:
            width = embedding.size if width is None else width
            if embedding.size != width:
                raise InputError(
                    f"{place}: all embeddings of a file must have one length; got "
                    f"{embedding.size} after {width}. Embed all queries with one model."
                )
    if not lists:
        raise InputError(f"{source}: candidate lists need at least one query; the file is empty.")
    require_unique((each.query.id for each in lists), "query", str(source))
    return lists


def _rows(source: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if file_format(source, known=("jsonl", "parquet")) == "jsonl":
        return json_rows(source)
    return parquet_rows(source, {*QUERY_ID, *QUERY_FIELDS, "candidates"})


def candidate_list(row: Mapping[str, Any], place: str) -> CandidateList:
    """The candidate list that one row holds; ``place`` names the row in errors."""
    query_id, place, candidates = _head(row, place)
    passages = [
        Passage(
            id=as_id(field(one, ID, place), place),
            title=as_text(one.get("title"), place, "title"),
            text=as_text(one.get("text"), place),
        )
        for one in candidates
    ]
    require_unique((passage.id for passage in passages), "candidate", place)

    # The query counts as one more: it needs a text when the candidates have one, and so on.
    vectors = _all_or_none(
        [*candidates, {"embedding": row.get("query_embedding")}], "embedding", place
    )
    texts = None
    if vectors is None or any(one.get("text") is not None for one in candidates):
        texts = _all_or_none([*candidates, {"text": row.get("query")}], "text", place)
    if texts is None and vectors is None:
        raise InputError(
            f"{place}: a query and its candidates need texts, embeddings, or both; got neither. "
            "Add `query` and `text`, or `query_embedding` and `embedding`, or give the index that "
            "has the passages."
        )
    words = _all_or_none([*candidates, {"tokens": row.get("query_tokens")}], "tokens", place)
    if words is not None and vectors is None:
        raise InputError(
            f"{place}: token vectors come with embeddings; got `tokens` without `embedding`. Add "
            "`query_embedding` and `embedding`."
        )
    embeddings = None if vectors is None else _vectors(vectors, place)
    tokens = None if words is None else _token_vectors(words, place)
    return CandidateList(
        query=Query(query_id, as_text(row.get("query"), place, "query")),
        passages=passages,
        scores=_scores(candidates, place),
        query_embedding=None if embeddings is None else embeddings[-1],
        embeddings=None if embeddings is None else embeddings[:-1],
        has_text=texts is not None,
        query_tokens=None if tokens is None else tokens[-1],
        tokens=None if tokens is None else tokens[:-1],
    )


def candidate_ids(row: Mapping[str, Any], place: str) -> CandidateList:
    """The candidates of one row whose passages lie in an index: their ids and scores alone.

    The query must have a text; whatever else the row holds is not read.
    """
    query_id, place, candidates = _head(row, place)
    passages = [Passage(as_id(field(one, ID, place), place), "", "") for one in candidates]
    require_unique((passage.id for passage in passages), "candidate", place)
    if row.get("query") is None:
        raise InputError(
            f"{place}: candidates in an index need the text of their query; got none. Add `query`."
        )
    return CandidateList(
        query=Query(query_id, as_text(row["query"], place, "query")),
        passages=passages,
        scores=_scores(candidates, place),
        query_embedding=None,
        embeddings=None,
        has_text=False,
    )


def _head(row: Mapping[str, Any], place: str) -> tuple[str, str, list[dict[str, Any]]]:
    """Id of the query, the place with it, and the candidates as they are written."""
    query_id = as_id(field(row, QUERY_ID, place), place)
    place = f"{place}, query `{query_id}`"
    candidates = field(row, ("candidates",), place)
    if not isinstance(candidates, list) or not all(isinstance(one, dict) for one in candidates):
        raise InputError(
            f"{place}: `candidates` must be a list of objects; got {str(candidates)[:60]}. "
            'Write it as [{"id": ..., "text": ...}, ...], or [] for none.'
        )
    return query_id, place, candidates


def _all_or_none(items: list[dict[str, Any]], name: str, place: str) -> list[Any] | None:
    """The values, or None when no item has one; null and an absent field are the same."""
    values = [item.get(name) for item in items]
    given = sum(value is not None for value in values)
    if given == 0:
        return None
    if given != len(values):
        where = "the candidates" if name == "score" else "the query and its candidates"
        raise InputError(
            f"{place}: either all or none of {where} have `{name}`; "
            f"got it for {given} of {len(values)}. Complete it, or leave it out."
        )
    return values


def _scores(candidates: list[dict[str, Any]], place: str) -> list[float] | None:
    scores = _all_or_none(candidates, "score", place)
    return None if scores is None else [_score(score, place) for score in scores]


def _score(value: Any, place: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise InputError(f"{place}: a `score` must be a finite number; got {value!r}. Correct it.")


def _vectors(values: list[Any], place: str) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # beyond float32 becomes inf, reported by the run
            vectors = np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{place}: embeddings must be lists of numbers, all of one length; they are not "
            f"({error}). Embed the query and its candidates with one model."
        ) from error
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise InputError(
            f"{place}: an embedding must be a non-empty list of numbers; got {values[-1]!r}. "
            "Correct it."
        )
    return vectors


def _token_vectors(values: list[Any], place: str) -> list[np.ndarray]:
    """One ``[L D]`` matrix per text, all of one width."""
    try:
        with np.errstate(over="ignore"):
            matrices = [np.asarray(value, dtype=np.float32) for value in values]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{place}: token vectors must be lists of equally long lists of numbers; they are not "
            f"({error}). Encode the query and its candidates with one model."
        ) from error
    widths = {each.shape[1] if each.ndim == 2 else -1 for each in matrices if each.size}
    if len(widths) != 1 or -1 in widths:
        raise InputError(
            f"{place}: token vectors must be lists of vectors of one length, at least one of them "
            f"in the row; got shapes {sorted({each.shape for each in matrices})[:3]}. Encode the "
            "query and its candidates with one model."
        )
    [width] = widths
    return [each if each.size else np.zeros((0, width), dtype=np.float32) for each in matrices]
