"""What a language model answered, kept in a JSONL file so that nothing is asked for twice."""

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class KeptAnswers:
    """A file of answers by key. Lines are only ever appended.

    A line that a crash cut short is passed over, and the next one still begins a line of its own.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).expanduser()
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        """All answers so far."""
        known: dict[str, Any] = {}
        if not self._path.is_file():
            return known
        with self._path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                    known[str(row["key"])] = row["answer"]
                except (ValueError, KeyError, TypeError):
                    continue  # cut short by a crash
        return known

    def append(self, answers: Mapping[str, Any]) -> None:
        """Keep some more."""
        lines = [json.dumps({"key": key, "answer": each}) + "\n" for key, each in answers.items()]
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                # a leading line end closes whatever a crash left open; blank lines mean nothing
                file.write(("\n" + "".join(lines)).encode())


def key_of_request(*content: Any) -> str:
    """SHA-256 of everything that an answer depends on."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
