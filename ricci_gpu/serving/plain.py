"""Requests and answers as plain data, for servers of others: the fields of Cohere, no more."""

from collections.abc import Mapping
from typing import Any

from ricci_gpu.config import Config
from ricci_gpu.serving.dialects import CohereV2
from ricci_gpu.serving.presets import Choice
from ricci_gpu.serving.scores import scored
from ricci_gpu.serving.tasks import Failure, Outcome, Task


def read_task(body: Mapping[str, Any], choice: Choice) -> Task:
    """What a body asks for, by one configuration.

    Raises:
        Refusal: a body that breaks a rule.
    """
    call = CohereV2().parse(body)
    return Task(choice.config, choice.key, call.query, call.documents, call.vectors)


def plain(outcome: Outcome, config: Config) -> dict[str, Any]:
    """An outcome as plain data, for servers that have no dialects: results, or an error."""
    if isinstance(outcome, Failure):
        return {"error": outcome.message}
    rows = scored(outcome, config, raw=False)
    return {"results": [{"index": r.hit.position, "relevance_score": r.score} for r in rows]}
