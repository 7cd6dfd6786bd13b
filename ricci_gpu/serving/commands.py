"""``ricci-gpu serve``."""

import argparse
import logging
import os
from pathlib import Path
from typing import Any

from ricci_gpu.errors import missing

KEYS_VARIABLE = "RICCI_GPU_KEYS"
NUMBERS = (
    "threads",
    "max_wait_ms",
    "batch_tokens",
    "queue_requests",
    "deadline_s",
    "max_documents",
    "max_body_mib",
    "cache_entries",
)


def add_commands(subparsers: Any) -> None:
    """Add ``serve`` to the subparsers of ``ricci-gpu``."""
    serve = subparsers.add_parser("serve", help="answer rerank requests over HTTP")
    serve.add_argument("--host", default="127.0.0.1", help="(default: %(default)s)")
    serve.add_argument("--port", type=int, default=8000, help="(default: %(default)s)")
    serve.add_argument(
        "--preset",
        action="append",
        help="a preset name, or a .yaml file; repeat for several: the first is taken by requests "
        "that name none (default: default, ricci_filtration)",
    )
    serve.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.SETTING=VALUE",
        help="override one setting of every preset; repeat for several",
    )
    serve.add_argument(
        "--device",
        action="append",
        help="one worker on it; repeat for several (default: one per GPU, or one on the CPU)",
    )
    serve.add_argument("--threads", type=int, help="of torch, per worker on a CPU (default: 1)")
    serve.add_argument("--max-wait-ms", type=float, help="for company in a batch (default: 5)")
    serve.add_argument("--batch-tokens", type=int, help="per batch (default: 262144)")
    serve.add_argument("--queue-requests", type=int, help="that may wait (default: 1024)")
    serve.add_argument("--deadline-s", type=float, help="of a request (default: 30)")
    serve.add_argument("--max-documents", type=int, help="per request (default: 1000)")
    serve.add_argument("--max-body-mib", type=float, help="per request (default: 32)")
    serve.add_argument("--cache-entries", type=int, help="answers kept by content (default: 0)")
    serve.add_argument(
        "--keys-file",
        type=Path,
        help=f"a key per line, of which requests must bring one; also {KEYS_VARIABLE}=a,b",
    )
    serve.add_argument("--log-texts", action="store_true", help="write queries to the log")
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    try:
        import uvicorn

        from ricci_gpu.serving.app import create_app
    except ImportError as error:
        raise missing("fastapi, uvicorn, prometheus-client", "serving", "serve") from error
    from ricci_gpu.serving.service import DRAIN_S

    settings = settings_of(options, os.environ.get(KEYS_VARIABLE, ""))
    if settings.host not in ("127.0.0.1", "::1", "localhost") and not settings.keys:
        logging.getLogger("ricci_gpu").warning(
            "listening on %s without keys: whoever reaches this port may use it", settings.host
        )
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(DRAIN_S),
        timeout_keep_alive=60,
    )
    return 0


def settings_of(options: argparse.Namespace, environment_keys: str) -> Any:
    """The settings that the options name; all others have their defaults."""
    from ricci_gpu.serving.auth import read_keys
    from ricci_gpu.serving.settings import ServeSettings

    keys = tuple(key.strip() for key in environment_keys.split(",") if key.strip())
    if options.keys_file is not None:
        keys += read_keys(options.keys_file)
    given = {name: getattr(options, name) for name in NUMBERS}
    return ServeSettings(
        host=options.host,
        port=options.port,
        presets=tuple(options.preset or ServeSettings.presets),
        overrides=tuple(options.overrides),
        devices=tuple(options.device or ()),
        keys=keys,
        log_texts=options.log_texts,
        **{name: value for name, value in given.items() if value is not None},
    )
