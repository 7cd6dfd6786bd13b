"""The results of an evaluation as files: one JSON document, a CSV per table, the HTML report.

The document holds every figure; the tables, the report and the last line of the command are made
from it and compute nothing.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from ricci_gpu.evaluation.report import render
from ricci_gpu.output import atomic_file

TABLES = (
    "overall",
    "protocol",
    "ablations",
    "answers",
    "verdicts",
    "matched_budget",
    "own_terms",
    "null_queries",
    "latency",
    "ladder",
    "variants",
)
NULL_SUMMARY = ("default", "max_cosine", "maxsim_contrast", "free_energy_contrast", "cosine_gap")


def rows_of(table: Sequence[Any]) -> list[dict[str, Any]]:
    """Dataclass rows as plain ones; an interval becomes ``NAME``, ``NAME_low``, ``NAME_high``."""
    return [flat(row) for row in table]


def flat(row: Any) -> dict[str, Any]:
    """One row as flat values."""
    assert is_dataclass(row)
    assert not isinstance(row, type)
    values: dict[str, Any] = {}
    for name, value in asdict(row).items():
        if isinstance(value, dict):  # a Difference
            values |= {name: value["mean"], f"{name}_low": value["low"]}
            values[f"{name}_high"] = value["high"]
        else:
            values[name] = value
    return values


def write_results(document: Mapping[str, Any], folder: Path, stem: str) -> list[Path]:
    """``STEM.json``, ``STEM_TABLE.csv`` and ``STEM.html`` in the folder; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{stem}.json"]
    _write(paths[0], json.dumps(document, indent=1, allow_nan=False) + "\n")
    for name in TABLES:
        if document[name]:
            paths.append(folder / f"{stem}_{name}.csv")
            _write_csv(paths[-1], document[name])
    paths.append(folder / f"{stem}.html")
    _write(paths[-1], render(document))
    return paths


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """The one object of the last line."""
    datasets: dict[str, Any] = {}
    for step in document["ladder"]:
        entry = datasets.setdefault(
            step["dataset"], {"dense_ndcg10": step["ndcg10"], "best_ndcg10": None, "ladder": {}}
        )
        entry["ladder"][step["step"]] = {
            key: step[key] for key in ("ndcg10", "recall100", "ms_own", "ms_cumulative")
        }
        # The last step adds every signal with the weight that was best on the tuning part.
        entry["best_ndcg10"] = step["ndcg10"]
    budgets: dict[str, dict[str, Any]] = {}
    for row in document["verdicts"]:
        budgets.setdefault(row["dataset"], {})[f"{row['budget']:g}"] = {
            "default": row["default"],
            "best_control": row["best_control"],
            "control": row["control"],
            "delta": row["difference"],
            "ci95": [row["difference_low"], row["difference_high"]],
        }
    nulls: dict[str, dict[str, float]] = {}
    for row in document["null_queries"]:
        if row["kind"] == "gold removed" and row["feature"] in NULL_SUMMARY:
            nulls.setdefault(row["dataset"], {})[row["feature"]] = row["auc"]
    return {
        "bench": "quality",
        "datasets": datasets,
        "matched_budget": budgets,
        "null_auc": nulls,
    }


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {
                name: round(value, 6) if isinstance(value, float) else value
                for name, value in row.items()
            }
            for row in rows
        )
