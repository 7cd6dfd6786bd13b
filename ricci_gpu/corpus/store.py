"""A corpus ready for retrieval: passages, their vectors, an index, and optionally token vectors.

A stored corpus is a folder:

=====================  ================================================================
file                   what it holds
=====================  ================================================================
``meta.json``          `StoreMeta`: format, version, model, counts, digest of the input
``passages.jsonl``     ``id``, ``title``, ``text``; row ``i`` of everything else is line ``i``
``vectors.npy``        sentence vectors, float32 ``[M D]``
``index.faiss``        the index over them
``tokens.npy``         packed token vectors, float16 ``[T D]``; only when asked for
``token_offsets.npy``  int64 ``[M+1]``: passage ``i`` owns tokens ``offsets[i]:offsets[i + 1]``
=====================  ================================================================

Arrays are mapped from disk, not read. The folder is completed under a temporary name and then
renamed, so a store that exists is complete.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

import numpy as np
import torch

from ricci_gpu.corpus.files import as_path, json_rows
from ricci_gpu.corpus.index import DenseIndex
from ricci_gpu.corpus.records import Passage, require_unique
from ricci_gpu.corpus.token_file import TokenFile, map_rows, read_spans
from ricci_gpu.errors import InputError, SettingError
from ricci_gpu.output import flush_to_disk
from ricci_gpu.shapes import Float, Int, Tensor

logger = logging.getLogger(__name__)

FORMAT = "ricci_gpu corpus store"
VERSION = 1
SLICE = 1024  # passages encoded before their token vectors go to disk


@runtime_checkable
class Model(Protocol):
    """What made some vectors."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...


@runtime_checkable
class TextEncoder(Model, Protocol):
    """What a store needs of an encoder of passages.

    `ricci_gpu.models.Encoder` is one, and `ricci_gpu.models.SideEncoder`, which knows what the
    models want before passages. Where token vectors come from another model it has a
    ``token_model``.
    """

    def encode(
        self, texts: Sequence[str], tokens: bool = False, *, log_truncated: bool = True
    ) -> Any: ...


@dataclass(frozen=True)
class StoreMeta:
    """What ``meta.json`` says.

    Args:
        model, source: name of the encoder, and where its files came from.
        fingerprint: SHA-256 of the encoder.
        passages, tokens: their numbers; ``tokens`` is None without token vectors.
        truncated: passages that were longer than the model reads.
        index: kind of the index.
        sha256: digest of the passages, the content of ``passages.jsonl``.
        token_model, token_fingerprint: what made the token vectors; None for the encoder.
    """

    format: str
    version: int
    model: str
    source: str
    fingerprint: str
    passages: int
    tokens: int | None
    truncated: int
    index: str
    sha256: str
    token_model: str | None = None
    token_fingerprint: str | None = None


