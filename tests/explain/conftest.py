"""Small finished runs, made with the encoder of words, as `ricci-gpu rerank` leaves them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ricci_gpu.cli import main

TEXTS = {
    "tides": "The moon raises two tides a day",
    "moon": "The moon always shows us the same side",
    "power": "A turbine turns in the tide and makes power",
    "storm": "A storm piles the sea up against the coast",
    "crab": "Crabs hide under weed until the sea comes back",
}


@pytest.fixture
def explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any) -> Callable[..., str]:
    """Rank one query over some texts, explain it, and return the page."""
    monkeypatch.setattr("ricci_gpu.models.encoder.Encoder.load", lambda *_: words)

    def run(
        *settings: str,
        preset: str = "default",
        texts: dict[str, str] = TEXTS,
        query: str = "which moon raises the tides",
        query_id: str = "q1",
        title: str = "",
    ) -> str:
        row = {
            "query_id": query_id,
            "query": query,
            "candidates": [
                {"id": name, "title": title, "text": text} for name, text in texts.items()
            ],
        }
        pools, out = tmp_path / "pools.jsonl", tmp_path / "run"
        pools.write_text(json.dumps(row), encoding="utf-8")
        arguments = ["rerank", "--candidates", str(pools), "--out", str(out), "--preset", preset]
        arguments += ["--format", "jsonl"]
        for setting in settings:
            arguments += ["--set", setting]
        assert main(arguments) == 0
        page = tmp_path / "page.html"
        assert main(["explain", str(out), "--query", query_id, "--out", str(page)]) == 0
        return page.read_text(encoding="utf-8")

    return run
