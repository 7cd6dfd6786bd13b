"""Score the survivors again."""

from dataclasses import dataclass

import torch

from ricci_gpu.batch import QueryGraphBatch, Reason
from ricci_gpu.errors import SettingError
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


class PairReranker(Stage):
    """A model that reads query and candidate together scores what the filter kept.

    What it gives no score for stays, after the scored ones, and the reason says so.
    """

    def needs(self) -> set[str]:
        return {"texts"}

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        pool = batch.texts
        assert pool is not None  # `Pipeline` has checked that texts come
        places = batch.keep.nonzero().tolist()
        pairs = [(pool.queries[row], pool.candidates[row][column]) for row, column in places]
        score = torch.full_like(batch.score, torch.nan)
        score[batch.keep] = pool.score(pairs).to(score)
        unscored = batch.keep & torch.isnan(score)
        reason = torch.where(unscored, int(Reason.UNSCORED), batch.reason)
        return batch.with_(score=score, reason=reason)


@RERANKERS.register("cross_encoder")
@dataclass(frozen=True)
class CrossEncoderReranker(PairReranker):
    """A cross-encoder scores the survivors.

    Args:
        model: folder of a sequence classifier with one label or two, or its name on the hub.
        batch_tokens: padded tokens per forward pass; null for what suits the device.
    """

    model: str | None = None
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        _require_model("cross_encoder", self.model)
        if self.batch_tokens is not None:
            _at_least_one("batch_tokens", self.batch_tokens)


@RERANKERS.register("llm")
@dataclass(frozen=True)
class LLMReranker(PairReranker):
    """A language model grades each survivor by itself.

    The API key is read from the environment variable OPENAI_API_KEY; none is sent without it.

    Args:
        model: name that the endpoint knows; without an endpoint, a folder, a packaged model, or a
            name on the hub.
        base_url: of an OpenAI-compatible endpoint, such as ``http://localhost:8000/v1``; null runs
            the model here.
        concurrency: requests at once.
        timeout: seconds per request.
        retries: of a request that fails or is turned away.
        answers: JSONL file that keeps every answer, so that none is asked for twice; null for none.
    """

    model: str | None = None
    base_url: str | None = None
    concurrency: int = 8
    timeout: float = 60.0
    retries: int = 3
    answers: str | None = None

    def __post_init__(self) -> None:
        _require_model("llm", self.model)
        _at_least_one("concurrency", self.concurrency)
        if not self.timeout > 0:
            raise SettingError(f"`timeout` must be greater than 0 seconds; got {self.timeout}.")
        if self.retries < 0:
            raise SettingError(f"`retries` must be at least 0; got {self.retries}.")


def _require_model(reranker: str, model: str | None) -> None:
    if not model:
        raise SettingError(
            f"the {reranker} reranker needs a model: set `rerank.model` to a folder or a name."
        )


def _at_least_one(setting: str, received: int) -> None:
    if received < 1:
        raise SettingError(f"`{setting}` must be at least 1; got {received}.")