@dataclass(frozen=True)
class CorpusStore:
    """Passages by row with their vectors. Make one with `CorpusStore.build` or `.open`."""

    passages: list[Passage]
    vectors: Float[Tensor, "M D"]
    index: DenseIndex
    tokens: np.ndarray | None
    token_offsets: np.ndarray | None
    meta: StoreMeta

    @classmethod
    def build(
        cls,
        passages: Sequence[Passage],
        encoder: TextEncoder,
        folder: str | os.PathLike[str] | None = None,
        token_vectors: bool = True,
        index: str = "flat",
        progress: Callable[[int, int], None] | None = None,
    ) -> "CorpusStore":
        """Encode the passages and index them.

        Args:
            folder: where the store is written; None keeps it in memory.
            token_vectors: also keep a float16 vector per token (384 numbers per word for MiniLM,
                which is some fifty times the text).
            index: ``flat``, ``hnsw`` or ``ivf``.
            progress: called with the number of passages done and their total.

        Raises:
            InputError: no passage, an id that comes twice, a folder that is not empty, a passage
                that the model gives no usable vector, or a bare encoder that wants a prompt.
        """
        if not passages:
            raise InputError("a corpus needs at least one passage; got none. Check the input.")
        require_unique((passage.id for passage in passages), "passage", "corpus")
        prompt = getattr(getattr(encoder, "prompts", None), "passage", "")
        if prompt:
            raise InputError(
                f"the model `{encoder.name}` wants `{prompt}` before passages. Give "
                "`Reranker.passage_encoder`, which puts it there."
            )
        if folder is None:
            return cls._build(passages, encoder, None, token_vectors, index, progress)
        with _new_folder(as_path(folder)) as temporary:
            cls._build(passages, encoder, temporary, token_vectors, index, progress)
        return cls.open(folder)

    @classmethod
    def _build(
        cls,
        passages: Sequence[Passage],
        encoder: TextEncoder,
        folder: Path | None,
        token_vectors: bool,
        index_kind: str,
        progress: Callable[[int, int], None] | None,
    ) -> "CorpusStore":
        token_model: Model | None = getattr(encoder, "token_model", None)
        if not token_vectors or (token_model and token_model.fingerprint == encoder.fingerprint):
            token_model = None
        vector_parts: list[Tensor] = []
        counts: list[Tensor] = []
        truncated = 0
        with TokenFile(None if folder is None else folder / "tokens.npy") as token_file:
            for start in range(0, len(passages), SLICE):
                texts = [passage.full_text for passage in passages[start : start + SLICE]]
                encoded = encoder.encode(texts, tokens=token_vectors, log_truncated=False)
                vector_parts.append(encoded.vectors.cpu())
                truncated += encoded.truncated
                if token_vectors:
                    rows, offsets = encoded.packed_tokens()
                    token_file.append(rows.half().cpu().numpy())
                    counts.append(offsets.diff().cpu())
                if progress is not None:
                    progress(start + len(texts), len(passages))
        if truncated:
            logger.warning(
                "%d of %d passages were longer than %s reads, and were cut",
                truncated,
                len(passages),
                encoder.name,
            )
        vectors = torch.cat(vector_parts)
        tokens = token_offsets = None
        if token_vectors:
            tokens = token_file.array()
            token_offsets = np.concatenate([[0], torch.cat(counts).cumsum(0).numpy()])
        lines = [_passage_line(passage) for passage in passages]
        store = cls(
            passages=list(passages),
            vectors=vectors,
            index=DenseIndex.build(vectors, index_kind),
            tokens=tokens,
            token_offsets=token_offsets,
            meta=StoreMeta(
                format=FORMAT,
                version=VERSION,
                model=encoder.name,
                source=encoder.source,
                fingerprint=encoder.fingerprint,
                passages=len(passages),
                tokens=None if tokens is None else len(tokens),
                truncated=truncated,
                index=index_kind,
                sha256=_digest(lines),
                token_model=None if token_model is None else token_model.name,
                token_fingerprint=None if token_model is None else token_model.fingerprint,
            ),
        )
        if folder is not None:
            store._write(folder, lines)
        return store

    def _write(self, folder: Path, lines: Iterable[str]) -> None:
        """Everything but ``tokens.npy``, which grew while encoding."""
        with (folder / "passages.jsonl").open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        np.save(folder / "vectors.npy", self.vectors.numpy())
        if self.token_offsets is not None:
            np.save(folder / "token_offsets.npy", self.token_offsets)
        self.index.save(folder / "index.faiss")
        meta = json.dumps(asdict(self.meta), indent=2)
        (folder / "meta.json").write_text(meta + "\n", encoding="utf-8")

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "CorpusStore":
        """Open a store that `build` wrote.

        Raises:
            InputError: not a store, one of another format version, or one whose files do not
                belong together.
        """
        path = as_path(folder)
        meta = _read_meta(path)
        passages, digest = _read_passages(path / "passages.jsonl")
        vectors = _map_array(path / "vectors.npy")
        # of an ivf file that lost its end faiss takes no notice when it maps it
        index = DenseIndex.load(path / "index.faiss", mapped=meta.index != "ivf")
        tokens = token_offsets = None
        sizes = {"passages": len(passages), "vectors": len(vectors), "index rows": index.size}
        expected = dict.fromkeys(sizes, meta.passages)
        if meta.tokens is not None:
            tokens = _map_array(path / "tokens.npy")
            token_offsets = np.array(_map_array(path / "token_offsets.npy"))
            sizes |= {
                "token vectors": len(tokens),
                "token offsets": len(token_offsets) - 1,
                "last token offset": int(token_offsets[-1]),
            }
            expected |= {
                "token vectors": meta.tokens,
                "token offsets": meta.passages,
                "last token offset": meta.tokens,
            }
        for what, size in sizes.items():
            if size != expected[what]:
                raise _damaged(path, f"{size} {what}, where meta.json says {expected[what]}")
        if digest != meta.sha256:
            raise _damaged(path, "passages.jsonl is not the file that was written")
        return cls(passages, torch.from_numpy(vectors), index, tokens, token_offsets, meta)

    def require_encoder(self, encoder: TextEncoder) -> None:
        """Refuse an encoder other than the one of the store: its vectors would not compare.

        Raises:
            InputError: the model files or settings differ.
        """
        if encoder.fingerprint != self.meta.fingerprint:
            raise InputError(
                f"queries must be encoded with the model of the corpus, `{self.meta.model}` "
                f"({self.meta.source}); got `{encoder.name}` ({encoder.source}), whose files "
                "differ. Load that model, or build the store again with this one."
            )

    def require_token_model(self, model: Model) -> None:
        """Refuse token vectors of a model other than the one of the store.

        Raises:
            InputError: the model files or settings differ.
        """
        if model.fingerprint != (self.meta.token_fingerprint or self.meta.fingerprint):
            raise InputError(
                "token vectors of queries must come from the model of the store, "
                f"`{self.meta.token_model or self.meta.model}`; got `{model.name}` "
                f"({model.source}), whose files differ. Set `model.late_interaction` to it, or "
                "build the store again with this one."
            )

    def search(
        self, query_vectors: Float[Tensor, "q D"], k: int
    ) -> tuple[Float[Tensor, "q k"], Int[Tensor, "q k"]]:
        """Scores and rows of the best ``k`` passages per query: `DenseIndex.search`."""
        return self.index.search(query_vectors, k)

    def search_on_gpus(self) -> None:
        """Search on the GPUs of this machine from now on, or say why not and stay on the CPU."""
        try:
            self.index.copy_to_gpus()
        except SettingError as reason:
            logger.info("the index is searched on the CPU: %s", reason)

    def token_slices(
        self, rows: Int[Tensor, "R"]
    ) -> tuple[Float[Tensor, "T D"], Int[Tensor, "Rplus1"]]:
        """Token vectors of some passages, packed in the order of ``rows``, and their offsets.

        They are given as they were kept, in float16: what reads them widens a few at a time.

        Raises:
            InputError: the store has no token vectors, or a row does not exist.
        """
        if self.tokens is None or self.token_offsets is None:
            raise InputError(
                "token vectors were asked for, and this store was built without them. "
                "Build it again with token_vectors=True."
            )
        wanted = rows.cpu().numpy()
        bad = wanted[(wanted < 0) | (wanted >= len(self.passages))]
        if len(bad):
            raise InputError(
                f"rows must lie between 0 and {len(self.passages) - 1}; got {bad[0]}. "
                "Leave out the places that an approximate search could not fill (row -1)."
            )
        starts, stops = self.token_offsets[wanted], self.token_offsets[wanted + 1]
        offsets = torch.zeros(len(wanted) + 1, dtype=torch.int64)
        offsets[1:] = torch.from_numpy(stops - starts).cumsum(0)
        packed = torch.from_numpy(read_spans(self.tokens, starts, stops))
        return packed, offsets


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that gets the name ``path``, on disk, when the block succeeds."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            f"{path}: a store is written to a new or empty folder; this exists already. "
            "Choose another name, or delete it first."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        for each in temporary.iterdir():
            flush_to_disk(each)
        if path.exists():
            path.rmdir()  # empty, or this fails
        os.rename(temporary, path)
    except BaseException:  # an interrupt must not leave half a store either
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _passage_line(passage: Passage) -> str:
    """One line of JSON; escapes keep lone surrogates, which UTF-8 cannot hold."""
    row = {"id": passage.id, "title": passage.title, "text": passage.text}
    return json.dumps(row, ensure_ascii=True) + "\n"


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode())
    return digest.hexdigest()


