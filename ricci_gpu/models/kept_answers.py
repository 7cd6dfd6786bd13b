"""What a language model answered, kept in a JSONL file so that nothing is asked for twice."""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Request = TypeVar("Request")


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

    def complete(
        self,
        requests: Sequence[Request],
        keys: Sequence[str],
        ask: Callable[[list[Request]], Sequence[Any]],
        at_once: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Any]:
        """The answer to each request, None where there is none; only what is new is asked for.

        Args:
            keys: of the answers; equal requests have equal ones.
            ask: answers some requests, with None where it has no answer: that is not kept.
            at_once: requests asked between two writes; a crash costs at most their answers.
            progress: called with the number of requests done and their total.
        """
        known = self.read()
        request_of = dict(zip(keys, requests, strict=True))
        new = [key for key in request_of if key not in known]
        for start in range(0, len(new), at_once):
            part = new[start : start + at_once]
            answers = ask([request_of[key] for key in part])
            made = {key: each for key, each in zip(part, answers, strict=True) if each is not None}
            if made:
                self.append(made)
            known |= made
            if progress is not None:
                progress(len(requests) - len(new) + start + len(part), len(requests))
        return [known.get(key) for key in keys]

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
