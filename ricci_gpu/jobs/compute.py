"""The rows of a unit, ranked.

What can change a bit of a result is fixed by the plan: which rows come together, in what batches,
with how many threads. A query that comes several times in a unit is computed once where an index
answers it, and encoded once where each copy brings its own candidates.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from ricci_gpu.corpus.candidates import CandidateList
from ricci_gpu.corpus.records import Query
from ricci_gpu.corpus.store import CorpusStore, TextEncoder
from ricci_gpu.errors import InputError, QueryError, RicciError
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.plan import index_sha256
from ricci_gpu.jobs.rows import Row
from ricci_gpu.models.encoder import Encoded, Encoder
from ricci_gpu.output import Ranking
from ricci_gpu.reranker import Reranker

BAD_DATA = (InputError, QueryError)  # raised for what a row holds; all else is not its fault


@dataclass(frozen=True)
class Answer:
    """The ranking of a row, or its error."""

    row: Row
    ranking: Ranking | None
    error: str | None


class UnitError(RicciError):
    """A whole unit cannot be ranked."""


class UnitRanker:
    """Ranks units of a job on one device. Loads model and index once.

    Raises:
        InputError: the index or the model is not the one that was planned.
    """

    def __init__(self, job: Job, device: str) -> None:
        torch.set_num_threads(job.threads)
        config = job.settings()
        runtime = replace(config.runtime, device=device, batch_size=job.batch_rows)
        config = replace(config, runtime=runtime)
        self._job = job
        self._texts: RepeatedTexts | None = None
        self._store: CorpusStore | None = None
        reranker = Reranker(config)
        if job.model is not None:
            if reranker.encoder.fingerprint != job.model["fingerprint"]:
                raise InputError(
                    f"the model `{job.model['name']}` is not the one of the plan: its files "
                    f"differ (now {reranker.encoder.source}). Restore it, or plan another job."
                )
            self._texts = RepeatedTexts(reranker.encoder)
            reranker = Reranker(config, encoder=cast(Encoder, self._texts))
        self._reranker = reranker
        if job.index is not None:
            if index_sha256(job.index["path"]) != job.index["meta_sha256"]:
                raise InputError(
                    f"{job.index['path']}: the index was built again after the job was planned. "
                    "Restore it, or plan another job into a new folder."
                )
            self._store = CorpusStore.open(job.index["path"])
            import faiss  # the store has loaded it; it counts threads of its own

            faiss.omp_set_num_threads(job.threads)
            self._store.require_encoder(reranker.encoder)

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
        good = [row for row in rows if row.error is None]
        yield from self._search(good) if self._store is not None else self._rerank(good)

    def _search(self, rows: list[Row]) -> Iterator[Answer]:
        copies: dict[str, list[Row]] = {}
        for row in rows:
            copies.setdefault(cast(Query, row.record).text, []).append(row)

        def rank(texts: Sequence[str]) -> list[Ranking]:
            queries = [Query(str(at), text) for at, text in enumerate(texts)]
            return list(self._reranker.search(cast(CorpusStore, self._store), queries))

        for text, ranking, error in self._in_batches(list(copies), rank):
            yield from (Answer(row, ranking, error) for row in copies[text])

    def _rerank(self, rows: list[Row]) -> Iterator[Answer]:
        lists = {row.row: cast(CandidateList, row.record) for row in rows}
        if self._texts is not None:
            self._texts.expect([each.query.text for each in lists.values()])

        def rank(batch: Sequence[Row]) -> list[Ranking]:
            return list(self._reranker.rank_candidates([lists[row.row] for row in batch]))

        for row, ranking, error in self._in_batches(rows, rank):
            yield Answer(row, ranking, error)

    def _in_batches(
        self, items: Sequence[Any], rank: Callable[[Sequence[Any]], list[Ranking]]
    ) -> Iterator[tuple[Any, Ranking | None, str | None]]:
        """Each item with its ranking or error. A batch that bad data stops is done one by one."""
        for first in range(0, len(items), self._job.batch_rows):
            batch = items[first : first + self._job.batch_rows]
            try:
                done: list[tuple[Ranking | None, str | None]] = [(r, None) for r in rank(batch)]
            except BAD_DATA:
                done = [self._alone(item, rank) for item in batch]
            yield from ((item, *each) for item, each in zip(batch, done, strict=True))

    @staticmethod
    def _alone(
        item: Any, rank: Callable[[Sequence[Any]], list[Ranking]]
    ) -> tuple[Ranking | None, str | None]:
        try:
            [ranking] = rank([item])
        except BAD_DATA as error:
            return None, str(error)
        return ranking, None


class RepeatedTexts:
    """An encoder that keeps the vectors of texts that come again, for the length of a unit."""

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._repeated: set[str] = set()
        self._kept: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.name, self.source = encoder.name, encoder.source

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    def expect(self, texts: Sequence[str]) -> None:
        """Say which texts a unit will ask for, and forget those of the unit before."""
        self._repeated = {text for text, count in Counter(texts).items() if count > 1}
        self._kept = {}

    def encode(
        self, texts: Sequence[str], tokens: bool = False, *, log_truncated: bool = False
    ) -> Encoded:
        """As `Encoder.encode`; each distinct text is encoded at most once per call, and each
        repeated text of the unit at most once at all."""
        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        encoded: Encoded = self._encoder.encode(new, tokens=tokens, log_truncated=log_truncated)
        if len(new) == len(texts) and self._repeated.isdisjoint(new):
            return encoded
        vectors = dict(zip(new, encoded.vectors, strict=True))
        words: dict[str, torch.Tensor] = {}
        if tokens:
            packed, offsets = encoded.packed_tokens()
            words = dict(zip(new, packed.split(offsets.diff().tolist()), strict=True))
        for text in self._repeated.intersection(new):
            kept_words = words[text].clone() if tokens else None
            self._kept[text] = (vectors[text].clone(), kept_words)
        found = [self._kept.get(text) or (vectors[text], words.get(text)) for text in texts]
        rows = [row for _, row in found if row is not None]
        counts = torch.tensor([0, *map(len, rows)], device=encoded.vectors.device)
        return Encoded(
            vectors=torch.stack([vector for vector, _ in found]),
            token_vectors=torch.cat(rows) if tokens else None,
            token_offsets=counts.cumsum(0) if tokens else None,
            truncated=encoded.truncated,
        )
