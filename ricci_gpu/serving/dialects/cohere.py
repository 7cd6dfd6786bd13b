"""Cohere's ``/v1/rerank`` and ``/v2/rerank``; Jina's clients use the first.

A document is returned only when asked for.
"""

from ricci_gpu.serving.dialects.interface import Dialect


class CohereV1(Dialect):
    """Texts or objects with ``rank_fields``. Jina's fields are the same."""

    name = "cohere-v1"


class CohereV2(Dialect):
    """As version 1; its clients never ask for documents."""

    name = "cohere-v2"
