"""Explain three queries over twelve short passages, as the pages of this folder.

    python -m examples.gallery.build [OUT]

Ranks each query of `QUERIES` over `passages.jsonl` (written for this gallery) with a preset, and
writes the page that `ricci-gpu explain` makes of it. Needs the extras `minilm`, `faiss-cpu`,
`models`.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ricci_gpu.cli import main as ricci_gpu

HERE = Path(__file__).parent


class Example(NamedTuple):
    """A page: its query, and the preset that ranks it."""

    preset: str
    query: str


QUERIES = {
    "ricci": Example("ricci_filtration", "How does a harbour know when high water comes?"),
    "token-transport": Example(
        "default",
        "Do full moon and perigee change how high the water rises, and can a turbine use it?",
    ),
    # The passage that answers it, `locked-moon`, is a stranger in this pool, and is dropped.
    "ricci-drops-the-answer": Example(
        "ricci_filtration", "Why do we always see the same side of the Moon?"
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=HERE, help="folder of the pages")
    out = parser.parse_args(arguments).out
    with tempfile.TemporaryDirectory() as temporary:
        for name, example in QUERIES.items():
            queries = Path(temporary) / f"{name}.jsonl"
            queries.write_text(json.dumps({"id": name, "text": example.query}) + "\n", "utf-8")
            run = str(Path(temporary) / name)
            done = ricci_gpu(
                [
                    "rerank",
                    *("--corpus", str(HERE / "passages.jsonl"), "--queries", str(queries)),
                    *("--preset", example.preset, "--out", run, "--format", "jsonl"),
                ]
            ) or ricci_gpu(["explain", run, "--query", name, "--out", str(out / f"{name}.html")])
            if done:
                raise SystemExit(done)


if __name__ == "__main__":
    main()
