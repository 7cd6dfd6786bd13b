"""Write the measured tables of README.md from the committed results. Run: `make readme`."""

import json
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    text = README.read_text(encoding="utf-8")
    sections = {
        "quality": quality,
        "measured": demo,
        "jobs": jobs,
        "serving": serving,
        "counts": counts,
        "flow": flow,
    }
    for name, section in sections.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        head, rest = text.split(begin)
        text = head + begin + section() + end + rest.split(end, 1)[1]
    README.write_text(text, encoding="utf-8")


def quality() -> str:
    result = _result("quality")
    rows = []
    for own in result["own_terms"]:
        if own["rule"] in ("default", "ricci ge"):
            rows.append(
                [
                    own["dataset"],
                    {"default": "token transport", "ricci ge": "Ricci-Filtration"}[own["rule"]],
                    f"{own['kept']:.1f}",
                    f"{own['recall']:.3f}",
                    _points(own, "over_fixed_k"),
                ]
            )
    matched = [
        [
            each["dataset"],
            f"{each['budget']:g}",
            f"{each['default']:.3f}",
            f"{each['best_control']:.3f} ({each['control']})",
            _points(each, "difference"),
        ]
        for each in result["verdicts"]
        if each["budget"] in (2.0, 3.0, 5.0)
    ]
    facts = result["facts"]
    return (
        _table(["set", "filter", "kept", "recall", "against fixed k, points"], rows)
        + "\n"
        + _table(["set", "kept", "token transport", "best control", "difference, points"], matched)
        + f"\n`make eval`: gold recall, {facts['encoder']}, {facts['queries']}. Ricci-Filtration "
        f"reads pools of {facts['pool']}, token transport of {facts['default_pool']}, the controls "
        "of either. The fixed k keeps the best by cosine, as many as the filter does; the best "
        "control was chosen on the tuning part. 95 % intervals, 10,000 paired resamples. "
        + _conditions({"conditions": facts["conditions"] | facts["conditions"]["versions"]})
    )


def _points(row: dict[str, Any], name: str) -> str:
    middle, low, high = (100 * row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return f"{middle:+.1f} [{low:+.1f}, {high:+.1f}]"


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
        + f"\n`make demo`: {result['rows'][0]['queries']} questions over {result['passages']} "
        "passages of the Python documentation, pools of 20, all-MiniLM-L6-v2. nDCG@10 of the full "
        "order (survivors, then the dropped) and of the kept alone. " + _conditions(result)
    )


def jobs() -> str:
    result = _result("batch")
    logs = {"scifact": "web searches, SciFact", "squad2": "questions, SQuAD2"}
    rows = [
        [preset, says, f"{each[log]['rows']:,}", f"{each[log]['queries_per_s']:.0f}"]
        for preset, each in result["presets"].items()
        for log, says in logs.items()
    ]
    notes = [
        f"`{preset}`: overhead over the pure computation of the same batches "
        f"{100 * each['overhead']:.1f} %, two processes {each['scaling_1_to_2']:.2f} times one, "
        f"peak memory {each['peak_memory_ratio_60k_to_10k']:.2f} times that of a sixth of the log "
        f"({each['scifact']['peak_mib']:,.0f} MiB)."
        for preset, each in result["presets"].items()
    ]
    head = ["preset", "log, corpus", "rows", "queries/s"]
    return (
        _table(head, rows)
        + "\n`make bench-batch`: one worker of one thread; passages were indexed before. "
        + f"{' '.join(notes)} {_conditions(result)}"
    )


def serving() -> str:
    result = _result("serve")
    rows = []
    for preset, kinds in result["presets"].items():
        for kind, figures in kinds.items():
            for clients, row in figures["clients"].items():
                share = f"{row['share_of_offline']:.2f}"
                latency = [f"{row[name] / 1000:.2f}" for name in ("p50_ms", "p99_ms")]
                rate = f"{row['requests_per_s']:.1f}"
                rows.append([preset, kind, clients, rate, share, *latency])
    flood, kill, fuzz = result["overload"], result["worker_kill"], result["fuzz"]
    head = ["preset", "sent", "clients", "requests/s", "of the engine's rate", "p50 s", "p99 s"]
    return (
        _table(head, rows)
        + f"\n`make bench-serve`: pools of {result['pool']}, one worker of one thread, its server "
        f"and the clients on the same two cores. {flood['seconds']:.0f} s of four times its load: "
        f"{flood['crashes']} crashes, {flood['late']} late answers, memory "
        f"{100 * flood['memory_growth']:+.1f} %. Worker killed: {kill['lost']} requests lost. "
        f"{fuzz['requests']:,} random bodies: {fuzz['status_500']} times 500. {_conditions(result)}"
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
