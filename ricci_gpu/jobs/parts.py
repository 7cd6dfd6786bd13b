"""Output files: the part of a unit, and the merged file, which has the same columns.

One row per row of the input, in its order, whatever became of it:

==============  ============  ==============================================================
column          type          meaning
==============  ============  ==============================================================
``file``        string        input file, as in ``job.json``
``row``         int64         record of that file, from 0: with ``file`` the key of the row
``query_id``    string        null where the record has none; may come more than once
``status``      string        how the treatment went (``ok``, ...), or ``error``
``abstention``  float64       higher: something relevant is more likely in the pool; or null
``hits``        list<struct>  kept candidates, best first, at most ``top_k``
``dropped``     list<struct>  all other candidates, in order
``error``       string        which rule the row breaks; null where there is none
==============  ============  ==============================================================

A candidate is ``position`` int64 (in the pool as given or retrieved, from 0), ``id`` string,
``score`` float64 (raw, larger is better, or null), ``kept`` bool, ``reason`` string and
``filter_value`` float64 (what the filter compared, or null). The bytes of a part depend on the job
and on the versions of this library, torch and pyarrow, on nothing else.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ricci_gpu.errors import InputError, missing
from ricci_gpu.jobs.compute import Answer
from ricci_gpu.jobs.manifest import Job, Unit
from ricci_gpu.output import Hit, Ranking, atomic_file, candidate_columns, finite, printable

JOB_KEY, UNIT_KEY = b"ricci_gpu.job", b"ricci_gpu.unit"
NO_RANKING = Ranking("", "", [], [], "error", None)


def schema() -> Any:
    """Columns of a part (module docstring)."""
    pa = _pyarrow()
    candidates = pa.list_(pa.struct(_candidate_fields(pa)))
    return pa.schema(
        [
            pa.field("file", pa.string(), nullable=False),
            pa.field("row", pa.int64(), nullable=False),
            pa.field("query_id", pa.string()),
            pa.field("status", pa.string(), nullable=False),
            pa.field("abstention", pa.float64()),
            pa.field("hits", candidates, nullable=False),
            pa.field("dropped", candidates, nullable=False),
            pa.field("error", pa.string()),
        ]
    )


def write_part(path: Path, job: Job, unit: int, answers: Sequence[Answer]) -> None:
    """Write the answers of a unit, in the order of its rows, so that the file is whole or absent.

    Raises:
        OSError: a full disk, a share that went away.
    """
    pa = _pyarrow()
    import pyarrow.parquet as pq

    answers = sorted(answers, key=lambda answer: answer.row.row)
    rankings = [answer.ranking or NO_RANKING for answer in answers]
    columns: dict[str, Any] = {
        "file": pa.array([job.inputs[job.units[unit].file].path] * len(answers), pa.string()),
        "row": pa.array([answer.row.row for answer in answers], pa.int64()),
        "query_id": pa.array([_text(answer.row.query_id) for answer in answers], pa.string()),
        "status": pa.array([each.status for each in rankings], pa.string()),
        "abstention": pa.array([finite(each.abstention) for each in rankings], pa.float64()),
        "hits": _candidates(pa, [each.hits for each in rankings]),
        "dropped": _candidates(pa, [each.dropped for each in rankings]),
        "error": pa.array([_text(answer.error) for answer in answers], pa.string()),
    }
    keys = {JOB_KEY: job.sha256, UNIT_KEY: str(unit)}
    table = pa.table(columns, schema=schema().with_metadata(keys))
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_part(path: Path, job: Job, unit: int) -> Any:
    """A part as an Arrow table, which holds each row of its unit exactly once, in order.

    Raises:
        InputError: damaged, of another job or unit, or with other rows; the message says which.
    """
    pa = _pyarrow()
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise _wrong(path, f"it cannot be read ({str(error).splitlines()[0]})") from error
    keys = table.schema.metadata or {}
    if keys.get(JOB_KEY) != job.sha256.encode() or keys.get(UNIT_KEY) != str(unit).encode():
        raise _wrong(path, "it belongs to another job or unit")
    keys_there = list(zip(table["file"].to_pylist(), table["row"].to_pylist(), strict=True))
    problem = _key_problem(keys_there, job, job.units[unit])
    if problem is not None:
        raise _wrong(path, problem)
    return table


def _key_problem(have: list[tuple[str, int]], job: Job, unit: Unit) -> str | None:
    path = job.inputs[unit.file].path
    wanted = [(path, unit.first_row + at) for at in range(unit.rows)]
    if have == wanted:
        return None
    counts = Counter(have)
    named = {
        "lacks": sorted(set(wanted) - set(have)),
        "has more than once": sorted(key for key, count in counts.items() if count > 1),
        "should not have": sorted(set(have) - set(wanted)),
    }
    said = [
        f"it {what} row {keys[0][1]} of {keys[0][0]}"
        + (f" and {len(keys) - 1} more" if len(keys) > 1 else "")
        for what, keys in named.items()
        if keys
    ]
    return "; ".join(said) or "its rows are not in the order of the input"


def _wrong(path: Path, problem: str) -> InputError:
    return InputError(f"{path}: {problem}. Delete this part and run the job again")


def rankings_of(table: Any) -> Iterator[Ranking]:
    """The rankings in a part, with their hits; the text of a query is not in there."""
    for row in table.select(["query_id", "status", "abstention", "hits"]).to_pylist():
        hits = [Hit(**hit) for hit in row["hits"]]
        yield Ranking(row["query_id"] or "", "", hits, [], row["status"], row["abstention"])


def _candidate_fields(pa: Any) -> list[Any]:
    return [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("kept", pa.bool_(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("filter_value", pa.float64()),
    ]


def _candidates(pa: Any, lists: list[list[Hit]]) -> Any:
    """Nested candidates from flat columns: no object is made per row."""
    offsets = list(accumulate(map(len, lists), initial=0))
    columns = candidate_columns([hit for each in lists for hit in each])
    fields = _candidate_fields(pa)
    arrays = [pa.array(columns[field.name], field.type) for field in fields]
    structs = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)


def _text(text: str | None) -> str | None:
    return None if text is None else printable(text)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise missing("pyarrow", "a job, whose parts are Parquet files,", "io") from error
    return pyarrow
