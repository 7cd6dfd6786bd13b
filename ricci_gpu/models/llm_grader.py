"""Pointwise reranking by a language model: it grades each (query, passage) pair by itself.

The scale is that of UMBRELA (arXiv 2406.06519), in our own words. A model behind an endpoint
answers with a digit; an answer that is none is asked for once more, and counts as missing if that
fails too. A model that runs here is not asked to write: its grade is the mean of the four digits
under its own probabilities of them as the next token, so that it is never malformed and seldom
tied.
"""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from ricci_gpu.models.chat_endpoint import ChatEndpoint, Message
from ricci_gpu.models.kept_answers import KeptAnswers, key_of_request
from ricci_gpu.models.pretrained import require_pairs

logger = logging.getLogger(__name__)

GRADES = (0, 1, 2, 3)
SLICE = 256  # pairs graded between two writes of the answers
INSTRUCTION = """\
You judge search results. Grade how well a passage answers a query:
3: it is about the query and gives the answer outright
2: it gives an answer, but in part, unclearly, or among much else
1: it is about the same topic and does not answer
0: it has nothing to do with the query
Reply with the grade alone: one digit."""
REPAIR = "That is not a grade. Reply with one digit alone: 0, 1, 2 or 3."

Progress = Callable[[int, int], None]


@runtime_checkable
class Grader(Protocol):
    """A model that grades pairs; `EndpointGrader` and `local_grader.LocalGrader` are the two."""

    @property
    def fingerprint(self) -> str:
        """What its grades depend on, apart from the pair."""

    def grade(
        self, pairs: Sequence[tuple[str, str]], progress: Progress | None = None
    ) -> list[float | None]:
        """A grade from 0 to 3 per pair; None where the model gave none."""


class EndpointGrader:
    """Grades by a chat model behind an address."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    @property
    def fingerprint(self) -> str:
        return f"endpoint {self._endpoint.model} {prompt_sha256()}"

    def grade(
        self, pairs: Sequence[tuple[str, str]], progress: Progress | None = None
    ) -> list[float | None]:
        require_pairs(pairs)
        asked = [conversation(query, passage) for query, passage in pairs]
        answers = self._endpoint.ask(asked, 16, progress) if asked else []
        grades = [None if answer is None else read_grade(answer) for answer in answers]
        malformed = [
            row
            for row, (answer, grade) in enumerate(zip(answers, grades, strict=True))
            if grade is None and answer is not None
        ]
        if malformed:
            again: list[list[Message]] = [
                [
                    *asked[row],
                    {"role": "assistant", "content": answers[row] or ""},
                    {"role": "user", "content": REPAIR},
                ]
                for row in malformed
            ]
            for row, answer in zip(malformed, self._endpoint.ask(again, 16), strict=True):
                grades[row] = None if answer is None else read_grade(answer)
            lost = sum(grades[row] is None for row in malformed)
            logger.warning(
                "%d of %d answers were no grade; %d of them still were none when asked again",
                len(malformed),
                len(pairs),
                lost,
            )
        return grades


class RememberedGrades:
    """A grader that keeps every grade in a file and asks for none twice.

    A crash costs at most `SLICE` grades. Pairs without a grade are not kept, and asked for again.
    """

    def __init__(self, grader: Grader, path: str | os.PathLike[str]) -> None:
        self._grader = grader
        self._kept = KeptAnswers(path)

    @property
    def fingerprint(self) -> str:
        return self._grader.fingerprint

    def grade(
        self, pairs: Sequence[tuple[str, str]], progress: Progress | None = None
    ) -> list[float | None]:
        require_pairs(pairs)
        keys = [key_of_request(self.fingerprint, *pair) for pair in pairs]
        return self._kept.complete(pairs, keys, self._grader.grade, SLICE, progress)


def conversation(query: str, passage: str) -> list[Message]:
    """The request for one grade."""
    content = f"Query: {query}\n\nPassage: {passage}\n\nGrade:"
    return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": content}]


def read_grade(answer: str) -> float | None:
    """The grade in an answer that names exactly one number, and that a grade; else None.

    >>> read_grade("Grade: 2."), read_grade("2 or 3"), read_grade("7")
    (2.0, None, None)
    """
    numbers = set(re.findall(r"\d+(?:[.,]\d+)?", answer))
    if len(numbers) != 1:
        return None
    [number] = numbers
    return float(number) if number in map(str, GRADES) else None


def prompt_sha256() -> str:
    """Digest of the prompt: grades under another one are others."""
    return hashlib.sha256(f"{INSTRUCTION}\0{REPAIR}".encode()).hexdigest()
