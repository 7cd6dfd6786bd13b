"""Neural models behind plain calls: text in, tensors out.

What belongs here is loading a model and running it in batches. What the tensors are used for
(stores, graphs, rerankers) is decided elsewhere.
"""

from ricci_gpu.models.cross_encoder import CrossEncoder
from ricci_gpu.models.encoder import Encoded, Encoder
from ricci_gpu.models.late_interaction import LateInteraction, TokenVectors
from ricci_gpu.models.sides import SideEncoder

__all__ = [
    "CrossEncoder",
    "Encoded",
    "Encoder",
    "LateInteraction",
    "SideEncoder",
    "TokenVectors",
]
