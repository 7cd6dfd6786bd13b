"""Score the survivors again."""

from dataclasses import dataclass

import torch

from ricci_gpu.batch import QueryGraphBatch
from ricci_gpu.ops.maxsim import maxsim_from_maxima
from ricci_gpu.stages.interface import RERANKERS, Stage, good_tokens


@RERANKERS.register("none")
@dataclass(frozen=True)
class KeepOrder(Stage):
    """Leave the order to the filter's score, or to the retrieval score."""

    def needs(self) -> set[str]:
        return set()

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        return batch


@RERANKERS.register("maxsim")
@dataclass(frozen=True)
class MaxSim(Stage):
    """Late interaction over token vectors.

    What the filter dropped is not scored (and costs nothing), unless the filter has computed the
    token maxima already. A query with a bad token vector keeps the scores that it had.
    """

    def needs(self) -> set[str]:
        return {"tokens"}

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        computed_for_all = batch.maxima is not None
        batch, maxima, token_mask, judged = good_tokens(batch)
        score = maxsim_from_maxima(maxima, token_mask)
        scored = batch.candidate_mask if computed_for_all else batch.keep
        score = torch.where(scored, score, torch.nan)
        return batch.with_(score=torch.where(judged, score, batch.score))
