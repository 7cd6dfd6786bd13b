"""The one request and the one answer that all dialects are translated to and from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from ricci_gpu.output import Ranking
from ricci_gpu.serving.failures import Refusal, invalid
from ricci_gpu.serving.schemas import Body, Extension
from ricci_gpu.serving.scores import Scored
from ricci_gpu.serving.tasks import Vectors
from ricci_gpu.serving.vectors import read_vectors

B = TypeVar("B", bound=Body)


@dataclass(frozen=True)
class Call:
    """A rerank request.

    Args:
        model: as the client calls it, for the answer; a preset of that name is taken.
        documents: the texts.
        originals: the documents as they came, for the answer.
        top_n: how many to return; None for all.
        echo: return the documents.
        raw: scores as the stages give them.
        truncate: cut long texts; else refuse them.
        extended: the request knows our extension, so the answer may use it per document.
    """

    query: str
    documents: tuple[str, ...]
    originals: Sequence[Any]
    model: str | None = None
    top_n: int | None = None
    echo: bool = False
    raw: bool = False
    truncate: bool = True
    vectors: Vectors | None = None
    options: Extension = field(default_factory=Extension)
    extended: bool = False

    @property
    def pairs(self) -> int:
        return len(self.documents) if self.vectors is None else self.vectors.documents


@dataclass(frozen=True)
class Reply:
    """The answer to a call.

    Args:
        results: in order, no more than asked for.
        kept: how many documents the filter kept, of all.
        tokens: that were read.
        warnings: for people.
    """

    id: str
    model: str
    preset: str
    results: list[Scored]
    ranking: Ranking
    kept: int
    tokens: int
    warnings: list[str]

    def extension(self) -> dict[str, Any]:
        """What the answer as a whole says in ``ricci``."""
        abstention = self.ranking.abstention
        finite = abstention is not None and math.isfinite(abstention)
        found: dict[str, Any] = {
            "preset": self.preset,
            "status": self.ranking.status,
            "kept": self.kept,
            "documents": len(self.ranking.hits) + len(self.ranking.dropped),
        }
        return found | ({"abstention": abstention} if finite else {})


def extension_of(call: Call, result: Scored) -> dict[str, Any]:
    """What the answer says in ``ricci`` of one document: nothing to clients of other servers."""
    if not call.extended:
        return {}
    hit = result.hit
    said: dict[str, Any] = {"kept": hit.kept}
    if call.options.explain:
        said["reason"] = hit.reason
        if hit.filter_value is not None and math.isfinite(hit.filter_value):
            said["filter_value"] = hit.filter_value
    return {"ricci": said}


def checked(model: type[B], body: Mapping[str, Any]) -> B:
    """The body as its schema has it.

    Raises:
        Refusal: it breaks the schema; the message names the first field that does.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "body"
        message = str(first["msg"])
        raise invalid(f"`{place[:200]}`: {message[0].lower()}{message[1:]}.") from None


def vectors_of(body: Body) -> Vectors | None:
    """The vectors of the extension."""
    given = None if body.ricci is None else body.ricci.vectors
    return None if given is None else read_vectors(given)


def text_of_query(query: Any) -> str:
    """The text of a query: a string, or an object with ``text``."""
    if isinstance(query, str):
        return query
    if isinstance(query, Mapping) and isinstance(query.get("text"), str):
        return str(query["text"])
    raise invalid("`query` must be a string, or an object with a string in `text`.")


def text_of(document: Any, place: int, fields: Sequence[str] = ()) -> str:
    """The text of a document: a string, or an object.

    Of an object it is the ``fields`` that are asked for, else ``text``, else all its strings, one
    ``key: value`` a line.
    """
    if isinstance(document, str):
        return document
    strings = {k: v for k, v in document.items() if isinstance(v, str)}
    asked = [strings[name] for name in fields if name in strings]
    if asked:
        return "\n".join(asked)
    if "text" in strings:
        return str(strings["text"])
    if strings:
        return "\n".join(f"{key}: {value}" for key, value in strings.items())
    raise invalid(
        f"document {place} must be a string, or an object with a string in `text` or in another "
        "field; it has none."
    )


def require_documents(texts: Sequence[Any] | None, name: str, vectors: Vectors | None) -> list[Any]:
    """The documents, unless vectors stand for them.

    Raises:
        Refusal: none of both, or not one vector per document.
    """
    if texts is None and vectors is not None:
        return []
    if texts is None:
        raise invalid(f"`{name}` is missing: send a list of texts.")
    if not texts:
        raise Refusal(400, f"`{name}` must not be empty.")
    if vectors is not None and len(texts) != vectors.documents:
        raise invalid(
            f"`{name}` and `ricci.vectors` must have equally many documents; got {len(texts)} and "
            f"{vectors.documents}. Leave out the texts, or complete them."
        )
    return list(texts)
