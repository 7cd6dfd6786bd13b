import json
import re
from html.parser import HTMLParser

import pytest

from ricci_gpu.cli import main

PRESETS = ["default", "ricci_filtration"]
VOID = {"meta", "input", "br", "img", "link", "hr"}


class Structure(HTMLParser):
    """Tags, attributes and text of a page; fails on a tag that is closed out of order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.shown: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] not in ("style", "title"):
            self.shown.append(data)

    @property
    def text(self) -> str:
        return "".join(self.shown)


def hits(tmp_path):
    [line] = (tmp_path / "run" / "rankings.jsonl").read_text(encoding="utf-8").splitlines()
    ranking = json.loads(line)
    return ranking["hits"] + ranking["dropped"]


def require_self_contained(page):
    structure = Structure(page)
    names = {name for name, _ in structure.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    for _, attributes in structure.tags:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    style = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style
    policy = 'http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src'
    assert policy in page
    targets = {attributes["href"][1:] for _, attributes in structure.tags if attributes.get("href")}
    assert targets <= set(structure.ids)
    assert len(set(structure.ids)) == len(structure.ids)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_chunk_has_its_reason_and_its_text(explain, tmp_path, preset):
    page = explain(preset=preset)
    require_self_contained(page)
    text = Structure(page).text
    recorded = hits(tmp_path)
    assert len(recorded) == 5
    for hit in recorded:
        assert hit["reason"] in text
        assert f'id="chunk-{hit["position"] + 1}"' in page
    assert "makes power" in text
    assert "every decision came out as in the run" in text


def test_curvature_page_shows_the_graph_twice_the_lengths_and_what_they_mean(explain, tmp_path):
    page = explain(preset="ricci_filtration")
    structure = Structure(page)
    graphs = [each for name, each in structure.tags if name == "svg" and each["class"] == "graph"]
    assert [each["aria-label"].split(" the ")[0] for each in graphs] == ["Before", "After"]
    places = re.findall(r'<(?:circle|rect) c?x="([\d.]+)"[^>]*class="node', page)
    assert places[:5] == places[5:10]  # the same layout both times
    lines = [each for _, each in structure.tags if (each.get("class") or "").startswith("line ")]
    assert len(lines) == 5
    assert all(len(re.findall("[ML]", each["d"])) == 21 for each in lines)
    assert "cutoff 1" in structure.text
    assert "not a measure of relevance" in structure.text
    for hit in hits(tmp_path):
        kind = "kept" if hit["kept"] else "dropped"
        assert f'class="badge {kind}">{hit["position"] + 1}<' in page


def test_curvature_page_does_not_warn_where_the_query_enters(explain):
    page = explain("filter.lengths=dissimilarity", preset="ricci_filtration")
    assert "not a measure of relevance" not in page
    assert "equally long" not in page


def test_transport_page_has_a_plan_per_step_whose_rows_add_up(explain):
    page = explain()
    structure = Structure(page)
    plans = [each for name, each in structure.tags if name == "svg" and each["class"] == "heat"]
    assert len(plans) == 5
    radios = [each for name, each in structure.tags if name == "input"]
    assert [each["type"] for each in radios] == ["radio"] * 5
    assert ["checked" in each for each in radios] == [False] * 4 + [True]
    last = page.split('class="heat"')[-1]
    moved = [float(share) for share in re.findall(r"raises: ([\d.]+)% to chunk", last)]
    assert sum(moved) == pytest.approx(100, abs=1.5)  # shares under 0.5 % are not drawn


def test_masses_end_at_the_recorded_filter_values(explain, tmp_path):
    page = explain()
    ends = dict(re.findall(r"chunk (\d+): (\S+) at the end", page))
    for hit in hits(tmp_path):
        shown = ends[str(hit["position"] + 1)].replace("·10^", "e").replace("\u2212", "-")
        assert float(shown) == pytest.approx(hit["filter_value"], rel=6e-3)


def test_words_that_were_won_are_marked(explain):
    page = explain()
    # Only one chunk has the word "raises", and the word itself is its best match.
    assert re.search(r'<mark class="won" title="closest to [^"]*raises: 1.00">raises</mark>', page)
    assert re.search('Won the query.s .*<b dir="auto">raises</b>', page)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["filter.type=threshold", "filter.at_least=0.25"], "cut 0.25"),
        (["filter.type=fixed_k", "filter.k=2"], "The dashed line is the cut."),
        (["filter.type=largest_gap", "filter.on=maxsim"], "The dashed line is the cut."),
        (["filter.type=fixed_k", "filter.k=9"], "All were kept."),
        (["filter.type=z_score", "filter.at_least=9", "filter.minimum=5"], "All were kept."),
        (["filter.type=none"], "It compares no number"),
        (["filter.type=connected_component"], "It compares no number"),
        (["filter.type=random", "filter.k=2"], "It compares no number"),
        (["filter.type=degree", "filter.k=2"], "One bar per chunk"),
    ],
)
def test_other_filters_show_the_value_against_the_cut(explain, tmp_path, settings, says):
    page = explain(*settings)
    require_self_contained(page)
    text = Structure(page).text
    assert says in text
    assert all(hit["reason"] in text for hit in hits(tmp_path))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("count", [0, 1])
def test_pools_with_nothing_to_compare(explain, preset, count):
    texts = {"only": "the moon"} if count else {}
    page = explain(preset=preset, texts=texts)
    require_self_contained(page)
    text = Structure(page).text
    assert f"{count} of {count}" in text
    assert "fewer than two" in text
    assert ("No chunk was retrieved." in text) == (count == 0)


@pytest.mark.parametrize("preset", PRESETS)
def test_texts_and_ids_are_escaped(explain, preset):
    evil = '<script>alert("x")</script> & <b>moon</b> http://example.org \x00 end'
    page = explain(
        preset=preset,
        texts={'<i id="x">': evil, "b": "tides", "c\"'>": "the sea"},
        query='<img src=x onerror="alert(1)"> moon',
        query_id="<q>&'\"/../",
        title="<h1>title</h1>",
    )
    require_self_contained(page)
    text = Structure(page).text
    assert '<script>alert("x")</script>' in text
    assert '<i id="x">' in text
    assert "<h1>title</h1>" in text
    assert '<img src=x onerror="alert(1)"> moon' in text
    assert "<q>&'\"/../" in text
    assert "\x00" not in page


@pytest.mark.parametrize("preset", PRESETS)
def test_texts_of_any_script_and_half_characters(explain, preset):
    texts = {
        "日本": "東京は日本の首都です",
        "عربي": "مرحبا بالعالم",
        "emoji": "😀 naïve Grüße \u2028 e\u0301",
        "half": "broken \ud83d half",
        "empty": "",
    }
    page = explain(preset=preset, texts=texts, query="Grüße 東京は日本の首都です مرحبا")
    text = Structure(page).text
    assert "東京は日本の首都です" in text
    assert "broken \ufffd half" in text
    assert "This chunk has no text." in text
    assert 'dir="auto"' in page


def test_a_query_without_words(explain):
    text = Structure(explain(query="")).text
    assert "A query without text" in text
    assert "no words that the model knows" in text


def test_a_hundred_chunks_with_long_texts(explain, tmp_path):
    texts = {f"d{row}": f"chunk {row} " + f"word{row % 7} moon tides " * 30 for row in range(100)}
    page = explain(texts=texts)
    require_self_contained(page)
    structure = Structure(page)
    assert all(f'id="chunk-{row}"' in page for row in range(1, 101))
    assert sum(name == "details" for name, _ in structure.tags) == 101  # and the settings
    assert "The 24 chunks with most mass have a column of their own." in structure.text
    assert "others" in structure.text
    assert "Hold the pointer over a line" in structure.text
    # Opening a long text shows the rest of it: nothing stands twice, nothing is missing.
    shown = re.sub("… show all [0-9,]+ characters", "", structure.text)
    assert all(text in shown for text in texts.values())
    assert "kept, not shown" in shown or len(hits(tmp_path)) == 100
    assert len(page) < 1_500_000


def test_curvature_page_of_forty_one_chunks_draws_smaller_nodes(explain):
    texts = {f"d{row}": f"text {row} moon{row % 5} tides{row % 3}" for row in range(41)}
    page = explain("filter.iterations=2", preset="ricci_filtration", texts=texts)
    require_self_contained(page)
    assert 'class="graph small"' in page


def test_flow_without_steps_draws_no_chart(explain):
    page = explain("filter.iterations=0", preset="ricci_filtration")
    assert "Before the flow" in page
    assert "over the steps" not in page


def test_ready_embeddings_without_texts_need_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr("ricci_gpu.models.encoder.Encoder.load", None)
    row = {
        "query_id": "q",
        "query_embedding": [1.0, 0.0],
        "candidates": [
            {"id": "a", "embedding": [1.0, 0.1]},
            {"id": "b", "embedding": [0.0, 1.0]},
            {"id": "broken", "embedding": [0.0, 0.0]},
        ],
    }
    (tmp_path / "pools.jsonl").write_text(json.dumps(row))
    run = tmp_path / "run"
    arguments = ["rerank", "--candidates", str(tmp_path / "pools.jsonl"), "--out", str(run)]
    arguments += ["--preset", "ricci_filtration", "--set", "rerank.type=none"]
    assert main(arguments) == 0
    assert main(["explain", str(run), "--query", "q"]) == 0
    text = Structure((run / "explain-q.html").read_text(encoding="utf-8")).text
    assert "A query without text" in text
    assert text.count("This chunk has no text.") == 3
    assert "bad embedding: NaN, infinite or zero" in text
    assert "was not judged" in text
    assert "No stage of this run reads single words" in text
    assert "not needed by the run" in text


def test_what_maxsim_did_not_score_is_not_said_to_have_won(explain, tmp_path):
    settings = ["rerank.type=maxsim", "filter.type=fixed_k", "filter.k=1"]
    text = Structure(explain(*settings)).text
    assert sum(hit["kept"] for hit in hits(tmp_path)) == 1
    assert "Would have won the query\u2019s" in text


def test_steps_of_a_long_transport_are_thinned_out(explain):
    page = explain("filter.steps=30")
    labels = re.findall(r'<label for="plan-\d">(\d+)</label>', page)
    assert len(labels) == 8
    assert (labels[0], labels[-1]) == ("1", "30")
