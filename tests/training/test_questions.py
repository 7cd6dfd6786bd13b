import gzip
import json

import pytest

from ricci_gpu.corpus.judged import judged_queries, part_of_passage
from ricci_gpu.errors import InputError
from ricci_gpu.training.questions import DEV_AT_MOST, training_questions

PASSAGES = [f"p{i}" for i in range(400)]


@pytest.fixture
def folder(tmp_path):
    """A dataset that is divided by passages: question ``qi`` is answered by ``pi``."""
    write(tmp_path / "corpus.jsonl", [{"_id": p, "text": f"text {p}"} for p in PASSAGES])
    queries = [{"_id": f"q{i}", "text": f"about {p}"} for i, p in enumerate(PASSAGES)]
    write(tmp_path / "queries.jsonl", queries)
    lines = [f"q{i}\t{p}\t1\n" for i, p in enumerate(PASSAGES)]
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return tmp_path


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def more(folder, rows):
    with gzip.open(folder / "queries_all.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_only_the_part_fit_is_used_and_dev_shares_no_passage(folder):
    found = training_questions(folder, PASSAGES)
    ids = {question.id for question in (*found.train, *found.dev)}
    assert ids == {query.id for query in judged_queries(folder, "fit").queries}
    assert found.train
    assert found.dev
    train, dev = (set().union(*(q.relevant for q in part)) for part in (found.train, found.dev))
    assert not train & dev
    assert all(part_of_passage(passage) == "fit" for passage in train | dev)


def test_answerable_questions_about_passages_of_fit_are_added(folder):
    fit = next(p for p in PASSAGES if part_of_passage(p) == "fit")
    test = next(p for p in PASSAGES if part_of_passage(p) == "test")
    before = training_questions(folder, PASSAGES)
    rows = [
        {"_id": "new", "text": "a", "source": fit, "impossible": False},
        {"_id": "unanswerable", "text": "b", "source": fit, "impossible": True},
        {"_id": "unknown", "text": "c", "source": fit, "impossible": None},
        {"_id": "held out", "text": "d", "source": test, "impossible": False},
    ]
    more(folder, rows)
    after = training_questions(folder, PASSAGES)
    old = {question.id for question in (*before.train, *before.dev)}
    assert {question.id for question in (*after.train, *after.dev)} - old == {"new"}


def test_questions_about_missing_passages_are_left_out(folder):
    known = [p for p in PASSAGES if p.endswith("7")]
    found = training_questions(folder, known)
    assert all(question.relevant <= set(known) for question in (*found.train, *found.dev))
    with pytest.raises(InputError, match=r"needs questions of the part `fit` .* Choose another"):
        training_questions(folder, [])


def test_the_dev_part_has_a_limit(folder):
    of_dev = training_questions(folder, PASSAGES).dev[0].relevant
    rows = [
        {"_id": f"m{i}", "text": "a", "source": next(iter(of_dev)), "impossible": False}
        for i in range(2 * DEV_AT_MOST)
    ]
    more(folder, rows)
    assert len(training_questions(folder, PASSAGES).dev) == DEV_AT_MOST


def test_a_row_without_its_source_is_refused(folder):
    more(folder, [{"_id": "a", "text": "b"}])
    with pytest.raises(InputError, match=r"needs a field `source`; found `_id`, `text`"):
        training_questions(folder, PASSAGES)
