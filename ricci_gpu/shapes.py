"""The glossary of dimension letters, and shape annotations that cost nothing at run time.

======  ==========================================================================
letter  meaning
======  ==========================================================================
``B``   queries in a batch
``N``   padded nodes of a graph: node 0 is the query, nodes 1..N-1 its candidates
``K``   padded candidates of a query, ``K = N - 1``
``E``   padded edges of a graph
``L``   padded tokens of a query
``T``   packed tokens (all documents, or all queries, end to end)
``P``   (query, document) pairs
``D``   width of an embedding
======  ==========================================================================

Annotations such as ``Float[Tensor, "B N D"]`` are checked when the tests run and are plain
``Tensor`` where jaxtyping is not installed.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Unchecked:
            """Stands in for a jaxtyping class: ``Float[Tensor, "B N"]`` is then ``Tensor``."""

            def __class_getitem__(cls, item: Any) -> Any:
                return item[0]

        Bool = Float = Int = _Unchecked

__all__ = ["Bool", "Float", "Int", "Tensor"]
