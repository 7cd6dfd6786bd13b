"""From the order of a ranking to the scores that clients expect.

Clients want a finite number for every document, most of them between 0 and 1, and sort by it.

====================  ==============================================================
what orders the kept  ``relevance_score``
====================  ==============================================================
MaxSim                mean similarity of the query's tokens, from [-1, 1] to [0, 1]
token transport       share of the query's mass, in [0, 1]
anything else         the logistic function of the score
====================  ==============================================================

Raw scores are those of `Hit`. A document that the filter dropped comes after all kept ones: its
score is at most the lowest of theirs. One that has no score gets the lowest there is, 0 (or, raw,
the lowest raw score of the answer); the extension says which documents the filter dropped.
"""

import math
from dataclasses import dataclass

from ricci_gpu.config import Config
from ricci_gpu.output import Hit
from ricci_gpu.serving.tasks import Answer
from ricci_gpu.stages.rerank import KeepOrder, MaxSim
from ricci_gpu.stages.token_filter import TokenTransportFilter


@dataclass(frozen=True)
class Scored:
    """A document of the request in the answer, with its score."""

    hit: Hit
    score: float


def scored(answer: Answer, config: Config, raw: bool) -> list[Scored]:
    """All documents in their order: the kept ones, best first, then the dropped ones."""
    ranking = answer.ranking
    hits = [*ranking.hits, *ranking.dropped]
    known = [
        hit.score if raw else _unit(hit.score, config, answer.query_tokens)
        for hit in hits
        if hit.score is not None
    ]
    lowest = min(known, default=0.0) if raw else 0.0
    result: list[Scored] = []
    ceiling = math.inf
    for hit in hits:
        if hit.score is None:
            score = lowest
        else:
            score = hit.score if raw else _unit(hit.score, config, answer.query_tokens)
        ceiling = min(score, ceiling)  # whoever sorts by score gets this order
        result.append(Scored(hit, ceiling))
    return result


def _unit(score: float, config: Config, query_tokens: int) -> float:
    """A score between 0 and 1, in the same order."""
    if isinstance(config.rerank, MaxSim):
        mean = score / max(query_tokens, 1)
        return min(max((1.0 + mean) / 2.0, 0.0), 1.0)
    if isinstance(config.rerank, KeepOrder) and isinstance(config.filter, TokenTransportFilter):
        return min(math.exp(min(score, 0.0)), 1.0)
    return _logistic(score)


def _logistic(score: float) -> float:
    if score >= 0:
        return 1.0 / (1.0 + math.exp(-score))
    power = math.exp(score)
    return power / (1.0 + power)
