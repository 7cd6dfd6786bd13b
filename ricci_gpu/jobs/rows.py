"""Input files cut into units, and the rows of a unit.

A row is a record of a file, counted from 0; blank lines of a text file do not count. A row that
breaks a rule is data: it carries its error to the output, and the other rows go on.

=============  =====================================================================
input          what it holds
=============  =====================================================================
query table    JSONL objects or Parquet columns: an id (``query_id``, ``qid``, ``_id``, ``id``)
               and a text (``query``, ``text``); TSV ``id<TAB>text``, also with a line of names
candidates     JSONL or Parquet, as `ricci_gpu.corpus.candidates` says
=============  =====================================================================
"""

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import IOBase
from pathlib import Path
from typing import Any

from ricci_gpu.corpus.candidates import (
    QUERY_FIELDS,
    CandidateList,
    candidate_ids,
    candidate_list,
)
from ricci_gpu.corpus.columns import batch_rows
from ricci_gpu.corpus.files import file_format, unreadable
from ricci_gpu.corpus.records import Query, as_id, as_text, field
from ricci_gpu.errors import InputError
from ricci_gpu.jobs.files import file_size, footer_sha256, open_parquet, open_text
from ricci_gpu.jobs.manifest import InputFile, Job, Unit

QUERY_ID = ("query_id", "qid", "_id", "id")
TEXT = ("query", "text")
CANDIDATE_ID = ("query_id", "_id", "id")
NEEDED = {"queries": (QUERY_ID, TEXT), "candidates": (CANDIDATE_ID, ("candidates",))}
UNIT_BYTES = 1 << 28  # a unit is cut here, so that long rows cannot fill the memory of a worker
BYTES_PER_TOKEN = 4  # a rough mean over languages and tokenizers; costs and batch sizes use it


@dataclass(frozen=True)
class Row:
    """One record of the input.

    Args:
        row: its number in the file.
        query_id: None where it cannot be told.
        record: what to rank; None where there is an error.
        error: which rule the record breaks.
    """

    row: int
    query_id: str | None
    record: Query | CandidateList | None
    error: str | None


def plan_file(path: str, file: int, kind: str, unit_rows: int) -> tuple[InputFile, list[Unit]]:
    """The units of one input file; `Unit.cost` counts the tokens in the file itself.

    Raises:
        InputError: an unknown format, an unreadable file, or one that was cut off.
    """
    known = ("jsonl", "tsv", "parquet") if kind == "queries" else ("jsonl", "parquet")
    format_ = file_format(Path(path), known)
    if format_ == "parquet":
        return _plan_parquet(path, file, kind, unit_rows)
    return _plan_text(path, file, format_, unit_rows)


def read_unit(job: Job, unit: Unit) -> list[Row]:
    """The rows of a unit, in order.

    Raises:
        InputError: the file cannot be read, or is not the one that was planned.
    """
    source = job.inputs[unit.file]
    values = enumerate(_values(job, unit), start=unit.first_row)
    rows = [_row(value, row, source.path, job) for row, value in values]
    if len(rows) != unit.rows:
        raise changed(source.path, f"a unit of {unit.rows} rows has {len(rows)}")
    return rows


def first_candidates(job: Job) -> tuple[CandidateList | None, str]:
    """The first good row of a job over candidates, or None and why its first row is not good."""
    why = ""
    for value in _values(job, job.units[0]):
        try:
            if isinstance(value, InputError):
                raise value
            return _candidates(value, job.inputs[0].path, job), ""
        except InputError as error:
            why = why or str(error)
    return None, why


def changed(path: str, how: str) -> InputError:
    """The error for a file that is not the one that was planned."""
    return InputError(
        f"{path}: was changed after the job was planned ({how}). Restore the file, or plan another "
        "job into a new folder."
    )


def _values(job: Job, unit: Unit) -> Iterator["Mapping[str, Any] | InputError"]:
    source = job.inputs[unit.file]
    if file_size(source.path) != source.size:
        raise changed(source.path, "its size differs")
    if source.format == "parquet":
        return _parquet_values(source, unit, job.kind)
    return _text_values(source, unit)


def _row(value: "Mapping[str, Any] | InputError", row: int, path: str, job: Job) -> Row:
    place = f"{path}, row {row}"
    query_id = None
    try:
        if isinstance(value, InputError):
            raise value
        query_id = as_id(field(value, NEEDED[job.kind][0], place), place)
        if job.kind == "queries":
            text = as_text(field(value, TEXT, place), place)
            return Row(row, query_id, Query(query_id, text), None)
        candidates = _candidates(value, place, job)
        _require_widths(candidates, job, place)
    except InputError as error:
        return Row(row, query_id, None, str(error))
    return Row(row, query_id, candidates, None)


def _candidates(value: Mapping[str, Any], place: str, job: Job) -> CandidateList:
    return candidate_list(value, place) if job.index is None else candidate_ids(value, place)


def _require_widths(candidates: CandidateList, job: Job, place: str) -> None:
    """All rows of a job bring vectors of one width, or none does."""
    for what, width, given in (
        ("embeddings", job.embedding_width, candidates.query_embedding),
        ("token vectors", job.token_width, candidates.query_tokens),
    ):
        mine = None if given is None else given.shape[-1]
        if mine != width:
            expected = f"no {what}" if width is None else f"{what} of {width} numbers"
            got = "none" if mine is None else f"{mine}"
            raise InputError(
                f"{place}: all rows of a job bring {what} of one length, or none does; this job "
                f"began with {expected} and this row has {got}. Split the input in two."
            )


