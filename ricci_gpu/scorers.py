"""What scores pairs of texts for the rerankers that read texts."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from ricci_gpu.config import Config
from ricci_gpu.errors import SettingError
from ricci_gpu.pipeline import PairScorer
from ricci_gpu.shapes import Tensor
from ricci_gpu.stages.rerank import CrossEncoderReranker, LLMReranker

if TYPE_CHECKING:
    from ricci_gpu.models.llm_grader import Grader


class Scorer(NamedTuple):
    """Scores (query, candidate) pairs; models with equal fingerprints score alike."""

    score: PairScorer
    fingerprint: str


def load_scorer(config: Config, device: torch.device) -> Scorer:
    """What scores pairs of texts for the reranker that the settings name.

    Raises:
        SettingError: that reranker reads no texts, or its model cannot be loaded.
    """
    stage, dtype = config.rerank, getattr(torch, config.model.dtype)
    if isinstance(stage, CrossEncoderReranker):
        from ricci_gpu.models.cross_encoder import CrossEncoder

        assert stage.model is not None  # the stage insists on it
        cross_encoder = CrossEncoder.load(stage.model, device, dtype)
        score = partial(cross_encoder.score, batch_tokens=stage.batch_tokens)
        return Scorer(score, cross_encoder.fingerprint)
    if isinstance(stage, LLMReranker):
        grader = _load_grader(stage, device, dtype)
        return Scorer(partial(_grades, grader), grader.fingerprint)
    raise SettingError(
        f"the reranker `{stage.name}` scores no pairs of texts. Choose `rerank.type=cross_encoder` "
        "or `rerank.type=llm`."
    )


def _load_grader(stage: LLMReranker, device: torch.device, dtype: torch.dtype) -> "Grader":
    from ricci_gpu.models.chat_endpoint import ChatEndpoint
    from ricci_gpu.models.llm_grader import EndpointGrader, Grader, RememberedGrades
    from ricci_gpu.models.local_grader import LocalGrader

    assert stage.model is not None  # the stage insists on it
    grader: Grader
    if stage.base_url is None:
        grader = LocalGrader.load(stage.model, device, dtype)
    else:
        endpoint = ChatEndpoint(
            stage.model, stage.base_url, stage.concurrency, stage.timeout, stage.retries
        )
        grader = EndpointGrader(endpoint)
    return grader if stage.answers is None else RememberedGrades(grader, stage.answers)


def _grades(grader: "Grader", pairs: Sequence[tuple[str, str]]) -> Tensor:
    return torch.tensor([math.nan if each is None else each for each in grader.grade(pairs)])
