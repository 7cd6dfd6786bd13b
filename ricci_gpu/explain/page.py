"""The page: one HTML file that loads nothing, from the replay of one query."""

import os
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import yaml

from ricci_gpu.explain.candidate import Candidate, candidates_of
from ricci_gpu.explain.chunks import chunk_section
from ricci_gpu.explain.curvature import curvature_section
from ricci_gpu.explain.markup import Markup, number, tag
from ricci_gpu.explain.record import versions
from ricci_gpu.explain.replay import Replay
from ricci_gpu.explain.scores import scores_section
from ricci_gpu.explain.transport import transport_section
from ricci_gpu.output import atomic_file
from ricci_gpu.stages.ricci_filter import RicciFilter
from ricci_gpu.stages.token_filter import TokenTransportFilter

# Whatever a text of the corpus holds, the browser may load nothing and run nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Filter values move in the last digits when texts are encoded in other company.
SAME_VALUE = 1e-3
STATUS = {
    "ok": "",
    "not_converged": "The transport solver ran out of iterations: lengths are less exact.",
    "too_few_nodes": "With fewer than two candidates there was nothing to compare.",
    "bad_embedding": "A vector was NaN, infinite or zero; what it belongs to was not judged.",
}


def write_page(replay: Replay, path: str | os.PathLike[str]) -> Path:
    """Write the page of a query; the file appears only when it is complete."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target) as temporary:
        temporary.write_text(render(replay), encoding="utf-8", newline="\n")
    return target


def render(replay: Replay) -> str:
    """The page as text."""
    candidates = candidates_of(replay)
    ranking = replay.recorded.ranking
    style = files("ricci_gpu.explain").joinpath("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"Why these chunks: {ranking.query or ranking.query_id}"),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag(
            "main",
            _header(replay, candidates),
            _section(replay)(replay, candidates),
            chunk_section(replay, candidates),
            _settings(replay),
        ),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _section(replay: Replay) -> Callable[[Replay, Sequence[Candidate]], Markup]:
    if isinstance(replay.config.filter, RicciFilter):
        return curvature_section
    if isinstance(replay.config.filter, TokenTransportFilter):
        return transport_section
    return scores_section


def _header(replay: Replay, candidates: Sequence[Candidate]) -> Markup:
    ranking, config = replay.recorded.ranking, replay.config
    kept = sum(each.hit.kept for each in candidates)
    facts = [
        ("query", tag("code", ranking.query_id, dir="auto")),
        ("filter", config.filter.name),
        ("reranker", config.rerank.name),
        ("kept", f"{kept} of {len(candidates)}"),
        ("status", ranking.status.replace("_", " ")),
    ]
    if ranking.abstention is not None:
        facts.append(("free-energy contrast", number(ranking.abstention)))
    strip = tag(
        "ol",
        *(
            tag("li", tag("a", each.badge(), href=f"#chunk-{each.number}", title=each.hit.reason))
            for each in candidates
        ),
        class_="strip",
        aria_label="Chunks in the order of the pool",
    )
    legend = tag(
        "p",
        tag("span", "n", class_="badge kept"),
        " kept ",
        tag("span", "n", class_="badge dropped"),
        " dropped; n is the place in the retrieved pool",
        class_="legend",
    )
    return tag(
        "header",
        tag("p", "Why these chunks", class_="kicker"),
        tag("h1", ranking.query or "A query without text", dir="auto"),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts)),
        *([strip, legend] if candidates else []),
        *([tag("p", STATUS[ranking.status], class_="note")] if STATUS.get(ranking.status) else []),
        _comparison(replay),
    )


def _comparison(replay: Replay) -> Markup:
    """Whether the run's decisions came out again."""
    differs = replay.largest_difference > SAME_VALUE
    why = (
        "What else can differ: the input, the version of the library or of torch, the device. The "
        "decisions below are those of the run; the drawings are of the repetition."
    )
    if replay.changed:
        chunks = ", ".join(map(str, replay.changed))
        return tag(
            "p",
            tag("strong", "Not reproduced. "),
            f"The query was run again for this page, and the decision on chunk {chunks} came out "
            f"otherwise than in the run. {why}",
            class_="alert",
            role="alert",
        )
    if differs:
        return tag(
            "p",
            tag("strong", "Not quite reproduced. "),
            "The query was run again for this page: all decisions are those of the run, but filter "
            f"values differ by up to {replay.largest_difference:.1%}. {why}",
            class_="alert",
            role="alert",
        )
    return tag(
        "p",
        "The query was run again for this page, and every decision came out as in the run.",
        class_="quiet",
    )


def _settings(replay: Replay) -> Markup:
    run = replay.recorded.run
    then, now = run.versions, versions()
    inputs = ", ".join(f"{name} {path.name}" for name, path in run.inputs.items() if path)
    lines = [
        f"Model: {run.model['name']} ({run.model['source'] or 'not needed by the run'}).",
        f"Input: {inputs}. Queries in the run: {run.queries}.",
        "Run with " + ", ".join(f"{name} {version}" for name, version in then.items()) + ".",
    ]
    if then != now:
        page = ", ".join(f"{name} {version}" for name, version in now.items())
        lines.append(f"Page made with {page}.")
    tree = yaml.safe_dump(run.config.to_tree(), sort_keys=False, allow_unicode=True)
    return tag(
        "section",
        tag(
            "details",
            tag("summary", "Settings of the run"),
            *(tag("p", line) for line in lines),
            tag("pre", tree),
            class_="settings",
        ),
    )