def _plan_text(path: str, file: int, format_: str, unit_rows: int) -> tuple[InputFile, list[Unit]]:
    units: list[Unit] = []
    columns: tuple[str, str] | None = None
    try:
        with open_text(path) as lines:
            start = row = 0
            if format_ == "tsv":
                columns, start = _tsv_columns(lines)
                lines.seek(start)
            while True:
                rows, length, digest = _next_lines(lines, unit_rows)
                if length == 0:
                    break
                if rows == 0:  # a long stretch of blank lines
                    start += length
                    continue
                cost = length // BYTES_PER_TOKEN + rows
                units.append(Unit(file, row, rows, start, length, digest, cost))
                row, start = row + rows, start + length
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"{path}: cannot be read to its end ({error}). Copy or download it again."
        ) from error
    return InputFile(path, format_, file_size(path), columns=columns), units


def _next_lines(lines: IOBase, most: int) -> tuple[int, int, str]:
    """Up to ``most`` lines that are not blank: their number, bytes with blank lines, digest."""
    rows = length = 0
    digest = hashlib.sha256()
    while rows < most and length < UNIT_BYTES and (line := lines.readline()):
        rows += bool(line.strip())
        length += len(line)
        digest.update(line)
    return rows, length, digest.hexdigest()


def _tsv_columns(lines: IOBase) -> tuple[tuple[str, str], int]:
    """Order of the columns, and where the rows begin: after a line of names, if there is one."""
    first = lines.readline()
    names = [cell.strip() for cell in first.decode("utf-8-sig", "replace").split("\t")]
    if len(names) == 2:
        if names[0] in QUERY_ID and names[1] in TEXT:
            return ("id", "text"), len(first)
        if names[0] in TEXT and names[1] in QUERY_ID:
            return ("text", "id"), len(first)
    return ("id", "text"), 0


def _text_values(source: InputFile, unit: Unit) -> Iterator["Mapping[str, Any] | InputError"]:
    try:
        with open_text(source.path) as file:
            file.seek(unit.start)
            content = file.read(unit.length)
    except (EOFError, OSError, zlib.error) as error:
        raise unreadable(Path(source.path), OSError(str(error))) from error
    if hashlib.sha256(content).hexdigest() != unit.sha256:
        raise changed(source.path, f"from row {unit.first_row} on")
    if unit.start == 0:
        content = content.removeprefix(b"\xef\xbb\xbf")
    row = unit.first_row
    for line in content.split(b"\n"):
        if line.strip():
            try:
                yield _parse_line(line, source, f"{source.path}, row {row}")
            except InputError as error:
                yield error
            row += 1


def _parse_line(line: bytes, source: InputFile, place: str) -> Mapping[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: text must be UTF-8 ({error.reason}). Convert it.") from error
    if source.columns is not None:
        cells = [cell.strip() for cell in text.split("\t")]
        if len(cells) != 2:
            raise InputError(
                f"{place}: must be `{'<TAB>'.join(source.columns)}`; got {len(cells)} "
                f"cell{'s' * (len(cells) != 1)}: {text[:60]!r}. Correct the line."
            )
        return dict(zip(source.columns, cells, strict=True))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{place}: each line must be one JSON object; this one cannot be read ({error})."
        ) from error
    if not isinstance(value, dict):
        raise InputError(f"{place}: each line must be one JSON object; got {text[:60]!r}.")
    return value


def _plan_parquet(path: str, file: int, kind: str, unit_rows: int) -> tuple[InputFile, list[Unit]]:
    digest = footer_sha256(path)
    units: list[Unit] = []
    row = 0
    with open_parquet(path) as parquet:
        columns = _columns(parquet.schema_arrow.names, kind, path)
        for group in range(parquet.num_row_groups):
            meta = parquet.metadata.row_group(group)
            size = sum(
                meta.column(each).total_uncompressed_size
                for each in range(meta.num_columns)
                if meta.column(each).path_in_schema.split(".")[0] in columns
            )
            most = max(1, min(unit_rows, UNIT_BYTES * meta.num_rows // max(size, 1)))
            for first in range(0, meta.num_rows, most):
                rows = min(most, meta.num_rows - first)
                cost = size * rows // meta.num_rows // BYTES_PER_TOKEN + rows
                units.append(Unit(file, row, rows, group, first, None, cost))
                row += rows
    return InputFile(path, "parquet", file_size(path), footer_sha256=digest), units


def _parquet_values(source: InputFile, unit: Unit, kind: str) -> Iterator[dict[str, Any]]:
    if footer_sha256(source.path) != source.footer_sha256:
        raise changed(source.path, "its footer differs")
    group, first = unit.start, unit.length
    with open_parquet(source.path) as parquet:
        columns = _columns(parquet.schema_arrow.names, kind, source.path)
        seen = 0
        for batch in parquet.iter_batches(
            batch_size=unit.rows, row_groups=[group], columns=columns
        ):
            begin, end = max(first - seen, 0), min(first + unit.rows - seen, batch.num_rows)
            if begin < end:
                yield from batch_rows(batch.slice(begin, end - begin))
            seen += batch.num_rows
            if seen >= first + unit.rows:
                break


def _columns(names: Sequence[str], kind: str, path: str) -> list[str]:
    """The columns to read; their absence is an error of the file, not one of every row."""
    chosen = []
    for choice in NEEDED[kind]:
        found = next((name for name in choice if name in names), None)
        if found is None:
            listed = " or ".join(f"`{each}`" for each in choice)
            present = ", ".join(f"`{each}`" for each in names)
            raise InputError(
                f"{path}: {kind} need a column {listed}; found {present}. Rename the column, or "
                "give another kind of input."
            )
        chosen.append(found)
    optional = QUERY_FIELDS if kind == "candidates" else ()
    return chosen + [name for name in optional if name in names]
