"""What a run leaves behind so that it can be explained, and finding one query of it again.

``run.json`` beside the ranked files:

============  ===============================================================================
key           meaning
============  ===============================================================================
``config``    every setting, as `Config.to_tree` gives it
``inputs``    absolute paths of ``corpus``, ``queries``, ``index``, ``candidates``, or null
``model``     ``name``, ``source`` and ``fingerprint`` of the encoder; the last two are null
              when the run needed no encoder
``versions``  of ``ricci_gpu``, ``torch`` and ``python``
``queries``   their number
============  ===============================================================================
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch

from ricci_gpu import __version__
from ricci_gpu.config import Config
from ricci_gpu.corpus.candidates import CandidateList, read_candidates
from ricci_gpu.corpus.files import as_path, json_rows
from ricci_gpu.corpus.readers import read_corpus, read_queries
from ricci_gpu.corpus.records import Passage, Query
from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.errors import InputError, RicciError
from ricci_gpu.output import Hit, Ranking, atomic_file
from ricci_gpu.reranker import Reranker

FILE = "run.json"
FORMAT = "ricci_gpu run"
VERSION = 1
INPUTS = ("corpus", "queries", "index", "candidates")


@dataclass(frozen=True)
class RunRecord:
    """What ``run.json`` says (module docstring)."""

    folder: Path
    config: Config
    inputs: dict[str, Path | None]
    model: dict[str, str | None]
    versions: dict[str, str]
    queries: int


@dataclass(frozen=True)
class RecordedQuery:
    """One query of a run with what it was ranked from.

    Args:
        ranking: as the run wrote it.
        passages: the candidates in the order of the pool.
        candidates: the same as read from a file of candidates; None for a corpus or an index.
        store: the index that the pool came from; None for the other two.
    """

    run: RunRecord
    ranking: Ranking
    query: Query
    passages: list[Passage]
    candidates: CandidateList | None = None
    store: CorpusStore | None = None


def write_record(
    folder: str | os.PathLike[str],
    reranker: Reranker,
    inputs: Mapping[str, Path | None],
    queries: int,
) -> Path:
    """Write ``run.json``; it appears only when it is complete.

    Args:
        inputs: paths by the names in `INPUTS`, None for what was not given.
        queries: number of queries ranked.
    """
    encoder = reranker.loaded_encoder  # a run may do without one
    tree = {
        "format": FORMAT,
        "version": VERSION,
        "config": reranker.config.to_tree(),
        "inputs": {name: _absolute(inputs.get(name)) for name in INPUTS},
        "model": {
            "name": reranker.config.model.name,
            "source": None if encoder is None else encoder.source,
            "fingerprint": None if encoder is None else encoder.fingerprint,
        },
        "versions": versions(),
        "queries": queries,
    }
    path = Path(folder) / FILE
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    return path


def versions() -> dict[str, str]:
    """What a result may depend on besides settings and inputs."""
    return {
        "ricci_gpu": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def read_record(folder: str | os.PathLike[str]) -> RunRecord:
    """Read the ``run.json`` of a run.

    Raises:
        InputError: no run there, or a record that cannot be read.
        SettingError: settings that this version does not know.
    """
    root = as_path(folder)
    path = root / FILE
    if not path.is_file():
        raise InputError(
            f"{root}: the folder of a finished run holds `{FILE}`, and there is none. Give the "
            "folder that `ricci-gpu rerank --out` wrote; a run made before version 0.1 or from "
            "Python code has no record: run it again with that command."
        )
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["format"] != FORMAT or tree["version"] != VERSION:
            raise ValueError(f"format {tree['format']!r}, version {tree['version']!r}")
        return RunRecord(
            folder=root,
            config=Config.from_tree(tree["config"]),
            inputs={
                name: None if tree["inputs"][name] is None else Path(tree["inputs"][name])
                for name in INPUTS
            },
            model={name: tree["model"][name] for name in ("name", "source", "fingerprint")},
            versions=dict(tree["versions"]),
            queries=int(tree["queries"]),
        )
    except RicciError:
        raise  # a setting of another version; its own message says which
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: must be a record of version {VERSION} that `ricci-gpu rerank` wrote; it "
            f"cannot be read ({type(error).__name__}: {error}). Run it again."
        ) from error


def find_query(run: RunRecord, query_id: str) -> RecordedQuery:
    """The ranking of a query and the texts it was made from.

    Raises:
        InputError: no ranked file, an unknown id, or inputs that moved or changed since.
    """
    ranking = _read_ranking(run, query_id)
    if run.inputs["candidates"] is not None:
        return _from_candidates(run, ranking, run.inputs["candidates"])
    query = next((each for each in _queries(run) if each.id == query_id), None)
    if query is None or query.text != ranking.query:
        raise _changed(run.inputs["queries"], f"query `{query_id}` is not the one that was ranked")
    store = None
    if run.inputs["index"] is not None:
        source = _present(run.inputs["index"], "index")
        store = CorpusStore.open(source)
        known = store.passages
    else:
        source = _present(run.inputs["corpus"], "corpus")
        known = read_corpus(source)
    by_id = {passage.id: passage for passage in known}
    for name in pool_ids(ranking):
        if name not in by_id:
            raise _changed(source, f"passage `{name}` of the run is not there")
    passages = [by_id[name] for name in pool_ids(ranking)]
    return RecordedQuery(run, ranking, query, passages, store=store)


def pool_ids(ranking: Ranking) -> list[str]:
    """Ids of all candidates in the order of the pool."""
    hits = sorted([*ranking.hits, *ranking.dropped], key=lambda hit: hit.position)
    return [hit.id for hit in hits]


def _queries(run: RunRecord) -> list[Query]:
    return read_queries(_present(run.inputs["queries"], "queries"))


def _read_ranking(run: RunRecord, query_id: str) -> Ranking:
    path = run.folder / "rankings.jsonl"
    if not path.is_file():
        raise InputError(
            f"{run.folder}: a page is made from `rankings.jsonl`, and this run has none. Run it "
            "again with --format jsonl (and any others)."
        )
    ids: list[str] = []
    for place, row in json_rows(path):
        try:
            if row["query_id"] == query_id:
                rows = {name: [Hit(**hit) for hit in row[name]] for name in ("hits", "dropped")}
                return Ranking(**(row | rows))
            ids.append(row["query_id"])
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{place}: must be a ranking that `ricci-gpu rerank` wrote; got other fields "
                f"({error}). Run it again."
            ) from error
    raise InputError(f"{run.folder}: the run has no query `{query_id}`. {_hint(query_id, ids)}")


def _hint(query_id: str, ids: Sequence[str]) -> str:
    near = get_close_matches(query_id, ids, n=1, cutoff=0.6)
    if near:
        return f"Did you mean `{near[0]}`?"
    shown = ", ".join(f"`{name}`" for name in ids[:5])
    return f"It has {len(ids)}: {shown}{', ...' if len(ids) > 5 else ''}."


def _from_candidates(run: RunRecord, ranking: Ranking, path: Path) -> RecordedQuery:
    lists = read_candidates(_present(path, "candidates"))
    found = next((each for each in lists if each.query.id == ranking.query_id), None)
    if found is None or found.query.text != ranking.query:
        raise _changed(path, f"query `{ranking.query_id}` is not the one that was ranked")
    if [passage.id for passage in found.passages] != pool_ids(ranking):
        raise _changed(path, f"the candidates of query `{ranking.query_id}` are others")
    return RecordedQuery(run, ranking, found.query, found.passages, candidates=found)


def _present(path: Path | None, what: str) -> Path:
    if path is None or not path.exists():
        raise InputError(
            f"{path}: the {what} that the run was made from must still be there, and it is not. "
            "Put it back under that path, or run again from where it lies now."
        )
    return path


def _changed(path: Path | None, what: str) -> InputError:
    return InputError(
        f"{path}: must be what the run was made from, and it has changed: {what}. Run again, or "
        "put the earlier file back."
    )


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(as_path(path).resolve())
