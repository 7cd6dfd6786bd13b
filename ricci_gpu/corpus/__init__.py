"""Passages and queries: reading them from files, keeping them in a store, finding them by vector.

What belongs here is everything about the data that a run starts from: file formats, ids, stores
and indexes. Models do not: a store is built with an encoder that it is given.
"""

from ricci_gpu.corpus.candidates import CandidateList, read_candidates
from ricci_gpu.corpus.index import DenseIndex
from ricci_gpu.corpus.readers import (
    UnknownIds,
    count_unknown,
    read_corpus,
    read_qrels,
    read_queries,
)
from ricci_gpu.corpus.records import Passage, Query
from ricci_gpu.corpus.store import CorpusStore

__all__ = [
    "CandidateList",
    "CorpusStore",
    "DenseIndex",
    "Passage",
    "Query",
    "UnknownIds",
    "count_unknown",
    "read_candidates",
    "read_corpus",
    "read_qrels",
    "read_queries",
]
