"""Write the measured tables of README.md from the committed results. Run: `make readme`."""

import json
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    text = README.read_text(encoding="utf-8")
    for name, section in {"measured": demo, "counts": counts, "flow": flow}.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        head, rest = text.split(begin)
        text = head + begin + section() + end + rest.split(end, 1)[1]
    README.write_text(text, encoding="utf-8")


def demo() -> str:
    result = _result("demo")
    rows = [
        [
            row["name"],
            f"{row['mean_kept']:.1f}",
            f"{row['gold_recall']:.3f}",
            f"{row['ndcg_full']:.3f}",
            f"{row['ndcg_survivors']:.3f}",
            _rate(row["filter_per_s"]),
            _rate(row["rerank_per_s"]),
        ]
        for row in result["rows"]
    ]
    head = ["", "kept", "recall", "nDCG@10", "of the kept", "filter/s", "rerank/s"]
    return (
        _table(head, rows)
        + f"\n`make demo`: {result['queries']} questions over {result['passages']} passages of the "
        "Python documentation, pools of 20, all-MiniLM-L6-v2. nDCG@10 of the full order "
        "(survivors, then the dropped) and of the kept alone. " + _conditions(result)
    )


def counts() -> str:
    result = _result("mean_kept")
    rows = [
        [
            row["setting"].removeprefix("filter.") or "preset",
            str(row["k"]),
            f"{row['mean']:.2f}",
            str(row["published"]),
        ]
        for row in result["rows"]
    ]
    note = f"\n{result['queries']} queries of each of three datasets. {_conditions(result)}"
    return _table(["setting", "pool", "kept here", "published"], rows) + note


def flow() -> str:
    result = _result("flow")
    rows = []
    for row in result["rows"]:
        ms = row["ms_per_query"]
        for route in sorted(ms, key=ms.__getitem__):
            agreement = row["agreement"].get(route)
            rows.append(
                [
                    row["rule"],
                    route,
                    f"{ms[route]:.2f}",
                    f"{ms['pot_loop'] / ms[route]:.1f}",
                    "the reference" if agreement is None else f"{100 * agreement:.2f} %",
                ]
            )
    head = ["rule", "route", "CPU ms/query", "times the POT loop's speed", "decisions as exact"]
    return (
        _table(head, rows)
        + f"\n`make bench-flow`: {result['rows'][0]['queries']} SciFact pools per rule, k = 20, 20 "
        "steps, one thread, CPU time, one run. The POT loop calls its network simplex directly on "
        "problems whose common mass is cancelled; its agreement with `exact` stands in `exact`'s "
        "row. " + _samples(result["rows"]) + _conditions(result)
    )


def _samples(rows: list[dict[str, Any]]) -> str:
    each = " and ".join(f"{row['pot_us_per_transport']:.0f}" for row in rows)
    return (
        f"The POT loop ran on {rows[0]['pot_queries']} of them ({each} us per transport here), "
        f"GraphRicciCurvature on {rows[0]['grc_queries']}, GeomLoss on "
        f"{rows[0]['geomloss_queries']}. "
    )


def _result(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _rate(per_second: float | None) -> str:
    return "-" if per_second is None else f"{per_second:,.0f}"


def _conditions(result: dict[str, Any]) -> str:
    c = result["conditions"]
    return (
        f"{c['machine']}, load {c['load_average']:.1f}, torch {c['torch']}, commit {c['commit']}, "
        f"{c['date']}.\n"
    )


if __name__ == "__main__":
    main()
