"""The part of a page that shows where the mass of the query's words went."""

from collections.abc import Sequence

from ricci_gpu.explain.candidate import Candidate
from ricci_gpu.explain.heat_map import heat_map
from ricci_gpu.explain.line_chart import Line, how_named, line_chart
from ricci_gpu.explain.markup import Markup, join, scrolling, tag
from ricci_gpu.explain.replay import Replay
from ricci_gpu.stages.token_filter import TokenTransportFilter

PLANS_AT_MOST = 8  # more steps than that are thinned out
COLUMNS_AT_MOST = 24  # with more chunks, those that end with most mass, and the others together


def transport_section(replay: Replay, candidates: Sequence[Candidate]) -> Markup:
    """Heat maps of the plan step by step, masses over the steps."""
    settings = replay.config.filter
    assert isinstance(settings, TokenTransportFilter)  # `page` has chosen this section by its type
    plans = word_plans(replay)
    if len(candidates) < 2 or not plans or not plans[0]:
        why = (
            "With fewer than two chunks there is nothing to share out, and whatever came is kept."
            if len(candidates) < 2
            else "This query has no words that the model knows, so nothing tells chunks apart."
        )
        return tag("section", tag("h2", "The transport"), tag("p", why))
    return tag(
        "section",
        tag("h2", "The transport"),
        tag(
            "p",
            "Every word of the query hands out one share of mass among the chunks, more of it to "
            "the chunks that match the word better. A chunk that has received much draws more in "
            "the next step. A word that every chunk matches decides nothing; a word that one "
            "chunk alone matches gives it everything. After "
            f"{settings.steps} steps a chunk is kept when it holds at least "
            + ("" if settings.eta == 1 else f"{settings.eta:g} times ")
            + "the mean mass. Chunks that say the same share what they receive.",
        ),
        _plans(replay, candidates, plans),
        _masses(replay, candidates, settings),
    )


def word_plans(replay: Replay) -> list[list[list[float]]]:
    """Per step, the share of each query word's mass that each chunk received."""
    details, reading = replay.batch.details, replay.reading
    if reading is None or details is None or "plans" not in details:
        return []
    count = len(replay.recorded.passages)
    return [
        [plan[0, list(word.tokens), :count].double().mean(dim=0).tolist() for word in reading.query]
        for plan in details["plans"]
    ]


def _plans(
    replay: Replay, candidates: Sequence[Candidate], plans: Sequence[Sequence[Sequence[float]]]
) -> Markup:
    assert replay.reading is not None  # there are plans
    words = [word.text for word in replay.reading.query]
    heaviest = sorted(candidates, key=lambda each: -sum(row[each.number - 1] for row in plans[-1]))
    columns = sorted(heaviest[:COLUMNS_AT_MOST], key=lambda each: each.number)
    shown = _spread(len(plans), PLANS_AT_MOST)
    inputs, labels, panels = [], [], []
    for place, step in enumerate(shown):
        name, last = f"plan-{place}", place == len(shown) - 1
        inputs.append(tag("input", type="radio", name="plan", id=name, checked=last))
        labels.append(tag("label", str(step + 1), for_=name))
        share = [[row[each.number - 1] for each in columns] for row in plans[step]]
        others = None
        if len(columns) < len(candidates):
            others = [sum(row) - sum(shown) for row, shown in zip(plans[step], share, strict=True)]
        panels.append(tag("div", heat_map(words, columns, share, others), class_="panel"))
    rules = "".join(
        f"#plan-{place}:checked~.panels>:nth-child({place + 1}){{display:block}}"
        f"#plan-{place}:checked~.tabs>label:nth-of-type({place + 1})"
        "{background:var(--accent);color:var(--page)}"
        f"#plan-{place}:focus-visible~.tabs>label:nth-of-type({place + 1})"
        "{outline:3px solid var(--focus)}"
        for place in range(len(shown))
    )
    return join(
        tag("h3", "Which word\u2019s mass went to which chunk"),
        tag("style", Markup(rules)),
        tag(
            "div",
            *inputs,
            tag("div", tag("span", "Step"), *labels, class_="tabs"),
            tag(
                "div",
                *panels,
                class_="panels scroll",
                tabindex="0",
                role="region",
                aria_label="Plan of each step",
            ),
            class_="steps",
        ),
        tag(
            "p",
            tag("strong", "How to read it. "),
            "A row is a word of the query, a column a chunk under its place in the pool: a filled "
            "disc is a kept chunk, a square a dropped one. Numbers are per cent of the word\u2019s "
            "mass, and a row adds up to 100. Choose a step to see the mass move. A word that the "
            "model reads in pieces is shown whole, as the mean of its pieces.",
            f" The {len(columns)} chunks with most mass have a column of their own."
            if len(columns) < len(candidates)
            else "",
            class_="how",
        ),
    )


def _masses(
    replay: Replay, candidates: Sequence[Candidate], settings: TokenTransportFilter
) -> Markup:
    assert replay.batch.details is not None  # there are plans
    judged = [each for each in candidates if each.hit.filter_value is not None]
    shares = [[1.0] * len(candidates)]
    for plan in replay.batch.details["plans"]:
        received = plan[0, :, : len(candidates)].double().sum(dim=0)
        shares.append((len(judged) * received / received.sum()).tolist())
    lines = [
        Line(
            str(candidate.number),
            candidate.kind,
            [share[candidate.number - 1] for share in shares],
        )
        for candidate in judged
    ]
    chart = line_chart(
        lines, settings.eta, f"cutoff {settings.eta:g}", "mass, in means of the pool", "step"
    )
    return join(
        tag("h3", "Mass of the chunks over the steps"),
        scrolling(chart, "Mass of the chunks over the steps"),
        tag(
            "p",
            tag("strong", "How to read it. "),
            "One line per chunk, on a logarithmic axis: 1 is the mean of the pool, where all "
            "start. Kept chunks have solid lines, dropped ones dashed lines. "
            + how_named(len(lines)),
            class_="how",
        ),
    )


def _spread(count: int, most: int) -> list[int]:
    """At most ``most`` of ``range(count)``, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})
