"""Signals from models with trained weights: a late-interaction head, and pair models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.evaluation.ladder import Signal
from ricci_gpu.evaluation.pools import JudgedPools
from ricci_gpu.evaluation.rerankers import PairReranker, PairScorer
from ricci_gpu.models.late_interaction import LateInteraction
from ricci_gpu.ops.maxsim import pool_maxima
from ricci_gpu.ops.token_transport import token_transport
from ricci_gpu.shapes import Tensor

AT_ONCE = 16384  # token vectors that are projected at once
PAIR_DEPTH = 20  # candidates that a pair model of the ladder reads


@dataclass(frozen=True)
class PairModel:
    """A reranker that reads query and passage together, such as a cross-encoder or an LLM.

    Args:
        sample: it is asked about the first so many test queries only; None for all.
        trained: whether its weights were trained here.
    """

    name: str
    score: PairScorer
    sample: int | None = None
    trained: bool = False


def pair_signals(
    models: Sequence[PairModel], rerankers: Mapping[str, PairReranker]
) -> list[Signal]:
    """Steps of the ladder from pair models that may be asked about every query."""
    return [
        Signal(model.name, rerankers[model.name], PAIR_DEPTH, model.trained)
        for model in models
        if model.sample is None
    ]


def head_signals(head: LateInteraction, store: CorpusStore) -> list[Signal]:
    """MaxSim and token transport on the vectors of a trained head over the encoder."""

    def projected(pools: JudgedPools) -> JudgedPools:
        return with_head(pools, head, store)

    def log_mass(pools: JudgedPools) -> Tensor:
        mine = projected(pools)
        return token_transport(mine.maxima, mine.token_mask, mine.batch.candidate_mask).log_mass

    return [
        Signal(f"MaxSim {head.name}", lambda pools: projected(pools).maxsim, trained=True),
        Signal(f"token transport {head.name}", log_mass, trained=True),
    ]


def with_head(pools: JudgedPools, head: LateInteraction, store: CorpusStore) -> JudgedPools:
    """The same pools with the maxima of the head's token vectors.

    The head's base must be the encoder of the store: its vectors are projected, no text is
    encoded.
    """
    tokens = pools.batch.tokens
    assert tokens is not None
    assert head.base == store.meta.fingerprint
    unique, place = pools.rows.unique(return_inverse=True)
    document_tokens, document_offsets = store.token_slices(unique)
    document_tokens = torch.cat(
        [head.project(part.float()).half() for part in document_tokens.split(AT_ONCE)]
    )
    tokens = replace(
        tokens,
        query_tokens=head.project(tokens.query_tokens),
        document_tokens=document_tokens,
        document_offsets=document_offsets,
        document_of=place,
    )
    maxima = pool_maxima(tokens)
    # As in `pools_of_rows`, the maxima stand for the document vectors.
    tokens = replace(tokens, document_tokens=tokens.query_tokens[:0])
    return replace(pools, batch=pools.batch.with_(maxima=maxima, tokens=tokens))