def _read_passages(path: Path) -> tuple[list[Passage], str]:
    passages = []
    for place, row in json_rows(path):
        if set(row) != {"id", "title", "text"}:
            raise _damaged(path.parent, f"{place} has the fields {sorted(row)}")
        passages.append(Passage(**row))
    return passages, _digest(map(_passage_line, passages))


def _read_meta(folder: Path) -> StoreMeta:
    path = folder / "meta.json"
    if not path.is_file():
        raise InputError(
            f"{folder}: not a corpus store, or none that was completed: it has no `meta.json`. "
            "Give the folder that `CorpusStore.build` wrote."
        )
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(folder, f"meta.json cannot be read ({error})") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise InputError(
            f"{path}: must say that its format is `{FORMAT}`; it does not. "
            "Give the folder that `CorpusStore.build` wrote."
        )
    if meta.get("version") != VERSION:
        raise InputError(
            f"{path}: this version of the library reads store version {VERSION}; got "
            f"{meta.get('version')!r}. Build the store again."
        )
    try:
        return StoreMeta(**meta)
    except TypeError as error:
        raise _damaged(folder, f"meta.json has other fields ({error})") from error


def _map_array(path: Path) -> np.ndarray:
    try:
        return map_rows(path)
    except (OSError, EOFError, ValueError) as error:
        raise _damaged(path.parent, f"{path.name} cannot be read ({error})") from error


def _damaged(folder: Path, what: str) -> InputError:
    return InputError(f"{folder}: the store is damaged: {what}. Build it again.")
