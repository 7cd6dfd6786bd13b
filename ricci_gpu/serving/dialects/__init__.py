"""The dialects of other servers: each a thin translation to a `Call` and back from a `Reply`."""

from ricci_gpu.serving.dialects.cohere import CohereV1, CohereV2
from ricci_gpu.serving.dialects.infinity import Infinity
from ricci_gpu.serving.dialects.interface import Dialect
from ricci_gpu.serving.dialects.tei import TEI
from ricci_gpu.serving.dialects.vllm import VLLM

__all__ = ["TEI", "VLLM", "CohereV1", "CohereV2", "Dialect", "Infinity"]
