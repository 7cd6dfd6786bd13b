"""The rows of a unit, ranked.

What can change a bit of a result is fixed by the plan and the rows of the unit: which rows come
together, in what batches, with how many threads. A batch holds rows with pools of like size, up to
a number of passage tokens, so little is padded and memory is bounded. A query that comes several
times in a unit is computed once where an index answers it; any text that comes several times is
encoded once.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import cast

import torch

from ricci_gpu.batch import bucket_size
from ricci_gpu.corpus.candidates import CandidateList
from ricci_gpu.corpus.records import Query
from ricci_gpu.corpus.store import CorpusStore, TextEncoder
from ricci_gpu.errors import InputError, QueryError, RicciError
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.plan import index_sha256, passage_tokens
from ricci_gpu.jobs.pools import given_pools, store_of_pools
from ricci_gpu.jobs.prefetch import one_ahead
from ricci_gpu.jobs.rows import BYTES_PER_TOKEN, Row
from ricci_gpu.models.encoder import Encoded, Encoder
from ricci_gpu.models.folder import Prompts
from ricci_gpu.output import Ranking
from ricci_gpu.pipeline import Pools
from ricci_gpu.reranker import Reranker

BAD_DATA = (InputError, QueryError)  # raised for what a row holds; all else is not its fault


@dataclass(frozen=True)
class Answer:
    """The ranking of a row, or its error."""

    row: Row
    ranking: Ranking | None
    error: str | None


@dataclass(frozen=True)
class Item:
    """What is ranked once.

    Args:
        rows: those that it answers.
        candidates: size of the pool.
        tokens: of all its passages, estimated.
        query_length: in characters.
    """

    rows: list[Row]
    record: Query | CandidateList
    candidates: int
    tokens: int
    query_length: int


class UnitError(RicciError):
    """A whole unit cannot be ranked."""


class UnitRanker:
    """Ranks units of a job on one device. Loads model and index once.

    Attributes:
        candidates, padded: ranked so far, and places that they took in padded batches.

    Raises:
        InputError: the index or the model is not the one that was planned.
    """

    def __init__(self, job: Job, device: str) -> None:
        torch.set_num_threads(job.threads)
        config = job.settings()
        runtime = replace(config.runtime, device=device, batch_size=job.batch_rows)
        config = replace(config, runtime=runtime)
        self.candidates = self.padded = 0
        self._job = job
        self._texts: RepeatedTexts | None = None
        self._store: CorpusStore | None = None
        self._row_of: dict[str, int] = {}
        self._passage_tokens = 1.0
        reranker = Reranker(config)
        if job.model is not None:
            _require_models(reranker, job.model)
            self._texts = RepeatedTexts(reranker.encoder, job.batch_tokens)
            reranker = Reranker(config, encoder=cast(Encoder, self._texts))
        self._reranker = reranker
        self._reads_tokens = "tokens" in reranker.pipeline.needs
        if job.index is not None:
            self._open_index(job.index)
        on_gpu = reranker.device.type == "cuda"
        self._stream = torch.cuda.Stream(reranker.device) if on_gpu else None

    @property
    def seconds(self) -> dict[str, float]:
        """Time per stage so far."""
        return self._reranker.pipeline.seconds

    def rank_unit(self, rows: Sequence[Row]) -> list[Answer]:
        """Answers of all rows of a unit.

        Raises:
            UnitError: every row that could be read fails, so the rows are hardly at fault.
        """
        answers = list(self.answers(rows))
        refused = [each.error for each in answers if each.row.error is None and each.error]
        if len(refused) > 1 and not any(each.ranking for each in answers):
            raise UnitError(
                f"all {len(refused)} rows of the unit fail, the first with: {refused[0]} Check the "
                "settings."
            )
        return answers

    def answers(self, rows: Sequence[Row]) -> Iterator[Answer]:
        """Answers of all rows of a unit, not in their order."""
        yield from (Answer(row, None, row.error) for row in rows if row.error is not None)
        batches = self.batches(rows)
        if self._texts is not None:
            self._texts.expect(_texts_of(batch) for batch in batches)
        # On a processor both steps would want the same cores; on a GPU, the next batch is encoded,
        # gathered and sent while this one is ranked.
        prepared: Generator[Pools | RicciError, None, None]
        prepared = (self._pools_or_error(batch) for batch in batches)
        if self._stream is not None:
            prepared = one_ahead(prepared)
        with closing(prepared):
            for batch, made in zip(batches, prepared, strict=True):
                for item, (ranking, error) in zip(batch, self._ranked(batch, made), strict=True):
                    yield from (Answer(row, ranking, error) for row in item.rows)

    def batches(self, rows: Sequence[Row]) -> list[list[Item]]:
        """The rows without errors, in the batches they are ranked in."""
        items = self._items([row for row in rows if row.error is None])
        items.sort(key=lambda item: (bucket_size(item.candidates), item.tokens, item.query_length))
        batches: list[list[Item]] = []
        tokens = 0
        for item in items:
            full = batches and len(batches[-1]) == self._job.batch_rows
            if not batches or full or tokens + item.tokens > self._job.batch_tokens:
                batches.append([])
                tokens = 0
            batches[-1].append(item)
            tokens += item.tokens
        return batches

    def _items(self, rows: Sequence[Row]) -> list[Item]:
        if self._job.kind == "candidates":
            lists = (cast(CandidateList, row.record) for row in rows)
            return [
                Item([row], each, len(each.passages), self._tokens(each), len(each.query.text))
                for row, each in zip(rows, lists, strict=True)
            ]
        store = cast(CorpusStore, self._store)
        pool = min(self._job.settings().retrieve.k, len(store.passages))
        copies: dict[str, list[Row]] = {}
        for row in rows:
            copies.setdefault(cast(Query, row.record).text, []).append(row)
        tokens = round(pool * self._passage_tokens)
        return [
            Item(same, cast(Query, same[0].record), pool, tokens, len(text))
            for text, same in copies.items()
        ]

    def _tokens(self, each: CandidateList) -> int:
        if each.tokens is not None and self._reads_tokens:
            return sum(map(len, each.tokens))
        if self._job.model is None or self._store is not None:
            return round(len(each.passages) * self._passage_tokens)
        return sum(len(passage.full_text) // BYTES_PER_TOKEN + 1 for passage in each.passages)

    def _pools_or_error(self, batch: Sequence[Item]) -> Pools | RicciError:
        """The pools of a batch, on the device, or what its rows do wrong."""
        try:
            if self._stream is None:
                return self._pools(batch)
            with torch.cuda.stream(self._stream):
                pools = self._pools(batch)
            self._stream.synchronize()
        except BAD_DATA as error:
            return error
        return pools

    def _pools(self, batch: Sequence[Item]) -> Pools:
        if self._job.kind == "queries":
            queries = [cast(Query, item.record) for item in batch]
            return self._reranker.retrieve(cast(CorpusStore, self._store), queries)
        lists = [cast(CandidateList, item.record) for item in batch]
        if self._store is not None:
            store = store_of_pools(self._store, lists, self._row_of)
            return self._reranker.retrieve(store, [each.query for each in lists])
        if self._job.model is None:
            return given_pools(lists, self._reranker.device, self._reads_tokens)
        return self._reranker.candidate_pools(lists)

    def _ranked(
        self, batch: Sequence[Item], pools: Pools | RicciError
    ) -> list[tuple[Ranking | None, str | None]]:
        """Ranking or error of each item. A batch that bad data stops is done one by one."""
        try:
            if isinstance(pools, RicciError):
                raise pools
            rankings = self._reranker.pipeline.rank(pools)
        except BAD_DATA as error:
            if len(batch) == 1:
                return [(None, str(error))]
            alone = ([item] for item in batch)
            return [each for one in alone for each in self._ranked(one, self._pools_or_error(one))]
        self.candidates += sum(item.candidates for item in batch)
        self.padded += sum(bucket_size(item.candidates) - 1 for item in batch)
        return [(ranking, None) for ranking in rankings]

    def _open_index(self, index: dict[str, str]) -> None:
        if index_sha256(index["path"]) != index["meta_sha256"]:
            raise InputError(
                f"{index['path']}: the index was built again after the job was planned. "
                "Restore it, or plan another job into a new folder."
            )
        self._store = CorpusStore.open(index["path"])
        if self._reranker.device.type == "cuda":
            self._store.search_on_gpus()
        import faiss  # the store has loaded it; it counts threads of its own

        faiss.omp_set_num_threads(self._job.threads)
        self._store.require_encoder(self._reranker.encoder)
        self._passage_tokens = passage_tokens(self._store.meta, self._reads_tokens)
        if self._job.kind == "candidates":
            self._row_of = {each.id: row for row, each in enumerate(self._store.passages)}


def _require_models(reranker: Reranker, planned: dict[str, str]) -> None:
    for part, fingerprint in reranker.fingerprints().items():
        if planned.get(part) != fingerprint:
            raise InputError(
                f"the {part.replace('_', '-')} model is not the one of the plan: its files "
                "differ. Restore it, or plan another job."
            )


def _texts_of(batch: Sequence[Item]) -> set[str]:
    """All texts of a batch; each is encoded once in it."""
    texts = set()
    for item in batch:
        if isinstance(item.record, Query):
            texts.add(item.record.text)
        else:
            texts.add(item.record.query.text)
            if item.record.has_text:
                texts.update(passage.full_text for passage in item.record.passages)
    return texts


class RepeatedTexts:
    """An encoder that keeps the vectors of texts until their last batch in a unit.

    Args:
        most_tokens: token vectors kept at a time; a text beyond them is encoded again.
    """

    def __init__(self, encoder: TextEncoder, most_tokens: int) -> None:
        self._encoder, self._most_tokens = encoder, most_tokens
        self._uses: Counter[str] = Counter()
        self._kept: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._tokens = 0
        self.name, self.source = encoder.name, encoder.source

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    @property
    def prompts(self) -> Prompts:
        return getattr(self._encoder, "prompts", Prompts())

    def expect(self, batches: Iterable[set[str]]) -> None:
        """Say which texts the batches of a unit will ask for, and forget the unit before."""
        self._uses = Counter(text for batch in batches for text in batch)
        self._kept, self._tokens = {}, 0

    def encode(
        self, texts: Sequence[str], tokens: bool = False, *, log_truncated: bool = False
    ) -> Encoded:
        """As `Encoder.encode`; a text that comes again in the unit is kept for it."""
        distinct = list(dict.fromkeys(texts))
        new = [text for text in distinct if text not in self._kept]
        encoded: Encoded = self._encoder.encode(new, tokens=tokens, log_truncated=log_truncated)
        self._uses.subtract(distinct)
        again = [text for text in new if self._uses[text] > 0]
        if len(new) == len(texts) and not again:
            return encoded
        place = {text: at for at, text in enumerate(new)}
        words: Sequence[torch.Tensor] = ()
        if tokens:
            packed, offsets = encoded.packed_tokens()
            words = packed.split(offsets.diff().tolist())
        found = [
            self._kept[text]
            if text in self._kept
            else (encoded.vectors[place[text]], words[place[text]] if tokens else None)
            for text in texts
        ]
        self._keep(again, encoded.vectors, words, place)
        for text in distinct:
            if self._uses[text] <= 0 and text in self._kept:
                _, rows = self._kept.pop(text)
                self._tokens -= 0 if rows is None else len(rows)
        parts = [part for _, part in found if part is not None]
        counts = torch.tensor([0, *map(len, parts)], device=encoded.vectors.device)
        return Encoded(
            vectors=torch.stack([vector for vector, _ in found]),
            token_vectors=torch.cat(parts) if tokens else None,
            token_offsets=counts.cumsum(0) if tokens else None,
            truncated=encoded.truncated,
        )

    def _keep(
        self,
        texts: Sequence[str],
        vectors: torch.Tensor,
        words: Sequence[torch.Tensor],
        place: dict[str, int],
    ) -> None:
        for text in texts:
            mine = words[place[text]] if words else None
            size = 0 if mine is None else len(mine)
            if self._tokens + size <= self._most_tokens:
                # Copies: a view would keep all the texts that it was encoded with.
                kept = None if mine is None else mine.clone()
                self._kept[text] = (vectors[place[text]].clone(), kept)
                self._tokens += size
