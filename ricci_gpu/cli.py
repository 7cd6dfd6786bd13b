"""The command line. Heavy packages are imported by the command that needs them."""

import argparse
import io
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ricci_gpu import __version__
from ricci_gpu.errors import InputError, RicciError
from ricci_gpu.evaluation.commands import add_commands as eval_commands
from ricci_gpu.jobs.commands import add_commands as batch_commands
from ricci_gpu.serving.commands import add_commands as serve_commands
from ricci_gpu.training.commands import add_commands as train_commands

EPILOG = """\
examples:
  ricci-gpu rerank --corpus corpus.jsonl --queries queries.tsv --out runs/first
  ricci-gpu rerank --candidates pools.jsonl --out runs/pools --preset ricci_filtration
  ricci-gpu rerank --corpus beir/scifact --out runs/scifact --set filter.eta=0.8
  ricci-gpu index  --corpus corpus.jsonl --out index/  &&  ricci-gpu search --index index/ "a query"
  ricci-gpu explain runs/first --query q17 --out q17.html
  ricci-gpu eval   --data beir/ --out evaluation/
  ricci-gpu doctor
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 for an error in input, 2 for wrong usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # texts may hold what no terminal can show
    parser = build_parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for chatty in ("httpx", "faiss", "numba", "faiss.loader", "bm25s"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        result: int = options.run(options)
    except RicciError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was written under a final name", file=sys.stderr)
        return 130
    return result


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="ricci-gpu",
        description="Rerank a query log: filter each query's pool by geometry, rescore what stays, "
        "and say why the rest was dropped.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ricci-gpu {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    rerank = commands.add_parser("rerank", help="retrieve, filter and rerank a query log")
    source = rerank.add_argument_group("input (a corpus with queries, or ready candidates)")
    source.add_argument(
        "--corpus", type=Path, help="BEIR folder, .jsonl, .tsv or .parquet (also .gz): id, text"
    )
    source.add_argument(
        "--queries", type=Path, help="the log, in the same formats; by default the BEIR folder's"
    )
    source.add_argument("--index", type=Path, help="an index made by `ricci-gpu index`")
    source.add_argument(
        "--candidates", type=Path, help=".jsonl or .parquet, a query with its candidates per row"
    )
    rerank.add_argument("--out", type=Path, help="folder for the ranked files")
    rerank.add_argument(
        "--format",
        action="append",
        choices=["parquet", "jsonl", "trec"],
        help="repeat for several; all three by default",
    )
    _add_settings(rerank)
    rerank.set_defaults(run=_rerank)

    index = commands.add_parser("index", help="encode a corpus once and keep it")
    index.add_argument("--corpus", type=Path, required=True, help="as for `rerank`")
    index.add_argument("--out", type=Path, required=True, help="folder of the index")
    _add_settings(index)
    index.set_defaults(run=_index)

    search = commands.add_parser("search", help="ask a kept index one question")
    search.add_argument("query", help="the question")
    search.add_argument("--index", type=Path, required=True, help="folder made by `index`")
    _add_settings(search)
    search.set_defaults(run=_search)

    explain = commands.add_parser("explain", help="one query of a finished run, as a page")
    explain.add_argument("folder", type=Path, help="folder that `rerank --out` wrote")
    explain.add_argument("--query", required=True, metavar="ID", help="id of the query")
    explain.add_argument("--out", type=Path, help="the page; by default explain-ID.html in FOLDER")
    explain.set_defaults(run=_explain)

    batch_commands(commands)
    eval_commands(commands)
    train_commands(commands)
    serve_commands(commands)

    doctor = commands.add_parser("doctor", help="say what this machine can do")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings")
    group.add_argument(
        "--preset", default="default", help="a preset name, or a .yaml file (default: default)"
    )
    group.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.SETTING=VALUE",
        help="override one setting; repeat for several",
    )
    group.add_argument(
        "--print-config", action="store_true", help="print all settings and their values, and stop"
    )


def _reranker(options: argparse.Namespace) -> Any:
    """The reranker for the options, or None when only its settings were asked for."""
    from ricci_gpu.config import Config

    config = Config.load(options.preset, options.overrides)
    if options.print_config:
        print(config.to_yaml(), end="")
        return None
    from ricci_gpu.reranker import Reranker

    return Reranker(config)


def _rerank(options: argparse.Namespace) -> int:
    reranker = _reranker(options)
    if reranker is None:
        return 0
    if options.out is None:
        raise InputError("`rerank` writes files: name their folder with --out.")
    if options.out.exists() and not options.out.is_dir():
        raise InputError(f"--out must name a folder; {options.out} is a file. Choose another name.")
    given = [options.corpus, options.index, options.candidates]
    if sum(each is not None for each in given) != 1:
        raise InputError("give exactly one of --corpus, --index and --candidates.")
    if options.candidates is not None and options.queries is not None:
        raise InputError("--candidates brings its own queries: leave out --queries.")
    from ricci_gpu.explain.record import write_record
    from ricci_gpu.output import require_trec_names, write_rankings

    formats = options.format or ["parquet", "jsonl", "trec"]
    log = options.queries
    if options.candidates is not None:
        from ricci_gpu.corpus.candidates import read_candidates

        lists = read_candidates(options.candidates)
        if "trec" in formats:
            names = (passage.id for each in lists for passage in each.passages)
            require_trec_names((each.query.id for each in lists), names)
        with progress_bar("rerank") as progress:
            rankings = list(reranker.rank_candidates(lists, progress))
    else:
        from ricci_gpu.corpus.readers import read_queries

        if log is None and options.corpus is not None and options.corpus.is_dir():
            log = options.corpus
        if log is None:
            raise InputError("name the query log with --queries.")
        queries = read_queries(log)
        if "trec" in formats:
            require_trec_names((query.id for query in queries), ())
        store = _open_store(options, reranker)
        if "trec" in formats:
            require_trec_names((), (passage.id for passage in store.passages))
        with progress_bar("rerank") as progress:
            rankings = list(reranker.search(store, queries, progress))
    paths = write_rankings(rankings, options.out, formats=formats)
    inputs = {
        "corpus": options.corpus,
        "queries": log,
        "index": options.index,
        "candidates": options.candidates,
    }
    write_record(options.out, reranker, inputs, len(rankings))
    _print_summary(rankings, reranker)
    for path in paths.values():
        print(path)
    return 0


def _open_store(options: argparse.Namespace, reranker: Any) -> Any:
    from ricci_gpu.corpus.store import CorpusStore

    if options.index is not None:
        store = CorpusStore.open(options.index)
        if reranker.device.type == "cuda":
            store.search_on_gpus()
        return store
    return _build_store(options.corpus, reranker, None)


def _build_store(corpus: Path, reranker: Any, folder: Path | None) -> Any:
    from ricci_gpu.corpus.readers import read_corpus
    from ricci_gpu.corpus.store import CorpusStore

    passages = read_corpus(corpus)
    _say_model(reranker)
    with progress_bar("encode corpus") as progress:
        return CorpusStore.build(
            passages,
            reranker.passage_encoder,
            folder,
            index=reranker.config.retrieve.index,
            token_vectors="tokens" in reranker.pipeline.needs or folder is not None,
            progress=progress,
        )


def _index(options: argparse.Namespace) -> int:
    reranker = _reranker(options)
    if reranker is None:
        return 0
    store = _build_store(options.corpus, reranker, options.out)
    print(f"{len(store.passages)} passages indexed in {options.out}")
    return 0


def _search(options: argparse.Namespace) -> int:
    reranker = _reranker(options)
    if reranker is None:
        return 0
    from ricci_gpu.corpus.records import Query

    store = _open_store(options, reranker)
    [ranking] = reranker.search(store, [Query("query", options.query)])
    text_of = {passage.id: passage.full_text for passage in store.passages}
    for rank, hit in enumerate(ranking.hits, start=1):
        score = "" if hit.score is None else f"{hit.score:.4g}"
        print(f"{rank:3d}  {hit.id}  {score}  ({hit.reason})\n     {_short(text_of[hit.id])}")
    print(f"{len(ranking.dropped)} of the pool are not shown; status: {ranking.status}")
    return 0


def _explain(options: argparse.Namespace) -> int:
    from urllib.parse import quote

    from ricci_gpu.explain.page import write_page
    from ricci_gpu.explain.record import find_query, read_record
    from ricci_gpu.explain.replay import replay

    recorded = find_query(read_record(options.folder), options.query)
    name = f"explain-{quote(options.query, safe=' ')}.html"  # any id makes a file name
    print(write_page(replay(recorded), options.out or options.folder / name))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from ricci_gpu.doctor import report

    for line in report():
        print(line)
    return 0


def _say_model(reranker: Any) -> None:
    print(f"model: {reranker.encoder.name} from {reranker.encoder.source}", file=sys.stderr)
    if reranker.late_interaction is not None:
        model = reranker.late_interaction
        print(f"token vectors: {model.name} from {model.source}", file=sys.stderr)


def _print_summary(rankings: Sequence[Any], reranker: Any) -> None:
    kept = sum(len(r.hits) + sum(hit.kept for hit in r.dropped) for r in rankings)
    pool = sum(len(r.hits) + len(r.dropped) for r in rankings)
    trouble = sum(r.status not in ("ok", "too_few_nodes") for r in rankings)
    print(
        f"{len(rankings)} queries; kept {kept} of {pool} candidates "
        f"({kept / max(len(rankings), 1):.1f} per query); {trouble} with a warning status"
    )
    for stage, seconds in reranker.pipeline.seconds.items():
        print(f"  {stage:9s} {len(rankings) / max(seconds, 1e-9):12,.0f} queries/s")


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A callback that draws a bar on standard error, on a terminal only."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining
    except ImportError:
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _short(text: str, width: int = 110) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
