"""Answers by content: what was asked the same way gets the same answer."""

import hashlib
from collections import OrderedDict

import numpy as np

from ricci_gpu.serving.tasks import Answer, Task


class AnswerCache:
    """The latest answers. A key is the SHA-256 of settings, query, documents and vectors."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._answers: OrderedDict[bytes, Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, task: Task) -> Answer | None:
        if not self._entries:
            return None
        key = _key(task)
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)

    def put(self, task: Task, answer: Answer) -> None:
        if not self._entries:
            return
        self._answers[_key(task)] = answer
        while len(self._answers) > self._entries:
            self._answers.popitem(last=False)


def _key(task: Task) -> bytes:
    digest = hashlib.sha256()
    for text in (task.key, task.query, *task.documents):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))  # "a", "bc" is not "ab", "c"
        digest.update(data)
    if task.vectors is not None:
        given = task.vectors
        for array in (
            given.query_embedding,
            given.embeddings,
            given.query_tokens,
            given.tokens,
            given.token_counts,
        ):
            digest.update(b"-" if array is None else repr((array.shape, array.dtype)).encode())
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
