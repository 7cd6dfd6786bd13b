"""The extension object ``ricci`` of a request, and what all request bodies share.

Bodies take unknown fields, because clients send fields of every server they know; the extension
is ours, so a misspelt name in it is refused.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MOST_SECONDS = 3600.0


class VectorsBody(BaseModel):
    """Vectors in place of texts: base64 of little-endian float16, row after row.

    Sentence embeddings, vectors per token, or both; of the query and of all documents.
    """

    model_config = ConfigDict(extra="forbid")

    documents: int = Field(ge=1, description="how many")
    query_embedding: str | None = Field(default=None, description="[D]")
    embeddings: str | None = Field(default=None, description="[documents, D]")
    query_tokens: str | None = Field(default=None, description="[query tokens, token_width]")
    tokens: str | None = Field(default=None, description="[sum of token_counts, token_width]")
    token_counts: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, description="tokens of each document"
    )
    token_width: int | None = Field(default=None, ge=1, le=65_536)


class Extension(BaseModel):
    """Our own options, which other servers ignore."""

    model_config = ConfigDict(extra="forbid")

    preset: str | None = Field(default=None, description="one of /v1/models")
    filter: dict[str, Any] | None = Field(
        default=None, description="settings of the filter; `type` chooses another"
    )
    rerank: str | None = Field(default=None, description="`none` or `maxsim`")
    drop: bool = Field(default=False, description="leave out what the filter dropped")
    explain: bool = Field(default=False, description="say per document why it was kept or dropped")
    stream: bool = Field(
        default=False, description="answer as NDJSON: a head, then a line per document"
    )
    truncate: bool = Field(
        default=True, description="cut long texts with a warning; false refuses them"
    )
    deadline_s: float | None = Field(default=None, gt=0, le=MOST_SECONDS)
    priority: int = Field(default=0, ge=-1000, le=1000, description="smaller comes first")
    vectors: VectorsBody | None = None


class Body(BaseModel):
    """What every rerank body may hold."""

    model_config = ConfigDict(extra="allow")

    model: str | None = Field(
        default=None, description="a preset, or any other name, which is ignored"
    )
    ricci: Extension | None = None


Query = str | dict[str, Any]
Document = str | dict[str, Any]


class RerankBody(Body):
    """Cohere v1 and v2, Jina, vLLM and Infinity."""

    query: Query = ""
    documents: list[Document] | None = None
    top_n: int | None = Field(default=None, ge=0, description="0 for all")
    return_documents: bool | None = None
    rank_fields: list[str] | None = None
    raw_scores: bool | None = None


class TextsBody(Body):
    """Hugging Face TEI."""

    query: str = ""
    texts: list[str] | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    top_n: int | None = Field(default=None, ge=0)


Texts = str | list[Document]


class ScoreBody(Body):
    """vLLM: one text with one, one with many, or many with as many."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    raw_scores: bool | None = None
