"""What a trained ranker gains on questions that it never saw.

The parts ``tune`` and ``test`` of each dataset, pools of the nearest passages, nDCG@10 against all
judgements, with a paired bootstrap over the questions. Besides all questions of a part, those are
reported whose relevant passages were never read in training either.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ricci_gpu.corpus.judged import Part
from ricci_gpu.evaluation.bootstrap import paired_difference
from ricci_gpu.evaluation.metrics import ndcg
from ricci_gpu.models.encoder import Encoded, Encoder
from ricci_gpu.ops.topk import descending_order
from ricci_gpu.shapes import Float, Tensor
from ricci_gpu.training.collection import Collection
from ricci_gpu.training.draws import Batch, Draw
from ricci_gpu.training.questions import Question, Questions

PARTS: tuple[Part, ...] = ("tune", "test")
QUESTIONS_AT_ONCE = 8
# Orders of a pool: that of retrieval, and those by the scores of a ranker.
DENSE, RAW, START, TRAINED = "dense", "raw tokens", "untrained", "trained"

Scorer = Callable[[Any], Float[Tensor, "B W"]]
Batches = Callable[[Collection, Encoded, Sequence[Batch]], "torch.utils.data.Dataset[Any]"]


@dataclass(frozen=True)
class Gain:
    """nDCG@10 of one part of a dataset, and the gain over the baseline.

    Args:
        questions: ``all`` of the part, or those ``unseen``: no relevant passage read in training.
        ndcg: by name of the order; ``dense`` is that of retrieval.
        gain, low, high: of the trained order over the baseline, with the bounds of its 95 %
            bootstrap interval.
    """

    dataset: str
    part: str
    questions: str
    count: int
    ndcg: dict[str, float]
    gain: float
    low: float
    high: float


def measure_gains(
    collections: Sequence[Collection],
    encoder: Encoder,
    read_rows: Sequence[set[int]],
    batches: Batches,
    scorers: Mapping[str, Scorer],
    baseline: str,
    progress: Callable[[int, int], None] | None = None,
) -> list[Gain]:
    """The gains of the scorer `TRAINED` over ``baseline``, another scorer or `DENSE`.

    Args:
        read_rows: for each collection, the passages that the training may have read.
        batches: what the scorers read of one collection, with its questions encoded with tokens.
        progress: called with the number of (dataset, part) pairs done and their total.
    """
    rows = []
    total = len(collections) * len(PARTS)
    for place, (collection, read) in enumerate(zip(collections, read_rows, strict=True)):
        for part_place, part in enumerate(PARTS):
            each, unseen = _part_quality(collection, part, encoder, read, batches, scorers)
            for name, chosen in (("all", np.ones_like(unseen)), ("unseen", unseen)):
                if not chosen.any():
                    continue
                values = {order: quality[chosen] for order, quality in each.items()}
                difference = paired_difference(values[TRAINED], values[baseline])
                rows.append(
                    Gain(
                        collection.dataset.name,
                        part,
                        name,
                        difference.queries,
                        {order: float(quality.mean()) for order, quality in values.items()},
                        difference.mean,
                        difference.low,
                        difference.high,
                    )
                )
            if progress is not None:
                progress(place * len(PARTS) + part_place + 1, total)
    return rows


@torch.no_grad()
def _part_quality(
    collection: Collection,
    part: Part,
    encoder: Encoder,
    read: set[int],
    batches: Batches,
    scorers: Mapping[str, Scorer],
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """nDCG@10 of every question by every order, and which questions are unseen."""
    from lightning.fabric.utilities import move_data_to_device

    judged = collection.dataset.part(part)
    asked = [
        Question(
            query.id,
            query.text,
            frozenset(p for p, grade in judged.qrels[query.id].items() if grade > 0),
        )
        for query in judged.queries
    ]
    other = replace(collection, questions=Questions(train=asked, dev=[]))
    encoded = encoder.encode([question.text for question in asked], tokens=True)
    pools = other.pools(encoded.vectors.cpu())
    relevant = [frozenset(other.relevant_rows(question)) for question in asked]
    draws = [Draw(place, tuple(pool), relevant[place]) for place, pool in enumerate(pools.tolist())]
    cut = [
        Batch(0, tuple(draws[start : start + QUESTIONS_AT_ONCE]))
        for start in range(0, len(draws), QUESTIONS_AT_ONCE)
    ]
    scores: dict[str, list[Tensor]] = {name: [] for name in scorers}
    data = batches(other, encoded, cut)
    for place in range(len(cut)):
        batch = move_data_to_device(data[place], encoder.device)
        for name, scorer in scorers.items():
            scores[name].append(scorer(batch).float().cpu())
    dense = torch.arange(pools.shape[1], 0, -1).expand(pools.shape).float()
    quality = {}
    found = {DENSE: dense} | {name: torch.cat(parts) for name, parts in scores.items()}
    for order_name, values in found.items():
        order = descending_order(values, torch.ones_like(values, dtype=torch.bool))
        ranked = pools.gather(1, order).tolist()
        ids = [[other.store.passages[row].id for row in rows] for rows in ranked]
        quality[order_name] = np.array(
            [
                ndcg({question.id: row}, {question.id: judged.qrels[question.id]})
                for question, row in zip(asked, ids, strict=True)
            ]
        )
    return quality, np.array([not (rows & read) for rows in relevant])
