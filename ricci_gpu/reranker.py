"""The library in one class: texts, ready candidate lists or a corpus in, rankings out."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ricci_gpu.batch import TokenPool
from ricci_gpu.config import Config
from ricci_gpu.errors import InputError
from ricci_gpu.output import Ranking
from ricci_gpu.pipeline import Pipeline, Pools, pack_documents
from ricci_gpu.scorers import Scorer, load_scorer
from ricci_gpu.shapes import Float, Tensor

if TYPE_CHECKING:
    from ricci_gpu.corpus.candidates import CandidateList
    from ricci_gpu.corpus.records import Query
    from ricci_gpu.corpus.store import CorpusStore
    from ricci_gpu.models.encoder import Encoded, Encoder
    from ricci_gpu.models.late_interaction import LateInteraction
    from ricci_gpu.models.sides import SideEncoder

Progress = Callable[[int, int], None]


class Reranker:
    """Rerank queries against their candidates.

    >>> from ricci_gpu import Reranker
    >>> reranker = Reranker("default")                          # doctest: +SKIP
    >>> ranking = reranker.rank("who wrote Emma?", documents)   # doctest: +SKIP
    >>> [(hit.id, hit.score) for hit in ranking.hits]           # doctest: +SKIP

    The answer for a query never depends on the other queries of a call.

    Args:
        config: a preset name, a YAML file, or a `Config`.
        overrides: ``section.setting=value`` strings, applied over a preset or file.
        encoder: a loaded encoder; by default the one that ``config.model`` names, loaded on
            first use.
    """

    def __init__(
        self,
        config: Config | str | Path = "default",
        overrides: Sequence[str] = (),
        encoder: "Encoder | None" = None,
    ) -> None:
        self.config = config if isinstance(config, Config) else Config.load(config, overrides)
        self.device = resolve_device(self.config.runtime.device)
        self.pipeline = Pipeline(self.config, self.device, self.score_pairs)
        self._encoder = encoder
        self._late_interaction: LateInteraction | None = None
        self._scorer: Scorer | None = None

    @property
    def loaded_encoder(self) -> "Encoder | None":
        """The encoder if something has needed it yet."""
        return self._encoder

    @property
    def encoder(self) -> "Encoder":
        """The encoder, loaded on first use."""
        if self._encoder is None:
            from ricci_gpu.models.encoder import Encoder

            settings = self.config.model
            self._encoder = Encoder.load(
                settings.name, self.device, getattr(torch, settings.dtype), settings.cache
            )
        return self._encoder

    @property
    def late_interaction(self) -> "LateInteraction | None":
        """The model of the token vectors, loaded on first use; None for those of the encoder."""
        settings = self.config.model
        if self._late_interaction is None and settings.late_interaction is not None:
            from ricci_gpu.models.late_interaction import LateInteraction

            self._late_interaction = LateInteraction.load(
                settings.late_interaction,
                self.device,
                getattr(torch, settings.dtype),
                settings.cache,
                self.encoder,
            )
        return self._late_interaction

    @property
    def query_encoder(self) -> "SideEncoder":
        """Encodes queries, with the prompt and the token vectors that the settings ask for."""
        from ricci_gpu.models.sides import SideEncoder

        return SideEncoder("query", self.encoder, self.late_interaction)

    @property
    def passage_encoder(self) -> "SideEncoder":
        """Encodes passages; what `CorpusStore.build` takes."""
        from ricci_gpu.models.sides import SideEncoder

        return SideEncoder("passage", self.encoder, self.late_interaction)

    def score_pairs(self, pairs: Sequence[tuple[str, str]]) -> Float[Tensor, "P"]:
        """Scores of (query, candidate) pairs by the model of ``config.rerank``, loaded on first
        use; NaN where it gives none.

        Raises:
            SettingError: the reranker of the settings reads no texts.
        """
        return self._loaded_scorer.score(pairs)

    @property
    def _loaded_scorer(self) -> Scorer:
        if self._scorer is None:
            self._scorer = load_scorer(self.config, self.device)
        return self._scorer

    def fingerprints(self) -> dict[str, str]:
        """Of the models that the rankings depend on, by their part: equal ones rank alike."""
        found = {"encoder": self.encoder.fingerprint}
        if self.late_interaction is not None:
            found["late_interaction"] = self.late_interaction.fingerprint
        if "texts" in self.pipeline.needs:
            found["reranker"] = self._loaded_scorer.fingerprint
        return found

    def rank(
        self, query: str, documents: Sequence[str], ids: Sequence[str] | None = None
    ) -> Ranking:
        """Rank the documents of one query; ids are their positions unless given."""
        return self.rank_batch([query], [documents], None if ids is None else [ids])[0]

    def rank_batch(
        self,
        queries: Sequence[str],
        documents: Sequence[Sequence[str]],
        ids: Sequence[Sequence[str]] | None = None,
        progress: Progress | None = None,
    ) -> list[Ranking]:
        """Rank the documents of each query, in the order of the queries.

        Args:
            documents: one list per query; lists may differ in length and may be empty.
            ids: of the documents; their positions by default.
            progress: called with the queries done and their total.

        Raises:
            InputError: lists that do not fit together.
        """
        from ricci_gpu.corpus.candidates import CandidateList
        from ricci_gpu.corpus.records import Passage, Query

        if isinstance(queries, str):
            raise InputError(
                "`queries` must be a list of texts; got one string. Use rank(query, documents) for "
                "one query."
            )
        if isinstance(documents, str) or any(isinstance(pool, str) for pool in documents):
            raise InputError(
                "`documents` must hold one list of texts per query; got a string in place of a "
                "list. Use rank(query, documents) for one query."
            )
        if len(documents) != len(queries):
            raise InputError(
                f"`documents` must hold one list per query; got {len(documents)} lists for "
                f"{len(queries)} queries."
            )
        names = ids if ids is not None else [[str(i) for i in range(len(d))] for d in documents]
        if [len(pool) for pool in names] != [len(pool) for pool in documents]:
            raise InputError("`ids` must hold one id per document of each query.")
        lists = [
            CandidateList(
                query=Query(str(row), query),
                passages=[
                    Passage(name, "", text) for name, text in zip(pool_names, pool, strict=True)
                ],
                scores=None,
                query_embedding=None,
                embeddings=None,
            )
            for row, (query, pool, pool_names) in enumerate(
                zip(queries, documents, names, strict=True)
            )
        ]
        return list(self.rank_candidates(lists, progress))

    def rank_candidates(
        self, lists: "Sequence[CandidateList]", progress: Progress | None = None
    ) -> Iterator[Ranking]:
        """Rank ready candidate lists: texts, or embeddings, with or without scores.

        Given embeddings are used as they are. Without given scores, the prior of a candidate is
        its cosine to the query.
        """
        given = sum(each.embeddings is not None for each in lists)
        if 0 < given < len(lists):
            raise InputError(
                f"either every query brings embeddings or none does; got {given} of {len(lists)} "
                "with them. Split the input in two."
            )
        step, done = self.config.runtime.batch_size, 0
        for first in range(0, len(lists), step):
            window = lists[first : first + step]
            yield from self.pipeline.rank(self.candidate_pools(window))
            done += len(window)
            if progress is not None:
                progress(done, len(lists))

    def rank_embeddings(
        self,
        query_emb: Float[Tensor, "B D"],
        candidate_emb: Sequence[Float[Tensor, "_ D"]],
        ids: Sequence[Sequence[str]] | None = None,
    ) -> list[Ranking]:
        """Rank pools of ready sentence embeddings; no text and no model is involved.

        Raises:
            InputError: shapes that do not fit together, or a stage that reads texts.
        """
        if len(candidate_emb) != len(query_emb):
            raise InputError(
                f"`candidate_emb` must hold one tensor per query; got {len(candidate_emb)} for "
                f"{len(query_emb)} queries."
            )
        for row, vectors in enumerate(candidate_emb):
            if vectors.ndim != 2 or vectors.shape[1] != query_emb.shape[1]:
                raise InputError(
                    f"query {row}: candidate vectors must have shape (candidates, "
                    f"{query_emb.shape[1]}), the width of the query; got {tuple(vectors.shape)}."
                )
        names = ids if ids is not None else [[str(i) for i in range(len(c))] for c in candidate_emb]
        if [len(pool) for pool in names] != [len(pool) for pool in candidate_emb]:
            raise InputError("`ids` must hold one id per candidate of each query.")
        pools = Pools(
            query_ids=[str(row) for row in range(len(query_emb))],
            queries=[""] * len(query_emb),
            candidate_ids=names,
            prior=[cosine(q, c) for q, c in zip(query_emb, candidate_emb, strict=True)],
            query_emb=query_emb,
            candidate_emb=candidate_emb,
        )
        return self.pipeline.rank(pools)

    def search(
        self,
        store: "CorpusStore",
        queries: "Sequence[Query]",
        progress: Progress | None = None,
    ) -> Iterator[Ranking]:
        """Retrieve from a corpus, then filter and rerank; one ranking per query, in order."""
        store.require_encoder(self.encoder)
        step, done = self.config.runtime.batch_size, 0
        for first in range(0, len(queries), step):
            window = queries[first : first + step]
            yield from self.pipeline.rank(self.retrieve(store, window))
            done += len(window)
            if progress is not None:
                progress(done, len(queries))

    def retrieve(self, store: "CorpusStore", queries: "Sequence[Query]") -> Pools:
        """The pools of some queries: nearest passages with what the stages need of them."""
        needs_tokens = "tokens" in self.pipeline.needs
        if needs_tokens:
            store.require_token_model(self.query_encoder.token_model)
        with self.pipeline.timed("encode"):
            texts = [query.text for query in queries]
            encoded = self.query_encoder.encode(texts, tokens=needs_tokens)
        with self.pipeline.timed("retrieve"):
            scores, rows = store.search(encoded.vectors, self.config.retrieve.k)
            # An approximate index may find fewer than k and fill up with -1.
            pools = [row[row >= 0] for row in rows]
            tokens = None
            if needs_tokens:
                unique, place = torch.cat(pools).unique(return_inverse=True)
                document_tokens, document_offsets = store.token_slices(unique)
                query_tokens, query_offsets = encoded.packed_tokens()
                local = place.split([len(pool) for pool in pools])
                tokens = TokenPool(
                    query_tokens=query_tokens,
                    query_offsets=query_offsets,
                    document_tokens=document_tokens.to(self.device),
                    document_offsets=document_offsets.to(self.device),
                    document_of=pack_documents([each.tolist() for each in local]).to(self.device),
                )
            return Pools(
                query_ids=[query.id for query in queries],
                queries=[query.text for query in queries],
                candidate_ids=[[store.passages[row].id for row in pool.tolist()] for pool in pools],
                prior=[score[: len(pool)] for score, pool in zip(scores, pools, strict=True)],
                query_emb=encoded.vectors,
                candidate_emb=[store.vectors[pool].to(self.device) for pool in pools],
                tokens=tokens,
                texts=[[store.passages[row].full_text for row in pool.tolist()] for pool in pools],
            )

    def candidate_pools(self, lists: "Sequence[CandidateList]") -> Pools:
        """The pools of ready candidate lists, of which all or none bring embeddings.

        What is missing is encoded; a passage that comes several times is encoded once.
        """
        given = lists[0].embeddings is not None  # `rank_candidates` has checked that all agree
        has_texts = all(each.has_text for each in lists)
        needs_tokens = "tokens" in self.pipeline.needs
        needs_vectors = "embeddings" in self.pipeline.needs or any(
            each.scores is None for each in lists
        )
        query_emb: Tensor | None = None
        candidate_emb: list[Tensor] | None = None
        tokens = None
        if given:
            query_emb = torch.stack([torch.as_tensor(each.query_embedding) for each in lists])
            query_emb = query_emb.to(self.device)
            candidate_emb = [torch.as_tensor(each.embeddings).to(self.device) for each in lists]
        if (needs_vectors and not given) or (needs_tokens and has_texts):
            query, passage, documents = self._encode_lists(lists, needs_tokens)
            if not given:
                query_emb = query.vectors
                candidate_emb = [passage.vectors[rows] for rows in documents]
            if needs_tokens:
                query_tokens, query_offsets = query.packed_tokens()
                document_tokens, document_offsets = passage.packed_tokens()
                tokens = TokenPool(
                    query_tokens=query_tokens,
                    query_offsets=query_offsets,
                    document_tokens=document_tokens,
                    document_offsets=document_offsets,
                    document_of=pack_documents(documents).to(self.device),
                )
        return Pools(
            query_ids=[each.query.id for each in lists],
            queries=[each.query.text for each in lists],
            candidate_ids=[[passage.id for passage in each.passages] for each in lists],
            prior=_priors(lists, query_emb, candidate_emb),
            query_emb=query_emb,
            candidate_emb=candidate_emb,
            tokens=tokens,
            texts=[[p.full_text for p in each.passages] for each in lists] if has_texts else None,
        )

    def _encode_lists(
        self, lists: "Sequence[CandidateList]", tokens: bool
    ) -> "tuple[Encoded, Encoded, list[list[int]]]":
        """Queries, distinct passages, and the rows of the latter that each list holds."""
        row_of: dict[str, int] = {}
        documents = [
            [row_of.setdefault(passage.full_text, len(row_of)) for passage in each.passages]
            for each in lists
        ]
        with self.pipeline.timed("encode"):
            query = self.query_encoder.encode([each.query.text for each in lists], tokens=tokens)
            passage = self.passage_encoder.encode(list(row_of), tokens=tokens)
        return query, passage, documents


def _priors(
    lists: "Sequence[CandidateList]",
    query_emb: Tensor | None,
    candidate_emb: Sequence[Tensor] | None,
) -> list[Tensor]:
    """The scores given, else cosines."""
    priors = []
    for row, each in enumerate(lists):
        if each.scores is not None:
            priors.append(torch.as_tensor(each.scores, dtype=torch.float32))
        else:
            assert query_emb is not None  # encoded, where scores are missing
            assert candidate_emb is not None
            priors.append(cosine(query_emb[row], candidate_emb[row]).cpu())
    return priors


def cosine(query: Float[Tensor, "D"], candidates: Float[Tensor, "n D"]) -> Float[Tensor, "n"]:
    """Cosine of one query with its candidates; 0 for a zero vector."""
    # In double precision, where half-precision vectors neither underflow nor lose their order.
    return torch.nn.functional.cosine_similarity(
        query[None, :].double(), candidates.double(), dim=1, eps=1e-30
    )


def resolve_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one, else the CPU; an explicit device must exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"`runtime.device` must name a torch device; got `{name}`.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"`runtime.device` is `{name}`, and torch sees no CUDA device. Use `cpu` or `auto`."
        )
    return device
