"""Vectors in requests: base64 of little-endian float16."""

import binascii

import numpy as np
import pybase64

from ricci_gpu.serving.failures import invalid
from ricci_gpu.serving.schemas import VectorsBody
from ricci_gpu.serving.tasks import Vectors

SCALAR = np.dtype("<f2")


def encode(array: np.ndarray) -> str:
    """The array as a request carries it; for clients in Python."""
    return pybase64.b64encode_as_string(np.ascontiguousarray(array, dtype=SCALAR).data)


def read_vectors(body: VectorsBody) -> Vectors:
    """The vectors of a request, in half precision as they came.

    Raises:
        Refusal: no vectors at all, half of a pair, or sizes that do not fit together.
    """
    _both_or_neither(body, "query_embedding", "embeddings")
    _both_or_neither(body, "query_tokens", "tokens")
    embedding = _matrix(body, "query_embedding", rows=1)
    embeddings = _matrix(body, "embeddings", rows=body.documents)
    if embedding is not None and embeddings is not None:
        _require_width("embeddings", embeddings.shape[1], embedding.shape[1])
    query_tokens = tokens = counts = None
    if body.tokens is not None:
        if body.token_width is None or body.token_counts is None:
            raise invalid("`vectors.tokens` needs `token_width` and `token_counts`.")
        if len(body.token_counts) != body.documents:
            raise invalid(
                "`vectors.token_counts` must have a number per document; got "
                f"{len(body.token_counts)} for {body.documents}."
            )
        tokens = _matrix(body, "tokens", rows=sum(body.token_counts), width=body.token_width)
        query_tokens = _matrix(body, "query_tokens", rows=None, width=body.token_width)
        counts = np.array(body.token_counts, dtype=np.int64)
    if embeddings is None and tokens is None:
        raise invalid(
            "`vectors` must hold `query_embedding` and `embeddings`, or `query_tokens` and "
            "`tokens`, or all four."
        )
    return Vectors(
        documents=body.documents,
        query_embedding=None if embedding is None else embedding[0],
        embeddings=embeddings,
        query_tokens=query_tokens,
        tokens=tokens,
        token_counts=counts,
    )


def _both_or_neither(body: VectorsBody, query: str, documents: str) -> None:
    if (getattr(body, query) is None) != (getattr(body, documents) is None):
        raise invalid(f"`vectors` must hold both `{query}` and `{documents}`, or neither.")


def _matrix(
    body: VectorsBody, name: str, rows: int | None, width: int | None = None
) -> np.ndarray | None:
    """The array under ``name``; its number of rows or its width follows from the other."""
    text = getattr(body, name)
    if text is None:
        return None
    try:
        data = pybase64.b64decode_as_bytearray(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"`vectors.{name}` must be base64 of float16 numbers.") from None
    if len(data) % SCALAR.itemsize:
        raise invalid(f"`vectors.{name}` must hold float16 numbers; got {len(data)} bytes.")
    numbers = len(data) // SCALAR.itemsize
    if rows is None:
        assert width is not None  # one of them is given
        rows = numbers // width
    if width is None:
        width = numbers // rows
    if rows * width != numbers or width == 0:
        raise invalid(
            f"`vectors.{name}` must hold {rows} rows of one width"
            + (f", {width}" if width else "")
            + f"; got {numbers} numbers."
        )
    return np.frombuffer(data, dtype=SCALAR).reshape(rows, width)


def _require_width(name: str, got: int, wanted: int) -> None:
    if got != wanted:
        raise invalid(
            f"`vectors.{name}` must have the width of the query, {wanted}; got {got}. Encode both "
            "with one model."
        )
