"""What the models of ``deploy/triton`` share: plain arrays in and out of the engine.

Nothing here imports Triton, so that it runs, and is tested, without a server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ricci_gpu.errors import InputError
from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.presets import Choice, Presets
from ricci_gpu.serving.scores import scored
from ricci_gpu.serving.tasks import Answer, Failure, Outcome, Task, Vectors


class TritonRanker:
    """An engine with the configuration that a model's parameters name.

    Args:
        arguments: as Triton's backend gives them to ``initialize``.
        parameters: of ``config.pbtxt``: ``preset``, ``overrides``.
    """

    def __init__(self, arguments: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        given = {name: str(each["string_value"]) for name, each in parameters.items()}
        presets = Presets([given.get("preset", "default")], given.get("overrides", "").split())
        self.choice: Choice = presets.choose()
        config = self.choice.config
        if config.runtime.device == "auto":
            on_gpu = arguments.get("model_instance_kind") == "GPU"
            device = f"cuda:{arguments['model_instance_device_id']}" if on_gpu else "cpu"
            config = replace(config, runtime=replace(config.runtime, device=device))
        self._engine = Engine(config)
        self._engine.warm_up(presets.configs)

    def rank(self, requests: Sequence[Sequence[Task]]) -> list[list[Outcome]]:
        """The outcomes of the rows of each request; all rows are ranked together."""
        flat = iter(self._engine.rank([task for tasks in requests for task in tasks]))
        return [[next(flat) for _ in tasks] for tasks in requests]

    def task(self, query: str, documents: Sequence[str]) -> Task:
        return Task(self.choice.config, self.choice.key, query, tuple(documents))

    def task_of_vectors(self, arrays: Mapping[str, np.ndarray | None]) -> Task:
        """A task of one row of the arrays, by the names of the model's inputs.

        Raises:
            InputError: arrays that do not fit together.
        """
        embedding, embeddings = arrays["QUERY_EMBEDDING"], arrays["EMBEDDINGS"]
        query_tokens, tokens = arrays["QUERY_TOKENS"], arrays["TOKENS"]
        counts = arrays["TOKEN_COUNTS"]
        if (embedding is None) != (embeddings is None):
            raise InputError("send both QUERY_EMBEDDING and EMBEDDINGS, or neither.")
        if len({each is None for each in (query_tokens, tokens, counts)}) > 1:
            raise InputError("send QUERY_TOKENS, TOKENS and TOKEN_COUNTS, or none of them.")
        if embeddings is None and tokens is None:
            raise InputError("send embeddings, token vectors, or both; got neither.")
        if tokens is not None and counts is not None and query_tokens is not None:
            if (counts < 0).any() or int(counts.sum()) != len(tokens):
                raise InputError(
                    f"TOKEN_COUNTS must add up to the rows of TOKENS, {len(tokens)}; got "
                    f"{int(counts.sum())}."
                )
            _require_width("TOKENS", tokens, query_tokens)
        if embeddings is not None and embedding is not None:
            _require_width("EMBEDDINGS", embeddings, embedding)
        numbers = {len(each) for each in (embeddings, counts) if each is not None}
        if len(numbers) > 1:
            raise InputError("EMBEDDINGS and TOKEN_COUNTS must have equally many documents.")
        vectors = Vectors(numbers.pop(), embedding, embeddings, query_tokens, tokens, counts)
        return Task(self.choice.config, self.choice.key, "", vectors=vectors)

    def outputs(self, outcomes: Sequence[Outcome], top_n: int | None) -> dict[str, np.ndarray]:
        """The output arrays of a request, a row per outcome.

        Raises:
            InputError: a row without an answer, or a negative ``top_n``.
        """
        if top_n is not None and top_n < 0:
            raise InputError(f"TOP_N must be at least 0 (all); got {top_n}.")
        rows = []
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                raise InputError(outcome.message)
            rows.append(scored(outcome, self.choice.config, raw=False)[: top_n or None])
        return {
            "INDEX": np.array([[e.hit.position for e in row] for row in rows], dtype=np.int32),
            "SCORE": np.array([[e.score for e in row] for row in rows], dtype=np.float32),
            "KEPT": np.array([[e.hit.kept for e in row] for row in rows], dtype=bool),
        }


def dropped(outcomes: Sequence[Outcome]) -> int:
    """How many documents the filter dropped."""
    return sum(
        not hit.kept
        for outcome in outcomes
        if isinstance(outcome, Answer)
        for hit in outcome.ranking.dropped
    )


def texts(array: np.ndarray) -> list[str]:
    """The strings of a row; Triton sends bytes, and nothing for an empty string."""
    return [(each or b"").decode("utf-8", "replace") for each in array.reshape(-1).tolist()]


def _require_width(name: str, documents: np.ndarray, query: np.ndarray) -> None:
    if documents.shape[-1] != query.shape[-1]:
        raise InputError(
            f"{name} must have the width of the query, {query.shape[-1]}; got "
            f"{documents.shape[-1]}. Encode both with one model."
        )
