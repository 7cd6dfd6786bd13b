"""``ricci-gpu train late-interaction | cross-encoder``."""

import argparse
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ricci_gpu.training.settings import (
    LOSSES,
    CrossEncoderSettings,
    LateInteractionSettings,
    RunSettings,
)

OUT, CACHE = Path("build/models"), Path("build/evaluation")  # the cache is that of `eval`


def add_commands(subparsers: Any) -> None:
    """Add ``train`` and its commands to the subparsers of ``ricci-gpu``."""
    train = subparsers.add_parser("train", help="train a small model on judged queries")
    commands = train.add_subparsers(dest="train_command", required=True, metavar="COMMAND")
    head = commands.add_parser(
        "late-interaction", help="a projection of token vectors, through MaxSim"
    )
    _add_run(head, LateInteractionSettings(), OUT / "late_interaction")
    _add(head, LateInteractionSettings(), "base", help="encoder whose token vectors it projects")
    _add(head, LateInteractionSettings(), "width", type=int, help="of the projected vectors")
    _add(
        head,
        LateInteractionSettings(),
        "temperature",
        type=float,
        help="what MaxSim is divided by before the softmax of the loss",
    )
    head.add_argument("--train-encoder", action="store_true", help="also the encoder: wants a GPU")
    _add(
        head,
        LateInteractionSettings(),
        "max_tokens",
        type=int,
        help="longest text, for --train-encoder",
    )
    head.set_defaults(run=_late_interaction)
    cross = commands.add_parser(
        "cross-encoder", help="a classifier that reads question and passage together"
    )
    _add_run(cross, CrossEncoderSettings(), OUT / "cross_encoder")
    _add(cross, CrossEncoderSettings(), "base", help="a packaged model, a folder, or a hub name")
    _add(cross, CrossEncoderSettings(), "retriever", help="encoder that finds the pools")
    _add(cross, CrossEncoderSettings(), "loss", choices=LOSSES, help="over lists, or pairs")
    _add(cross, CrossEncoderSettings(), "max_tokens", type=int, help="longest pair")
    cross.add_argument("--train-embeddings", action="store_true", help="also the vectors of words")
    cross.set_defaults(run=_cross_encoder)


def _add_run(parser: argparse.ArgumentParser, defaults: RunSettings, out: Path) -> None:
    parser.add_argument(
        "--data",
        nargs="+",
        default=list(defaults.data),
        help="datasets: folders of RICCI_GPU_DATA (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, default=out, help="folder of the model (default: %(default)s)"
    )
    parser.add_argument(
        "--cache", type=Path, default=CACHE, help="of encoded passages (default: %(default)s)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on after the last finished epoch of --out"
    )
    _add(parser, defaults, "seed", type=int, help="of everything that is drawn")
    _add(parser, defaults, "epochs", type=int, help="at most so many")
    _add(
        parser,
        defaults,
        "patience",
        type=int,
        help="stop after so many epochs that are no better on the dev part",
    )
    _add(parser, defaults, "batch", type=int, help="questions per step and device")
    _add(parser, defaults, "negatives", type=int, help="hard negatives per question")
    _add(parser, defaults, "learning_rate", type=float, help="at its highest")
    devices = parser.add_argument_group("devices (as for lightning.Trainer)")
    for name, says in (
        ("accelerator", "auto, cpu, gpu"),
        ("devices", "auto, or how many"),
        ("strategy", "auto, ddp"),
        ("precision", "32-true, bf16-mixed"),
    ):
        _add(devices, defaults, name, help=says)


def _add(parser: Any, defaults: RunSettings, name: str, **how: Any) -> None:
    """An option for one setting, with its default."""
    how["help"] += " (default: %(default)s)"
    parser.add_argument(f"--{name.replace('_', '-')}", default=getattr(defaults, name), **how)


def _settings(kind: type[Any], options: argparse.Namespace) -> Any:
    given = {field.name: getattr(options, field.name) for field in fields(kind)}
    return kind(**given | {"data": tuple(options.data)})


def _late_interaction(options: argparse.Namespace) -> int:
    from ricci_gpu.training.recipes import train_late_interaction

    settings = _settings(LateInteractionSettings, options)
    return _report(train_late_interaction(settings, options.out, options.cache, options.resume))


def _cross_encoder(options: argparse.Namespace) -> int:
    from ricci_gpu.training.recipes import train_cross_encoder

    settings = _settings(CrossEncoderSettings, options)
    return _report(train_cross_encoder(settings, options.out, options.cache, options.resume))


def _report(trained: Any) -> int:
    """The gains as a table, and as JSON on the last line."""
    if trained is None:  # a further process of a training on several devices
        return 0
    from ricci_gpu.training.card import gains_table

    print(gains_table(trained.gains))
    print(f"best epoch: {trained.fitted.best}\nmodel: {trained.model}")
    document = {
        "model": str(trained.model),
        "baseline": trained.baseline,
        "best": asdict(trained.fitted.best),
        "gains": [asdict(gain) for gain in trained.gains],
    }
    print(json.dumps(document))
    return 0
