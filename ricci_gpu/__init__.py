"""Rerank whole query logs: batched Ollivier-Ricci flow, token transport and MaxSim.

The five-line way is `Reranker`; the bare tensor functions are in `ricci_gpu.ops`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ricci_gpu.config import Config as Config
    from ricci_gpu.output import Hit as Hit
    from ricci_gpu.output import Ranking as Ranking
    from ricci_gpu.reranker import Reranker as Reranker

__version__ = "0.1.0"
__all__ = ["Config", "Hit", "Ranking", "Reranker", "__version__"]

_HOME = {"Config": "config", "Hit": "output", "Ranking": "output", "Reranker": "reranker"}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `import ricci_gpu` stays quick.
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"ricci_gpu.{_HOME[name]}"), name)
    raise AttributeError(f"module `ricci_gpu` has no attribute `{name}`")
