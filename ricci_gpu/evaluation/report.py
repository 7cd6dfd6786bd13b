"""The report: one HTML file that loads nothing, made from the document of an evaluation."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from ricci_gpu.evaluation.plots import Series, bar_chart, xy_chart
from ricci_gpu.explain.markup import Markup, join, number, scrolling, tag

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
Row = Mapping[str, Any]


def render(document: Mapping[str, Any]) -> str:
    """The report as text."""
    style = "".join(
        files(package).joinpath(name).read_text(encoding="utf-8")
        for package, name in (
            ("ricci_gpu.explain", "page.css"),
            ("ricci_gpu.evaluation", "report.css"),
        )
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", "What does geometry buy?"),
        tag("style", Markup(style)),
    )
    sections = (
        _overall,
        _matched_budget,
        _own_terms,
        _null_queries,
        _ladder,
        _protocol,
        _ablations,
        _answers,
        _latency,
        _variants,
    )
    body = tag("main", _header(document), *(section(document) for section in sections))
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _header(document: Mapping[str, Any]) -> Markup:
    facts = document["facts"]
    shown = [
        ("pool", facts["pool"]),
        ("encoder", facts["encoder"]),
        ("rerankers", ", ".join(facts["rerankers"]) or "none with a model"),
        ("default", facts["default"]),
        ("seed", facts["seed"]),
        ("queries", facts["queries"]),
        ("machine", facts["conditions"]["machine"]),
        ("load", facts["conditions"]["load_average"]),
        ("commit", facts["conditions"]["commit"]),
        ("date", facts["conditions"]["date"]),
    ]
    versions = ", ".join(f"{k} {v}" for k, v in facts["conditions"]["versions"].items())
    absent = document["absent"]
    return tag(
        "header",
        tag("p", "ricci_gpu evaluation", class_="kicker"),
        tag("h1", "What does geometry buy?"),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", str(value))) for name, value in shown)),
        tag("p", versions, class_="quiet"),
        tag(
            "p",
            "Settings, thresholds and the best control were chosen on the tuning part of each "
            "dataset; every figure is of the test part unless it says otherwise. Intervals: paired "
            "bootstrap over queries, 95 %, 10,000 resamples. Recall counts relevant passages that "
            "were never retrieved as missed.",
        ),
        *(
            [tag("p", tag("strong", "Left out: "), "; ".join(absent) + ".", class_="note")]
            if absent
            else []
        ),
    )


def _overall(document: Mapping[str, Any]) -> Markup:
    return tag(
        "section",
        tag("h2", "Over all datasets"),
        tag("p", "Differences in points, every dataset with the same weight."),
        _table(
            ["measure", "ours", "theirs", "part", "difference"],
            [
                [
                    row["measure"],
                    row["ours"],
                    row["theirs"],
                    row["part"],
                    _interval(row, "difference"),
                ]
                for row in document["overall"]
            ],
        ),
    )


def _matched_budget(document: Mapping[str, Any]) -> Markup:
    parts = [
        tag("h2", "Gold recall at the same mean number kept"),
        tag(
            "p",
            "The configured filter against the control that was best on the tuning part. The "
            "difference is on the test part; the last column is the same on the tuning part.",
        ),
        _table(
            ["dataset", "kept", "default", "best control", "its recall", "difference", "on tuning"],
            [
                [
                    row["dataset"],
                    f"{row['budget']:g}",
                    _percent(row["default"]),
                    row["control"],
                    _percent(row["best_control"]),
                    _interval(row, "difference"),
                    _interval(row, "difference_tune"),
                ]
                for row in document["verdicts"]
            ],
        ),
    ]
    for dataset, curves in document["curves"].items():
        parts.append(tag("h3", dataset))
        own = [row for row in document["own_terms"] if row["dataset"] == dataset]
        series = [Series(name, points) for name, points in curves.items()]
        series.append(
            Series(
                "rules on their own terms",
                [(row["kept"], row["recall"]) for row in own],
                "dots",
                [row["rule"] for row in own],
            )
        )
        parts.append(_chart(xy_chart(series, "mean kept", "gold recall"), f"recall, {dataset}"))
        rows = [row for row in document["matched_budget"] if row["dataset"] == dataset]
        parts.append(_details(f"All rules on {dataset}", _budget_table(rows)))
    return tag("section", *parts)


def _budget_table(rows: Sequence[Row]) -> Markup:
    return _table(
        [
            "rule",
            "kind",
            "kept",
            "recall",
            "precision",
            "over fixed k",
            "default over it",
            "recall on tuning",
            "kept at the tuned cut",
            "recall there",
        ],
        [
            [
                row["rule"],
                row["kind"],
                f"{row['budget']:g}",
                _percent(row["recall"]),
                _percent(row["precision"]),
                _interval(row, "over_fixed_k"),
                _interval(row, "default_over"),
                _percent(row["recall_tune"]),
                f"{row['tuned_cut_kept']:.2f}",
                _percent(row["tuned_cut_recall"]),
            ]
            for row in rows
        ],
    )


def _own_terms(document: Mapping[str, Any]) -> Markup:
    parts = [
        tag("h2", "Rules on their own terms"),
        tag(
            "p",
            "What each rule keeps without a budget, beside the best k by cosine and the configured "
            "filter at the same mean number.",
        ),
        _table(
            [
                "rule",
                "dataset",
                "kept",
                "recall",
                "precision",
                "F1",
                "empty",
                "fixed k there",
                "over fixed k",
                "default there",
                "default over it",
            ],
            [
                [
                    row["rule"],
                    row["dataset"],
                    f"{row['kept']:.2f}",
                    _percent(row["recall"]),
                    _percent(row["precision"]),
                    _percent(row["f1"]),
                    _percent(row["empty_rate"]),
                    _percent(row["fixed_k_recall"]),
                    _interval(row, "over_fixed_k"),
                    _percent(row["default_recall"]),
                    _interval(row, "default_over"),
                ]
                for row in document["own_terms"]
            ],
        ),
    ]
    for dataset, counts in document["kept_counts"].items():
        parts.append(tag("h3", f"Number kept, {dataset}"))
        chart = bar_chart(list(counts.items()), "kept", "share of queries")
        parts.append(_chart(chart, f"number kept, {dataset}"))
    return tag("section", *parts)


def _null_queries(document: Mapping[str, Any]) -> Markup:
    parts = [
        tag("h2", "Pools without an answer"),
        tag(
            "p",
            "AUC of telling pools with an answer from pools without one, and the share of "
            "answerable questions still answered when half of the others are turned away. The "
            "paper reports its largest gain on null queries, 60.8 to 83.4 % right answers of a "
            "generator; the question here is whether any number that a filter has at hand tells "
            "such pools apart.",
        ),
        _table(
            ["feature", "dataset", "null pools", "AUC", "over max cosine", "answered at half"],
            [
                [
                    row["feature"],
                    row["dataset"],
                    row["kind"],
                    f"{row['auc']:.3f} [{row['auc_low']:.3f}, {row['auc_high']:.3f}]",
                    f"{row['over_max_cosine']:+.3f} [{row['over_max_cosine_low']:+.3f}, "
                    f"{row['over_max_cosine_high']:+.3f}]",
                    _percent(row["answered_at_half"]),
                ]
                for row in document["null_queries"]
            ],
        ),
    ]
    for title, curves in document["null_curves"].items():
        series = [Series(name, points) for name, points in curves.items()]
        parts.append(tag("h3", f"Abstention, {title}"))
        chart = xy_chart(series, "null queries turned away", "answerable queries answered")
        parts.append(_chart(chart, f"abstention, {title}"))
    return tag("section", *parts)


def _ladder(document: Mapping[str, Any]) -> Markup:
    parts = [
        tag("h2", "The ladder"),
        tag(
            "p",
            "From dense retrieval over the whole corpus, one step at a time. Weights are chosen on "
            "the tuning part. Times are of this run on this machine.",
        ),
    ]
    for dataset in dict.fromkeys(row["dataset"] for row in document["ladder"]):
        rows = [row for row in document["ladder"] if row["dataset"] == dataset]
        parts.append(tag("h3", dataset))
        parts.append(
            _table(
                ["step", "setting", "nDCG@10", "R@100", "over dense", "ms", "ms in all", "tuning"],
                [
                    [
                        row["step"],
                        row["setting"],
                        f"{row['ndcg10']:.4f}",
                        f"{row['recall100']:.4f}",
                        _interval(row, "over_dense"),
                        f"{row['ms_own']:.2f}",
                        f"{row['ms_cumulative']:.2f}",
                        f"{row['ndcg10_tune']:.4f}",
                    ]
                    for row in rows
                ],
            )
        )
        series = [
            Series(
                row["step"],
                [(max(row["ms_cumulative"], 1e-3), row["ndcg10"])],
                "dots",
                [row["step"]],
            )
            for row in rows
        ]
        chart = xy_chart(series, "ms per query", "nDCG@10", logarithmic_x=True)
        parts.append(_chart(chart, f"nDCG against latency, {dataset}"))
    return tag("section", *parts)


def _protocol(document: Mapping[str, Any]) -> Markup:
    return tag(
        "section",
        tag("h2", "The protocol of Ricci-Filtration"),
        tag(
            "p",
            "Every system takes the same dense pool and hands out five passages. Full: survivors "
            "first, then the dropped; survivors: what was dropped counts as missed.",
        ),
        _table(
            [
                "system",
                "dataset",
                "queries",
                "kept",
                "empty",
                "gold recall",
                "nDCG@10 full",
                "nDCG@10 survivors",
                "R@5",
                "P@5",
                "success@5",
                "MRR@10",
                "over no reranker",
            ],
            [
                [
                    row["system"],
                    row["dataset"],
                    str(row["queries"]),
                    f"{row['kept']:.2f}",
                    _percent(row["empty_rate"]),
                    _percent(row["gold_recall"]),
                    f"{row['ndcg_full']:.4f}",
                    f"{row['ndcg_survivors']:.4f}",
                    _percent(row["recall_5"]),
                    _percent(row["precision_5"]),
                    _percent(row["success_5"]),
                    f"{row['mrr']:.4f}",
                    _interval(row, "over_plain"),
                ]
                for row in document["protocol"]
            ],
        ),
    )


def _ablations(document: Mapping[str, Any]) -> Markup:
    rows = document["ablations"]
    parts = [
        tag("h2", "Its ablations"),
        tag(
            "p",
            "One change at a time. Published: mean kept, and answer accuracy in percent with a "
            "commercial generator over about a hundred questions of other datasets and other "
            "embeddings, where one point is one question and the standard error is 4.5 points. The "
            "counts compare; accuracy does not, and is printed for orientation. On HotpotQA the "
            "paper itself reports 67.0 for its filter and 72.5 for a cross-encoder without it.",
        ),
        _table(
            [
                "change",
                "dataset",
                "then",
                "queries",
                "kept",
                "published",
                "gold recall",
                "fixed k there",
                "nDCG@10 survivors",
                "R@5",
                "published accuracy",
            ],
            [
                [
                    row["change"],
                    row["dataset"],
                    row["reranker"],
                    str(row["queries"]),
                    f"{row['kept']:.2f}",
                    number(row["published_kept"]),
                    _percent(row["gold_recall"]),
                    _percent(row["fixed_k_recall"]),
                    f"{row['ndcg_survivors']:.4f}",
                    _percent(row["recall_5"]),
                    number(row["published_accuracy"]),
                ]
                for row in rows
            ],
        ),
    ]
    for setting, curves in document["ablation_curves"].items():
        series = [Series(name, points) for name, points in curves.items()]
        parts.append(tag("h3", setting))
        chart = xy_chart(series, setting, "gold recall minus that of fixed k")
        parts.append(_chart(chart, f"ablation of {setting}"))
    return tag("section", *parts) if rows else Markup("")


def _answers(document: Mapping[str, Any]) -> Markup:
    if not document["answers"]:
        return Markup("")
    return tag(
        "section",
        tag("h2", "Answers"),
        tag("p", document["facts"]["generator"]),
        _table(
            ["system", "dataset", "questions", "accuracy", "precision", "recall", "F1"],
            [
                [
                    row["system"],
                    row["dataset"],
                    str(row["questions"]),
                    *(_percent(row[name]) for name in ("accuracy", "precision", "recall", "f1")),
                ]
                for row in document["answers"]
            ],
        ),
    )


def _latency(document: Mapping[str, Any]) -> Markup:
    return tag(
        "section",
        tag("h2", "Time and memory"),
        tag(
            "p",
            "Each stage alone on the same ready pools: milliseconds per query in one batch, median "
            "milliseconds of a query that comes alone, and memory beyond what was held before.",
        ),
        _table(
            ["stage", "role", "pool", "queries", "ms in a batch", "ms alone", "extra MB"],
            [
                [
                    row["stage"],
                    row["role"],
                    str(row["pool"]),
                    str(row["queries"]),
                    f"{row['ms_batch']:.3f}",
                    f"{row['ms_single']:.3f}",
                    number(row["extra_mb"]),
                ]
                for row in document["latency"]
            ],
        ),
    )


def _variants(document: Mapping[str, Any]) -> Markup:
    if not document["variants"]:
        return Markup("")
    return tag(
        "section",
        tag("h2", "Attempts to do better"),
        tag(
            "p",
            "Each variant minus the configured filter, averaged over the datasets. A variant "
            "becomes the default only with its interval above zero on the tuning part and not "
            "below on the test part.",
        ),
        _table(
            ["variant", "what", "on tuning", "on test", "verdict"],
            [
                [
                    row["variant"],
                    row["measure"],
                    _interval(row, "tune"),
                    _interval(row, "test"),
                    row["verdict"],
                ]
                for row in document["variants"]
            ],
        ),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    lines = [
        tag(
            "tr",
            *(tag("td", cell) for cell in row),
            class_="marked" if row and row[0] == "default" else None,
        )
        for row in rows
    ]
    table = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", name) for name in head))),
        tag("tbody", *lines),
        class_="figures",
    )
    return scrolling(table, f"table of {head[0]}s")


def _chart(chart: Markup, label: str) -> Markup:
    return scrolling(chart, label)


def _details(title: str, *inside: Markup) -> Markup:
    return tag("details", tag("summary", title), join(*inside))


def _percent(value: float | None) -> str:
    return number(None) if value is None else f"{100 * value:.1f}"


def _interval(row: Row, name: str) -> str:
    """A difference in points with its interval."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{100 * row[name]:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]".replace("-", "\u2212")
