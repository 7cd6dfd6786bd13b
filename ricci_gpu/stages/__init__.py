"""Batch in, batch out: the filters and rerankers that a configuration names.

What belongs here: small frozen dataclasses whose fields are the settings a user writes in YAML,
each of which turns a `QueryGraphBatch` into a new one by calling `ricci_gpu.ops`. No file, text or
model is touched here.
"""

from ricci_gpu.stages import controls, rerank, ricci_filter, token_filter  # noqa: F401
from ricci_gpu.stages.interface import FILTERS, RERANKERS, Filter, Stage

__all__ = ["FILTERS", "RERANKERS", "Filter", "Stage"]
