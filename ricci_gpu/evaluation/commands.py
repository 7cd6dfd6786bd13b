"""``ricci-gpu eval``."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ricci_gpu.errors import MissingDependencyError, SettingError

if TYPE_CHECKING:
    from ricci_gpu.evaluation.first_stage import SparseModel
    from ricci_gpu.evaluation.trained import PairModel
    from ricci_gpu.models.late_interaction import LateInteraction
    from ricci_gpu.reranker import Reranker

CACHE, OUT = Path("build/evaluation"), Path("evaluation")
HEAD, SPLADE = "minilm-128", "splade-tiny-msmarco"
CROSS_ENCODER = Path("build/models/cross_encoder")  # where `ricci-gpu train` puts it


def add_commands(subparsers: Any) -> None:
    """Add ``eval`` to the subparsers of ``ricci-gpu``."""
    command = subparsers.add_parser(
        "eval", help="judge filters and rerankers against controls at the same budget"
    )
    source = command.add_argument_group("data")
    source.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("RICCI_GPU_DATA", "data")),
        help="folder of BEIR folders (default: RICCI_GPU_DATA, or ./data)",
    )
    source.add_argument(
        "--dataset",
        dest="datasets",
        action="append",
        help="a folder in it, any BEIR folder, or irds: and an ir_datasets id; repeat for several",
    )
    source.add_argument(
        "--cache", type=Path, default=CACHE, help="folder of token vectors (default: %(default)s)"
    )
    source.add_argument(
        "--out", type=Path, default=OUT, help="folder of the results (default: %(default)s)"
    )
    models = command.add_argument_group(
        "models that are left out, by name, where they are not there"
    )
    models.add_argument(
        "--head", default=HEAD, help="late-interaction head over the encoder (default: %(default)s)"
    )
    models.add_argument(
        "--splade", default=SPLADE, help="second sparse stage of the ladder (default: %(default)s)"
    )
    models.add_argument(
        "--cross-encoder", default=str(CROSS_ENCODER), help="a folder or a name on the hub"
    )
    llm = command.add_argument_group("language model, none unless named")
    llm.add_argument("--llm", metavar="NAME", help="runs here, or behind --llm-url")
    llm.add_argument("--llm-url", metavar="URL", help="an OpenAI-compatible address, up to /v1")
    llm.add_argument(
        "--llm-sample",
        type=int,
        default=60,
        help="test queries that it grades, over all datasets together (default: %(default)s)",
    )
    llm.add_argument("--grades", type=Path, help="file of its grades; by default in the cache")
    llm.add_argument(
        "--answers", type=int, default=0, help="questions of each dataset that it answers"
    )
    command.add_argument("--seed", type=int, default=0, help="of bootstrap and lots")
    command.add_argument(
        "--short", action="store_true", help="a small sample of everything, in about a minute"
    )
    settings = command.add_argument_group("settings")
    settings.add_argument("--preset", default="default", help="a preset name, or a .yaml file")
    settings.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.SETTING=VALUE",
        help="override one setting; repeat for several",
    )
    command.set_defaults(run=_eval)


def _eval(options: argparse.Namespace) -> int:
    from ricci_gpu.evaluation.datasets import find_datasets
    from ricci_gpu.evaluation.results import summary, write_results
    from ricci_gpu.evaluation.run import Evaluation, Sizes
    from ricci_gpu.reranker import Reranker

    reranker = Reranker(options.preset, options.overrides)
    datasets = find_datasets(options.data, options.datasets, options.cache)
    sizes = Sizes(answered=options.answers)
    if options.short:
        datasets = [replace(each, passages=150, queries=12) for each in datasets]
        sizes = Sizes(
            deep=40, pool_sizes=(10, 20), ablated=10, impossible=20, timed=10, variants=False
        )
    print(f"model: {reranker.encoder.name} from {reranker.encoder.source}", file=sys.stderr)
    absent: list[str] = []
    with _reporting() as report:
        evaluation = Evaluation(
            reranker.config,
            reranker.query_encoder,
            reranker.passage_encoder,
            options.cache,
            sizes,
            options.seed,
            [*_cross_encoder(options, absent), *_graders(options, len(datasets), absent)],
            _head(options, reranker, absent),
            _splade(options, absent),
            **_generator(options, absent),
            absent=absent,
            report=report,
        )
        document = evaluation.run(datasets)
    for each in absent:
        print(f"left out: {each}", file=sys.stderr)
    for path in write_results(document, options.out, "quality"):
        print(path)
    print(json.dumps(summary(document)))
    return 0


def _head(
    options: argparse.Namespace, reranker: "Reranker", absent: list[str]
) -> "LateInteraction | None":
    """The head, or None with its reason in ``absent``."""
    from ricci_gpu.models.late_interaction import LateInteraction

    if reranker.config.model.late_interaction is not None:
        absent.append(f"head {options.head}: the encoder's tokens are not those of the run")
        return None
    try:
        head = LateInteraction.load(options.head, encoder=reranker.encoder)
    except (SettingError, MissingDependencyError) as error:
        absent.append(_cannot_load(f"head {options.head}", error))
        return None
    if head.base != reranker.encoder.fingerprint:
        absent.append(f"head {options.head}: it was not trained over the encoder of the run")
        return None
    return head


def _splade(options: argparse.Namespace, absent: list[str]) -> "SparseModel | None":
    """The SPLADE model, or None with its reason in ``absent``."""
    from ricci_gpu.models.splade import Splade

    try:
        return Splade.load(options.splade)
    except (SettingError, MissingDependencyError) as error:
        absent.append(_cannot_load(f"SPLADE {options.splade}", error))
        return None


def _graders(options: argparse.Namespace, datasets: int, absent: list[str]) -> "list[PairModel]":
    """The language model as a reranker of a sample; its grades are kept and asked for once."""
    from ricci_gpu.evaluation.trained import PairModel
    from ricci_gpu.models.chat_endpoint import ChatEndpoint
    from ricci_gpu.models.llm_grader import EndpointGrader, Grader, RememberedGrades
    from ricci_gpu.models.local_grader import LocalGrader

    if options.llm is None:
        absent.append("reranking by a language model (--llm names none)")
        return []
    grader: Grader
    try:
        if options.llm_url is not None:
            grader = EndpointGrader(ChatEndpoint(options.llm, options.llm_url))
        else:
            grader = LocalGrader.load(options.llm)
    except (SettingError, MissingDependencyError) as error:
        absent.append(_cannot_load(f"reranking by the language model {options.llm}", error))
        return []
    remembered = RememberedGrades(grader, options.grades or options.cache / "grades.jsonl")
    sample = max(options.llm_sample // datasets, 1)
    return [PairModel(f"language model {options.llm}", remembered.grade, sample)]


def _generator(options: argparse.Namespace, absent: list[str]) -> dict[str, Any]:
    """Who writes answers, and what the tables say about it."""
    from ricci_gpu.evaluation.answers import LocalChat, RememberedAnswers
    from ricci_gpu.models.chat_endpoint import ChatEndpoint

    if options.llm is None or not options.answers:
        absent.append("answers (--llm and --answers ask for them)")
        return {}
    try:
        if options.llm_url is not None:
            chat: Any = ChatEndpoint(options.llm, options.llm_url)
            name = f"{options.llm} at {options.llm_url}"
            says = f"Written by {options.llm} behind an OpenAI-compatible address."
        else:
            chat = LocalChat(options.llm)
            name = chat.fingerprint
            says = (
                f"Written by {options.llm}, a small model that runs here: an exercise of the "
                "machinery, from which nothing follows about larger models."
            )
    except (SettingError, MissingDependencyError) as error:
        absent.append(_cannot_load(f"answers of {options.llm}", error))
        return {}
    kept = RememberedAnswers(chat, name, options.cache / "answers.jsonl")
    return {"generator": kept, "generator_name": says}


def _cross_encoder(options: argparse.Namespace, absent: list[str]) -> "list[PairModel]":
    """The cross-encoder, or nothing with its reason in ``absent``."""
    from ricci_gpu.evaluation.trained import PairModel
    from ricci_gpu.models.cross_encoder import CrossEncoder

    try:
        model = CrossEncoder.load(options.cross_encoder)
    except (SettingError, MissingDependencyError) as error:
        absent.append(_cannot_load(f"cross-encoder {options.cross_encoder}", error))
        return []
    trained = Path(options.cross_encoder) == CROSS_ENCODER
    name = "cross-encoder (trained here)" if trained else f"cross-encoder {model.name}"
    return [
        PairModel(
            name, lambda pairs: model.score(pairs, log_truncated=False).tolist(), trained=trained
        )
    ]


def _cannot_load(what: str, error: Exception) -> str:
    """What the results say; the reason, which may hold paths of this machine, is only printed."""
    print(f"{what}: {error}", file=sys.stderr)
    return f"{what} (could not be loaded)"


@contextmanager
def _reporting() -> Iterator[Callable[[str], None]]:
    """Says on standard error what is being worked on, with a spinner on a terminal."""
    try:
        from rich.console import Console
    except ImportError:
        yield lambda doing: print(doing, file=sys.stderr)
        return
    console = Console(stderr=True)
    with console.status("start") as status:

        def report(doing: str) -> None:
            console.print(doing)
            status.update(doing)

        yield report
