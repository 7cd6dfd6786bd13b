"""Neural models behind plain calls: text in, tensors out.

What belongs here is loading a model and running it in batches. What the tensors are used for
(stores, graphs, rerankers) is decided elsewhere.
"""

from ricci_gpu.models.encoder import Encoded, Encoder

__all__ = ["Encoded", "Encoder"]
