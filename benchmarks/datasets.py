"""Judged datasets with ready sentence embeddings, by name, from the folder in RICCI_GPU_DATA.

Layout: ``<data>/<name>/`` in BEIR form, plus ``emb_corpus_minilm_f16.npy`` and
``emb_queries_minilm_f16.npy`` (all-MiniLM-L6-v2, rows in file order).
"""

from dataclasses import dataclass

import numpy as np
import torch

from ricci_gpu.corpus.index import DenseIndex
from ricci_gpu.corpus.judged import data_folder

NAMES = ("scifact", "hotpotqa", "squad2")


@dataclass(frozen=True)
class EmbeddedPools:
    """Top-k pools of the first queries of a dataset, with their vectors."""

    name: str
    query_emb: torch.Tensor  # (B, D)
    candidate_emb: torch.Tensor  # (B, k, D)
    rows: torch.Tensor  # (B, k) rows of the corpus


def embedded_pools(name: str, k: int, queries: int) -> EmbeddedPools:
    folder = data_folder() / name
    corpus = torch.from_numpy(np.load(folder / "emb_corpus_minilm_f16.npy")).float()
    query_emb = torch.from_numpy(np.load(folder / "emb_queries_minilm_f16.npy")).float()[:queries]
    _, rows = DenseIndex.build(corpus).search(query_emb, k)
    return EmbeddedPools(name, query_emb, corpus[rows], rows)
