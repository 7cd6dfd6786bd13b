"""vLLM's ``/rerank`` with ``documents``, and its ``/score``."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ricci_gpu.serving.calls import checked, text_of
from ricci_gpu.serving.dialects.interface import Dialect, without_nulls
from ricci_gpu.serving.failures import invalid
from ricci_gpu.serving.schemas import Extension, ScoreBody

PAIRED = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)


class VLLM(Dialect):
    """Returns the documents unless told not to."""

    name = "vllm"
    echo_by_default = True


@dataclass(frozen=True)
class ScoreCall:
    """Pairs to score: pools of documents with a query each.

    A single query has one pool; as many queries as documents have pools of one document each.
    """

    queries: tuple[str, ...]
    pools: tuple[tuple[str, ...], ...]
    model: str | None
    raw: bool
    options: Extension


def parse_score(body: Mapping[str, Any]) -> ScoreCall:
    """The pairs of a ``/score`` body.

    Raises:
        Refusal: a body that breaks a rule.
    """
    given = checked(ScoreBody, without_nulls(body))
    for one, other in PAIRED:
        first, second = getattr(given, one), getattr(given, other)
        if first is not None and second is not None:
            break
    else:
        raise invalid(
            "`/score` needs `text_1` and `text_2`, `queries` and `documents` or `items`, or "
            "`data_1` and `data_2`."
        )
    queries, documents = _texts(first), _texts(second)
    if not queries or not documents:
        raise invalid(f"`{one}` and `{other}` must not be empty.")
    pools: tuple[tuple[str, ...], ...]
    if len(queries) == 1:
        pools = (documents,)
    elif len(queries) == len(documents):
        pools = tuple((each,) for each in documents)
    else:
        raise invalid(
            f"`{one}` must have one text, or as many as `{other}`; got {len(queries)} and "
            f"{len(documents)}."
        )
    options = given.ricci or Extension()
    return ScoreCall(queries, pools, given.model, bool(given.raw_scores), options)


def render_score(
    call_id: str, model: str, scores: Sequence[float], tokens: int, warnings: Sequence[str]
) -> dict[str, Any]:
    """The answer to ``/score``: in the order of the request."""
    made: dict[str, Any] = {
        "id": call_id,
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [
            {"index": place, "object": "score", "score": score}
            for place, score in enumerate(scores)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return made | ({"meta": {"warnings": list(warnings)}} if warnings else {})


def _texts(given: Any) -> tuple[str, ...]:
    many = [given] if isinstance(given, str) else given
    return tuple(text_of(each, place) for place, each in enumerate(many))
