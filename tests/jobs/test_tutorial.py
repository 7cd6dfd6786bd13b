"""Each command block of docs/batch.md runs, in order, on the small input that it makes."""

import re
import shlex
import subprocess
from pathlib import Path

import pyarrow.parquet as pq

from ricci_gpu.cli import main

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "batch.md").read_text(encoding="utf-8")
FORMATS = (DOCS / "formats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def run_block(block: str, start) -> None:
    """Commands of ours run here, except for those that start processes; the rest is for bash."""
    rest: list[str] = []
    for line in block.splitlines(keepends=True):
        if not line.startswith("ricci-gpu "):
            rest.append(line)
            continue
        run_bash(rest)
        words = shlex.split(line)[1:]
        if "--workers" in words:
            process = start(*words[1:])
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 0, said
        else:
            assert main(words) == 0, line
    run_bash(rest)


def run_bash(lines: list[str]) -> None:
    if lines:
        subprocess.run(["bash", "-euc", "".join(lines)], check=True, timeout=60)
        lines.clear()


def test_the_tutorial_runs(tmp_path, monkeypatch, start, capfd):
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        run_block(block, start)
    said = capfd.readouterr().out
    assert "rows/s per worker" in said
    assert said.count("complete: every row of the input is in the output exactly once") == 3
    rows = pq.read_table("ranked/merged.parquet").to_pylist()
    assert [row["query_id"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert all(row["hits"] for row in rows)


def test_the_schema_is_the_one_that_is_told():
    from ricci_gpu.jobs.parts import schema

    out = FORMATS.split("## Output")[1]
    told = re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", out, re.MULTILINE)
    types = {"double": "float64", "string": "string", "int64": "int64", "bool": "bool"}
    fields = [*schema(), *schema().field("hits").type.value_type]
    assert told == [(each.name, types.get(str(each.type), "list of structs")) for each in fields]


def test_the_names_of_fields_are_those_that_are_told():
    from ricci_gpu.jobs.tables import FLAT_CANDIDATES, QUERIES

    for table in (QUERIES, FLAT_CANDIDATES):
        for names in table.names.values():
            assert all(f"`{name}`" in FORMATS for name in names)
