"""Infinity's ``/rerank``, under a prefix of its own: its clients want documents as strings."""

from typing import Any

from ricci_gpu.serving.dialects.interface import Dialect


class Infinity(Dialect):
    """As vLLM, with ``document`` a string."""

    name = "infinity"
    invalid_status = 422

    def document(self, original: Any, text: str) -> Any:
        return text
