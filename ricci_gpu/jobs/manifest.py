"""``job.json``: what a job is. Written once by `plan`, never changed afterwards.

=================  ========================================================================
key                meaning
=================  ========================================================================
``format``         ``ricci_gpu batch job``, and its ``version``
``ricci_gpu``      version of the library; another one may compute other scores
``config``         every setting, defaults included
``kind``           ``queries`` (looked up in the index) or ``candidates`` (ready pools)
``index``          folder of the index and SHA-256 of its ``meta.json``; null where the candidates
                   bring what is read of them
``joined``         path, size and role of the flat tables that were joined into the input
``model``          name of the encoder, and fingerprints of it, of a late-interaction model and
                   of a reranker that reads texts; null where vectors are given
``embedding_width``  numbers per given embedding; null where texts are given
``token_width``    numbers per given token vector; null where none are given
``batch_rows``     most queries, and
``batch_tokens``   most passage tokens per batch, as estimated: batches are fixed by the unit and
                   these two, not by the worker
``threads``        threads per worker: they decide the order of additions, so the last bits
``max_failures``   attempts before a unit is set aside
``inputs``         the files in order: path, format, size, footer digest, columns
``units``          in input order: file, first row, rows, where they lie, digest, cost
``sha256``         of all the above
=================  ========================================================================
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ricci_gpu import __version__
from ricci_gpu.config import Config
from ricci_gpu.errors import InputError
from ricci_gpu.output import atomic_file

FORMAT = "ricci_gpu batch job"
VERSION = 2
NAME = "job.json"
POOLS = "pools-*.parquet"  # joined input, made before the job


@dataclass(frozen=True)
class InputFile:
    """One file of the input.

    Args:
        path: absolute, or a URL.
        format: ``jsonl``, ``tsv`` or ``parquet``.
        size: bytes.
        footer_sha256: of the Parquet footer, which holds sizes, places and statistics of every
            column; None for text files, whose units carry a digest each.
        columns: of a TSV file, in their order; None for the other formats.
    """

    path: str
    format: str
    size: int
    footer_sha256: str | None = None
    columns: tuple[str, str] | None = None


@dataclass(frozen=True)
class Unit:
    """Rows that are computed and written together.

    Args:
        file: place of the input file in the manifest.
        first_row, rows: which records of that file, counted from 0; blank lines do not count.
        start, length: of a text file, the bytes (after decompression); of a Parquet file, the row
            group and the first row inside it.
        sha256: digest of those bytes; None for Parquet.
        cost: estimated tokens to read, which orders the queue.
    """

    file: int
    first_row: int
    rows: int
    start: int
    length: int
    sha256: str | None
    cost: int


@dataclass(frozen=True)
class Job:
    """The manifest (module docstring)."""

    config: dict[str, Any]
    kind: str
    index: dict[str, str] | None
    model: dict[str, str] | None
    embedding_width: int | None
    token_width: int | None
    joined: list[dict[str, Any]]
    batch_rows: int
    batch_tokens: int
    threads: int
    max_failures: int
    inputs: tuple[InputFile, ...]
    units: tuple[Unit, ...]
    ricci_gpu: str = __version__

    @property
    def rows(self) -> int:
        return sum(unit.rows for unit in self.units)

    @cached_property
    def sha256(self) -> str:
        """Digest of everything in the manifest; parts carry it."""
        return hashlib.sha256(_canonical(self._tree()).encode()).hexdigest()

    def settings(self) -> Config:
        return Config.from_tree(self.config)

    def place(self, unit: Unit) -> str:
        """The rows of a unit, in words."""
        last = unit.first_row + unit.rows - 1
        return f"{self.inputs[unit.file].path}, rows {unit.first_row} to {last}"

    def save(self, folder: Path) -> None:
        """Write ``job.json``, or leave it when it is this very job.

        Raises:
            InputError: the folder holds another job, or files that are no job's.
        """
        if self.is_in(folder):
            return
        require_new(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / NAME) as temporary:
            temporary.write_text(self._text(), encoding="utf-8")

    def is_in(self, folder: Path) -> bool:
        """Whether the folder holds this very job.

        Raises:
            InputError: it holds another one.
        """
        if not (folder / NAME).is_file():
            return False
        existing = Job.load(folder)
        if existing.sha256 != self.sha256:
            mine, theirs = self._tree(), existing._tree()
            differ = ", ".join(f"`{key}`" for key in mine if mine[key] != theirs[key])
            raise InputError(
                f"{folder}: holds another job; these parts differ: {differ}. Plan into a new "
                "folder, or go on with the job as it was planned."
            )
        return True

    @classmethod
    def load(cls, folder: Path) -> "Job":
        """Read and check ``job.json``.

        Raises:
            InputError: no job, an edited one, or one planned by another version.
        """
        path = folder / NAME
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(
                f"{folder}: not a job: it has no `{NAME}`. Make one with `ricci-gpu batch plan`."
            ) from error
        except ValueError as error:
            raise InputError(f"{path}: cannot be read ({error}). Plan the job again.") from error
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            raise InputError(f"{path}: must say that its format is `{FORMAT}`; it does not.")
        if tree.get("version") != VERSION or tree.get("ricci_gpu") != __version__:
            raise InputError(
                f"{path}: was planned by ricci_gpu {tree.get('ricci_gpu')}; this is {__version__}, "
                "which may give other scores. Finish the job with that version, or plan it again."
            )
        digest = tree.pop("sha256", None)
        if digest != hashlib.sha256(_canonical(tree).encode()).hexdigest():
            raise InputError(
                f"{path}: was changed after planning, so its parts would not fit together. "
                "Restore it, or plan another job into a new folder."
            )
        names = [name for name in cls.__dataclass_fields__ if name not in ("inputs", "units")]
        inputs = (
            InputFile(**each | {"columns": each["columns"] and tuple(each["columns"])})
            for each in tree["inputs"]
        )
        return cls(
            **{name: tree[name] for name in names},
            inputs=tuple(inputs),
            units=tuple(Unit(*each) for each in tree["units"]),
        )

    def _text(self) -> str:
        """As JSON that people can read, with one line per unit."""
        tree = self._tree() | {"sha256": self.sha256}
        units = ",\n  ".join(json.dumps(unit) for unit in tree.pop("units"))
        head = json.dumps(tree, indent=1).removesuffix("\n}")
        return f'{head},\n "units": [\n  {units}\n ]\n}}\n'

    def _tree(self) -> dict[str, Any]:
        tree = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tree["inputs"] = [asdict(each) for each in self.inputs]
        tree["units"] = [list(asdict(unit).values()) for unit in self.units]
        head = {"format": FORMAT, "version": VERSION}
        plain: dict[str, Any] = json.loads(json.dumps(head | tree))  # tuples become lists
        return plain


def require_new(folder: Path) -> None:
    """Refuse a folder that holds anything but a job, or pools that were joined for one."""
    if folder.is_dir():
        if (folder / NAME).is_file() or set(folder.iterdir()) == set(folder.glob(POOLS)):
            return
    elif not folder.exists():
        return
    raise InputError(
        f"{folder}: a job is planned into a new or empty folder; this one holds other files. "
        "Choose another name."
    )


def _canonical(tree: dict[str, Any]) -> str:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))
