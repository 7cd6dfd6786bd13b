"""The pages of the gallery, as committed; `examples/gallery/build.py` makes them again."""

import importlib.util
import json
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
spec = importlib.util.spec_from_file_location("gallery_build", GALLERY / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


@pytest.mark.parametrize("name", sorted(build.QUERIES))
def test_a_page_is_small_and_about_its_query(name):
    page = (GALLERY / f"{name}.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 300_000
    assert f'<h1 dir="auto">{build.QUERIES[name].query}</h1>' in page
    assert "every decision came out as in the run" in page
    for line in (GALLERY / "passages.jsonl").read_text(encoding="utf-8").splitlines():
        assert json.loads(line)["id"] in page


def test_the_published_filter_drops_the_answer():
    page = (GALLERY / "ricci-drops-the-answer.html").read_text(encoding="utf-8")
    card = page.split("<article")[-2:]
    assert any("locked-moon" in each and "stretched" in each for each in card)


def test_a_page_for_every_query_and_none_besides():
    assert {path.stem for path in GALLERY.glob("*.html")} == set(build.QUERIES)
