"""The chunks of a page: each with its decision, its numbers, its text, the words that counted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ricci_gpu.explain.candidate import Candidate
from ricci_gpu.explain.markup import Markup, join, number, tag
from ricci_gpu.explain.replay import Replay
from ricci_gpu.explain.transport import word_plans
from ricci_gpu.explain.words import Word

OPEN_AT_MOST = 420  # characters of a text that stand without being asked for
TIE = 1e-6  # duplicates win a word together


@dataclass
class Influence:
    """What one chunk is for the words of the query.

    Args:
        won: query words (by place) for which no chunk of the pool is better, best first, and how
            good it is: a share of the word's mass, or a similarity.
        marked: words of the chunk (by place) that match a query word best, with the tooltip, and
            whether that word was won.
    """

    won: list[tuple[int, float]] = field(default_factory=list)
    marked: dict[int, tuple[str, bool]] = field(default_factory=dict)


def chunk_section(replay: Replay, candidates: Sequence[Candidate]) -> Markup:
    """All chunks: hits in order, then what the run dropped in its order."""
    if not candidates:
        return tag("section", tag("h2", "The chunks"), tag("p", "No chunk was retrieved."))
    influence = _influence(replay)
    ranking = replay.recorded.ranking
    order = [hit.position for hit in [*ranking.hits, *ranking.dropped]]
    cards = [_card(replay, candidates[place], influence[place]) for place in order]
    return tag("section", tag("h2", "The chunks"), _how(replay), *cards)


def _how(replay: Replay) -> Markup:
    if replay.reading is None:
        return tag(
            "p",
            "Best first, then what was dropped. No stage of this run reads single "
            "words, so none is marked.",
            class_="how",
        )
    won = (
        "of whose mass the chunk received more than any other"
        if word_plans(replay)
        else "which no other chunk of the pool matches better"
    )
    return tag(
        "p",
        "Best first, then what was dropped. Words of a chunk that come closest to a word of the "
        "query are ",
        tag("mark", "underlined", class_="near"),
        "; they are ",
        tag("mark", "highlighted", class_="won"),
        f" where the chunk won that word: a word {won}. Hold the pointer over one to see which.",
        class_="how",
    )


def _influence(replay: Replay) -> list[Influence]:
    reading = replay.reading
    if reading is None:
        return [Influence() for _ in replay.recorded.passages]
    plans = word_plans(replay)
    similarity = [[match.similarity for match in matches] for matches in reading.matches]
    quality = [list(column) for column in zip(*plans[-1], strict=True)] if plans else similarity
    found = []
    for column, matches in enumerate(reading.matches):
        influence = Influence()
        for row, match in enumerate(matches):
            if not reading.query[row].has_letters:
                continue
            best = max(each[row] for each in quality)
            value = quality[column][row] if quality[column] else 0.0
            won = value >= best - TIE and value > 0
            if won:
                influence.won.append((row, value))
            for place in match.words:
                if reading.passages[column][place].has_letters:
                    tooltip = f"{reading.query[row].text}: {match.similarity:.2f}"
                    before, was_won = influence.marked.get(place, ("", False))
                    joined = f"{before}, {tooltip}" if before else f"closest to {tooltip}"
                    influence.marked[place] = (joined, was_won or won)
        influence.won.sort(key=lambda each: -each[1])
        found.append(influence)
    return found


def _card(
    replay: Replay,
    candidate: Candidate,
    influence: Influence,
) -> Markup:
    place = candidate.number - 1
    where = (
        f"rank {candidate.rank}"
        if candidate.rank is not None
        else "kept, not shown"
        if candidate.hit.kept
        else "dropped"
    )
    words = [] if replay.reading is None else replay.reading.passages[place]
    return tag(
        "article",
        tag(
            "header",
            candidate.badge(),
            tag("span", where, class_=f"pill {candidate.kind}"),
            tag("code", candidate.hit.id, dir="auto"),
        ),
        tag("p", candidate.hit.reason, class_="reason"),
        _numbers(replay, candidate),
        _won(replay, candidate, influence),
        _text(candidate, words, influence),
        id=f"chunk-{candidate.number}",
        class_=f"card {candidate.kind}",
    )


def _numbers(replay: Replay, candidate: Candidate) -> Markup:
    config = replay.config
    pairs = []
    if config.rerank.name == "maxsim":
        pairs.append(("MaxSim score", candidate.hit.score))
    elif config.filter.name == "token_transport":
        pairs.append(("log mass", candidate.hit.score))
    value = {"ricci": "final edge length", "token_transport": "mass / mean"}
    pairs.append((value.get(config.filter.name, "filter value"), candidate.hit.filter_value))
    pairs.append(("retrieval score", candidate.prior))
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", number(value, 4))) for name, value in pairs),
    )


def _won(replay: Replay, candidate: Candidate, influence: Influence) -> Markup:
    reading = replay.reading
    if reading is None or not reading.query:
        return Markup()
    by_mass = bool(word_plans(replay))
    words = [
        join(
            tag("b", reading.query[row].text, dir="auto"),
            f" {value:.0%}" if by_mass else f" {value:.2f}",
        )
        for row, value in influence.won
    ]
    if not words:
        return tag("p", "Won no word of the query.", class_="words")
    listed = words[0]
    for word in words[1:]:
        listed = join(listed, ", ", word)
    # Without a plan the words are won by MaxSim, which scores survivors only.
    won = "Won" if by_mass or candidate.hit.kept else "Would have won"
    return tag("p", f"{won} the query\u2019s ", listed, ".", class_="words")


def _text(candidate: Candidate, words: Sequence[Word], influence: Influence) -> Markup:
    title, text = candidate.passage.title, candidate.passage.full_text
    if not text.strip():
        return tag("p", "This chunk has no text.", class_="text empty")
    start = len(title) + 1 if title else 0

    def marked(first: int, last: int) -> list[Markup]:
        return list(_marked(text, words, influence, first, last))

    head = tag("p", *marked(0, len(title)), class_="title", dir="auto") if title else Markup()
    if len(text) - start <= OPEN_AT_MOST:
        return tag("div", head, tag("p", *marked(start, len(text)), dir="auto"), class_="text")
    cut = text.rfind(" ", start + OPEN_AT_MOST * 2 // 3, start + OPEN_AT_MOST)
    cut = start + OPEN_AT_MOST if cut < 0 else cut
    more = tag("span", f"\u2026 show all {len(text) - start:,} characters", class_="more")
    return tag(
        "div",
        head,
        tag(
            "details",
            tag("summary", *marked(start, cut), more, dir="auto"),
            tag("p", *marked(cut, len(text)), dir="auto"),
        ),
        class_="text",
    )


def _marked(
    text: str, words: Sequence[Word], influence: Influence, start: int, stop: int
) -> Iterator[Markup]:
    """Characters ``start:stop`` of the text, its marked words marked."""
    # What the model has not read, because the text is longer than it reads.
    read = words[-1].stop if words else len(text)
    if not any(char.isalnum() for char in text[read:]):
        read = len(text)
    place_at = {words[place].start: place for place in influence.marked}
    borders = sorted({*place_at, read, stop})
    at = start
    while at < stop:
        place = place_at.get(at)
        if place is not None and words[place].stop > at:
            end = min(words[place].stop, stop)
            tooltip, won = influence.marked[place]
            yield tag("mark", text[at:end], class_="won" if won else "near", title=tooltip)
        else:
            end = min(border for border in borders if border > at)
            plain = text[at:end]
            beyond = "beyond what the model reads"
            yield tag("span", plain, class_="unread", title=beyond) if at >= read else join(plain)
        at = end
