"""Ranks tasks of many users together: one model, any number of settings.

The texts of all tasks are encoded in one call, whatever their settings; then each configuration
ranks its own. A task that cannot be ranked is found by halving the batch and fails alone.
"""

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from ricci_gpu.batch import TokenPool
from ricci_gpu.config import Config
from ricci_gpu.errors import InputError, QueryError, SettingError
from ricci_gpu.models.encoder import Encoded
from ricci_gpu.output import Ranking
from ricci_gpu.pipeline import PairScorer, Pipeline, Pools, pack_documents
from ricci_gpu.reranker import Reranker, cosine
from ricci_gpu.scorers import load_scorer
from ricci_gpu.serving.tasks import Answer, Failure, Outcome, Task, Vectors
from ricci_gpu.shapes import Float, Int, Tensor
from ricci_gpu.stages import Stage

if TYPE_CHECKING:
    from ricci_gpu.models.encoder import Encoder

logger = logging.getLogger(__name__)

PIPELINES = 128  # configurations that are kept; requests may bring settings of their own
OF_THE_INPUT = (InputError, QueryError, SettingError)


class Engine:
    """Ranks batches of tasks on one device. Not for several threads at once.

    Args:
        config: names the models and the device; tasks bring the rest.
        encoder: a loaded encoder; by default the one of the settings, loaded on first use.
    """

    def __init__(self, config: Config, encoder: "Encoder | None" = None) -> None:
        self._models = Reranker(config, encoder=encoder)
        self._pipelines: OrderedDict[str, Pipeline] = OrderedDict()
        self._scorers: dict[Stage, PairScorer] = {}

    @property
    def device(self) -> torch.device:
        return self._models.device

    def warm_up(self, configs: Mapping[str, Config]) -> None:
        """Load all models and rank with each configuration, by key: compiles what compiles.

        Raises:
            RicciError: a model or a configuration that cannot work.
        """
        documents = ("warm up", "a few words on another subject", "", "warm words")
        for key, config in configs.items():
            for query in ("warm up", ""):
                self._rank_texts([Task(config, key, query, documents)])

    def rank(self, tasks: Sequence[Task]) -> list[Outcome]:
        """One outcome per task, in order. Never raises for what a task holds."""
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for place, task in enumerate(tasks):
            given = task.vectors
            groups[None if given is None else (given.signature, task.key)].append(place)
        outcomes: dict[int, Outcome] = {}
        for places in groups.values():
            made = self._isolated([tasks[place] for place in places])
            outcomes.update(zip(places, made, strict=True))
        return [outcomes[place] for place in range(len(tasks))]

    def _isolated(self, tasks: list[Task]) -> list[Outcome]:
        """Halves are tried apart until what fails is alone."""
        try:
            rank = self._rank_texts if tasks[0].vectors is None else self._rank_vectors
            return list(rank(tasks))
        except OF_THE_INPUT as error:
            failure = Failure(str(error), "input")
        except Exception as error:
            if len(tasks) == 1:
                logger.exception("a task of %d documents failed", tasks[0].pairs)
            if isinstance(error, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()
            failure = Failure("the server failed to rank this request", "server")
        if len(tasks) == 1:
            return [failure]
        half = len(tasks) // 2
        return [*self._isolated(tasks[:half]), *self._isolated(tasks[half:])]

    def _rank_texts(self, tasks: Sequence[Task]) -> list[Answer]:
        row_of: dict[str, int] = {}
        documents = [
            [row_of.setdefault(text, len(row_of)) for text in task.documents] for task in tasks
        ]
        models = self._models
        queries = [task.query for task in tasks]
        query = models.query_encoder.encode(queries, tokens=True, log_truncated=False)
        passage = models.passage_encoder.encode(list(row_of), tokens=True, log_truncated=False)
        query_tokens, query_offsets = query.packed_tokens()
        document_tokens, document_offsets = passage.packed_tokens()
        query_lengths = query_offsets.diff().tolist()
        lengths = document_offsets.diff().tolist()
        query_cut, cut = self._cut(query), self._cut(passage)
        limit = models.encoder.max_tokens if query_cut or cut else None

        answers: dict[int, Answer] = {}
        for places in _places_by_config(tasks):
            spans = [slice(*query_offsets[place : place + 2].tolist()) for place in places]
            pools = Pools(
                query_ids=[str(place) for place in places],
                queries=[queries[place] for place in places],
                candidate_ids=[_positions(len(documents[place])) for place in places],
                prior=[
                    cosine(query.vectors[place], passage.vectors[documents[place]]).cpu()
                    for place in places
                ],
                query_emb=query.vectors[places],
                candidate_emb=[passage.vectors[documents[place]] for place in places],
                tokens=TokenPool(
                    query_tokens=torch.cat([query_tokens[span] for span in spans]),
                    query_offsets=_offsets([query_lengths[place] for place in places], self.device),
                    document_tokens=document_tokens,
                    document_offsets=document_offsets,
                    document_of=pack_documents([documents[p] for p in places]).to(self.device),
                ),
                texts=[list(tasks[place].documents) for place in places],
            )
            for place, ranking in zip(places, self._rank(tasks[places[0]], pools), strict=True):
                rows = documents[place]
                answers[place] = Answer(
                    ranking,
                    query_tokens=query_lengths[place],
                    tokens=query_lengths[place] + sum(lengths[row] for row in rows),
                    cut=tuple(at for at, row in enumerate(rows) if row in cut),
                    query_cut=place in query_cut,
                    cut_at=limit,
                )
        return [answers[place] for place in range(len(tasks))]

    def _rank_vectors(self, tasks: Sequence[Task]) -> list[Answer]:
        """Tasks of one configuration whose vectors have equal widths."""
        given = [task.vectors for task in tasks if task.vectors is not None]
        pools = _pools_of_vectors(given, self.device)
        rankings = self._rank(tasks[0], pools)
        return [
            Answer(ranking, _length(each.query_tokens), _length(each.tokens))
            for ranking, each in zip(rankings, given, strict=True)
        ]

    def _rank(self, task: Task, pools: Pools) -> list[Ranking]:
        """The pools, by the configuration of the task."""
        key = task.key
        if key not in self._pipelines:
            self._pipelines[key] = Pipeline(task.config, self.device, self._scorer(task.config))
            if len(self._pipelines) > PIPELINES:
                self._pipelines.popitem(last=False)
        self._pipelines.move_to_end(key)
        return self._pipelines[key].rank(pools)

    def _scorer(self, config: Config) -> PairScorer | None:
        """The model that scores pairs, loaded once, where the configuration needs one."""
        stage = config.rerank
        if "texts" not in stage.needs():
            return None
        if stage not in self._scorers:
            self._scorers[stage] = load_scorer(config, self.device).score
        return self._scorers[stage]

    def _cut(self, encoded: Encoded) -> set[int]:
        """Texts with as many tokens as the model reads, when some were cut."""
        late = self._models.late_interaction
        if late is not None and late.base is None:  # a network of its own, with its own limits
            return set()
        if not encoded.truncated:
            return set()
        _, offsets = encoded.packed_tokens()
        lengths = offsets.diff()
        return set(torch.nonzero(lengths == lengths.max())[:, 0].tolist())


def _pools_of_vectors(given: Sequence[Vectors], device: torch.device) -> Pools:
    query_emb: Tensor | None = None
    candidate_emb: list[Tensor] | None = None
    prior = None
    if given[0].embeddings is not None:
        query_emb = (
            torch.stack([_tensor(each.query_embedding) for each in given]).to(device).float()
        )
        candidate_emb = [_tensor(each.embeddings).to(device).float() for each in given]
        prior = [cosine(q, c).cpu() for q, c in zip(query_emb, candidate_emb, strict=True)]
    tokens = None
    if given[0].tokens is not None:
        first = np.cumsum([0, *(each.documents for each in given)]).tolist()
        counts = [int(n) for each in given for n in _given(each.token_counts)]
        tokens = TokenPool(
            query_tokens=_packed([_tensor(each.query_tokens) for each in given], device).float(),
            query_offsets=_offsets([_length(each.query_tokens) for each in given], device),
            document_tokens=_packed([_tensor(each.tokens) for each in given], device),
            document_offsets=_offsets(counts, device),
            document_of=pack_documents([list(range(a, b)) for a, b in pairwise(first)]).to(device),
        )
    return Pools(
        query_ids=[str(place) for place in range(len(given))],
        queries=[""] * len(given),
        candidate_ids=[_positions(each.documents) for each in given],
        prior=prior,
        query_emb=query_emb,
        candidate_emb=candidate_emb,
        tokens=tokens,
    )


def _places_by_config(tasks: Sequence[Task]) -> list[list[int]]:
    places: dict[str, list[int]] = defaultdict(list)
    for place, task in enumerate(tasks):
        places[task.key].append(place)
    return list(places.values())


def _positions(count: int) -> list[str]:
    return [str(place) for place in range(count)]


def _offsets(lengths: Sequence[int], device: torch.device) -> Int[Tensor, "_"]:
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0).to(device)


def _packed(parts: Sequence[Float[Tensor, "_ D"]], device: torch.device) -> Float[Tensor, "_ D"]:
    return torch.cat(list(parts)).to(device)


def _given(array: np.ndarray | None) -> np.ndarray:
    assert array is not None  # `Vectors` brings both halves or neither
    return array


def _tensor(array: np.ndarray | None) -> Tensor:
    """In its own precision: torch widens many times faster than numpy, and the kernels do it."""
    return torch.from_numpy(_given(array))


def _length(array: np.ndarray | None) -> int:
    return 0 if array is None else len(array)
