"""Run one recorded query again with every step kept, and compare with what the run wrote."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from ricci_gpu.batch import QueryGraphBatch, TokenPool
from ricci_gpu.config import Config, RuntimeSettings
from ricci_gpu.corpus.candidates import CandidateList
from ricci_gpu.corpus.index import DenseIndex
from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.errors import InputError
from ricci_gpu.explain.record import RecordedQuery
from ricci_gpu.explain.words import Word, words_of
from ricci_gpu.output import Hit, Ranking
from ricci_gpu.pipeline import Pipeline, Pools
from ricci_gpu.reranker import Reranker

if TYPE_CHECKING:
    from ricci_gpu.models.encoder import Encoder


class Match(NamedTuple):
    """How well a chunk matches one query word, and where.

    ``similarity`` is the mean over the word's tokens of their largest similarity with a token of
    the chunk; ``words`` are the chunk's words with those tokens. A chunk without tokens has -inf.
    """

    similarity: float
    words: tuple[int, ...]


@dataclass(frozen=True)
class Reading:
    """Texts as the token vectors see them.

    Args:
        query: words of the query.
        passages: words of each candidate.
        matches: per candidate, one `Match` per query word.
    """

    query: list[Word]
    passages: list[list[Word]]
    matches: list[list[Match]]


@dataclass(frozen=True)
class Replay:
    """A recorded query, run again.

    Args:
        batch: this query alone, after all stages; ``details`` holds the steps of the filter.
        ranking: what came out this time.
        reading: None when no stage reads token vectors.
        changed: numbers of the candidates (from 1, in the order of the pool) whose decision
            differs from the recorded one.
        largest_difference: of the filter values, relative to the larger of the two or 1.
    """

    recorded: RecordedQuery
    config: Config
    batch: QueryGraphBatch
    ranking: Ranking
    reading: Reading | None
    changed: list[int]
    largest_difference: float


def replay(recorded: RecordedQuery, encoder: "Encoder | None" = None) -> Replay:
    """Run the query again on this machine, candidates in the recorded order.

    Args:
        encoder: by default the one that the run's settings name.

    Raises:
        InputError: the encoder is not the one of the run.
    """
    config = _traced(recorded.run.config, len(recorded.passages))
    reranker = Reranker(config, encoder=encoder)
    pipeline = _KeepsBatch(config, reranker.device, reranker.score_pairs)
    reranker.pipeline = pipeline
    if recorded.run.model["fingerprint"] is not None:
        _require_same_model(recorded, reranker)
    if recorded.candidates is None and recorded.passages:
        ranking = pipeline.rank(_pools_of_store(recorded, reranker))[0]
    else:
        candidates = recorded.candidates or CandidateList(recorded.query, [], None, None, None)
        [ranking] = reranker.rank_candidates([candidates])
    batch = pipeline.batch
    assert batch is not None  # `rank` has run it
    reading = None
    if batch.tokens is not None:
        reading = _reading(recorded, batch.tokens, reranker)
    before, now = by_position(recorded.ranking), by_position(ranking)
    changed = [
        old.position + 1 for old, new in zip(before, now, strict=True) if old.kept != new.kept
    ]
    gaps = [
        abs(old.filter_value - new.filter_value)
        / max(1.0, abs(old.filter_value), abs(new.filter_value))
        for old, new in zip(before, now, strict=True)
        if old.filter_value is not None and new.filter_value is not None
    ]
    return Replay(recorded, config, batch, ranking, reading, changed, max(gaps, default=0.0))


def by_position(ranking: Ranking) -> list[Hit]:
    """All candidates in the order of the pool."""
    return sorted([*ranking.hits, *ranking.dropped], key=lambda hit: hit.position)


class _KeepsBatch(Pipeline):
    """A pipeline that keeps the last batch it ran."""

    batch: QueryGraphBatch | None = None

    def run(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        self.batch = super().run(batch)
        return self.batch


def _traced(config: Config, candidates: int) -> Config:
    """The same decisions, on any machine, with the steps kept."""
    traced = config.filter
    if "trace" in {field.name for field in fields(traced)}:
        traced = replace(traced, trace=True)  # type: ignore[call-arg]
    return replace(
        config,
        filter=traced,
        retrieve=replace(config.retrieve, k=max(candidates, 1)),
        runtime=RuntimeSettings(),
    )


def _require_same_model(recorded: RecordedQuery, reranker: Reranker) -> None:
    model, encoder = recorded.run.model, reranker.encoder
    if encoder.fingerprint != model["fingerprint"]:
        raise InputError(
            f"the run used the model `{model['name']}` ({model['source']}); that name now gives "
            f"other files ({encoder.source}). Install the earlier model, or run again."
        )


def _pools_of_store(recorded: RecordedQuery, reranker: Reranker) -> Pools:
    """What retrieval gives from the candidates alone, put in the recorded order."""
    store = _small_store(recorded, reranker)
    pools = reranker.retrieve(store, [recorded.query])
    row_of = {name: row for row, name in enumerate(pools.candidate_ids[0])}
    ids = [passage.id for passage in recorded.passages]
    order = torch.tensor([row_of[name] for name in ids])
    assert pools.prior is not None  # `retrieve` gives all three
    assert pools.candidate_emb is not None
    tokens = pools.tokens
    if tokens is not None:
        tokens = replace(tokens, document_of=tokens.document_of[:, order])
    return replace(
        pools,
        candidate_ids=[ids],
        prior=[pools.prior[0][order]],
        candidate_emb=[pools.candidate_emb[0][order]],
        tokens=tokens,
    )


def _small_store(recorded: RecordedQuery, reranker: Reranker) -> CorpusStore:
    """A store of the candidates: cut out of the index of the run, or encoded again."""
    if recorded.store is None:
        needs_tokens = "tokens" in reranker.pipeline.needs
        return CorpusStore.build(
            recorded.passages, reranker.passage_encoder, index="flat", token_vectors=needs_tokens
        )
    whole = recorded.store
    whole.require_encoder(reranker.encoder)
    row_of = {passage.id: row for row, passage in enumerate(whole.passages)}
    rows = torch.tensor([row_of[passage.id] for passage in recorded.passages])
    tokens = token_offsets = None
    if whole.tokens is not None:
        vectors, offsets = whole.token_slices(rows)
        tokens, token_offsets = vectors.numpy(), offsets.numpy()
    return replace(
        whole,
        passages=recorded.passages,
        vectors=whole.vectors[rows],
        index=DenseIndex.build(whole.vectors[rows], "flat"),
        tokens=tokens,
        token_offsets=token_offsets,
    )


def _reading(recorded: RecordedQuery, tokens: TokenPool, reranker: Reranker) -> Reading:
    query_words, passage_words = reranker.query_encoder.words, reranker.passage_encoder.words
    texts = [passage.full_text for passage in recorded.passages]
    query = words_of(recorded.query.text, query_words(recorded.query.text))
    passages = [words_of(text, passage_words(text)) for text in texts]
    matches = [
        _matches(query, words, tokens, int(tokens.document_of[0, column]))
        for column, words in enumerate(passages)
    ]
    return Reading(query, passages, matches)


def _matches(
    query: list[Word], passage: list[Word], tokens: TokenPool, document: int
) -> list[Match]:
    start, stop = tokens.document_offsets[document : document + 2].tolist()
    document_tokens = tokens.document_tokens[start:stop].float()
    if len(document_tokens) == 0:
        return [Match(-torch.inf, ()) for _ in query]
    word_of = {token: place for place, word in enumerate(passage) for token in word.tokens}
    best = (tokens.query_tokens.float() @ document_tokens.mT).max(dim=1)
    similarity, place = best.values.tolist(), best.indices.tolist()
    return [
        Match(
            sum(similarity[token] for token in word.tokens) / len(word.tokens),
            tuple(sorted({word_of[place[token]] for token in word.tokens})),
        )
        for word in query
    ]
