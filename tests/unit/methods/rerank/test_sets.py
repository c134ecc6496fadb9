import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError
from condensery.methods.rerank.recipe import RerankRecipe
from condensery.methods.rerank.sets import load_sets, texts_of
from condensery.methods.rerank.sources import Sources

RECIPE = RerankRecipe(held_out=8)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def articles(tmp_path: Path) -> Path:
    """Twenty articles of three passages with two questions each."""
    rows = [
        {
            "question": f"question {q} of passage {p} of article {a}",
            "context": f"passage {p} of article {a}",
            "title": f"Article {a}",
            "answers": [f"article {a}"],
        }
        for a in range(20)
        for p in range(3)
        for q in range(2)
    ]
    return write_rows(tmp_path / "articles.jsonl", rows)


def test_no_query_is_trained_on_whose_article_is_measured_on(articles: Path) -> None:
    sets = load_sets(Sources([articles]), RECIPE)
    held = [query.group for query in sets.held_out]
    assert len(set(held)) == len(held) == 8  # one of each article, so that all kinds are measured
    assert not {query.group for query in sets.train} & set(held)
    assert len(sets.train) == (20 - 8) * 6
    assert sets.report["left out: of an article or passage held out"] == 8 * 6 - 8
    assert sets.report["passages"] == len(sets.passages) == 60


def test_most_queries_are_trained_on_however_many_are_to_be_held_out(articles: Path) -> None:
    sets = load_sets(Sources([articles]), replace(RECIPE, held_out=10_000))
    assert len(sets.held_out) == 120 // 5
    assert len(sets.train) > 60


def test_a_passage_that_answers_a_query_measured_on_is_no_other_articles(tmp_path: Path) -> None:
    rows = [
        {"question": f"{n}", "context": f"passage {n % 10}", "title": f"T{n}"} for n in range(20)
    ]
    sets = load_sets(Sources([write_rows(tmp_path / "q.jsonl", rows)]), RECIPE)
    held = {g for query in sets.held_out for g in query.gold}
    assert held
    assert sets.train
    assert all(held.isdisjoint(query.gold) for query in sets.train)


def test_what_is_like_evaluation_text_is_left_out_and_counted(
    articles: Path, tmp_path: Path
) -> None:
    copied = "ten words in a row that no two texts share by chance alone"
    rows = [
        {"question": "one", "context": f"Here: {copied}, and more."},
        {"question": f"{copied}?", "context": "something else"},
        {"question": "two", "context": "a passage of its own"},
    ]
    more = write_rows(tmp_path / "more.jsonl", rows)
    held = write_rows(tmp_path / "dev.jsonl", [{"passages": [f"Well, {copied}!"], "id": 7}])
    corpus = write_rows(tmp_path / "corpus.jsonl", [{"text": f"{copied}"}, {"text": "fine"}])
    sources = Sources([more, articles], corpus=[corpus], not_like=[held])
    sets = load_sets(sources, RECIPE)
    assert sets.report["left out: passages like evaluation text"] == 2
    assert sets.report["left out: queries like evaluation text, or of such passages"] == 2
    assert not [text for text in sets.passages if "by chance" in text]
    for query in (*sets.train, *sets.held_out):  # renumbered, they still point at their own
        wanted = "a passage of its own" if query.text == "two" else query.text.split(" of ", 1)[1]
        assert sets.passages[query.gold[0]] == wanted
    assert (
        len(sets.train) + len(sets.held_out)
        == 121 - sets.report["left out: of an article or passage held out"]
    )


def test_a_run_takes_as_many_queries_as_it_has_use_for(articles: Path) -> None:
    whole, some = (load_sets(Sources([articles]), RECIPE, most) for most in (None, 10))
    assert len(some.train) == 10
    assert set(some.train) < set(whole.train)
    assert some.held_out == whole.held_out
    assert some.report["left out: more than the steps have use for"] == len(whole.train) - 10


def test_the_same_data_has_the_same_fingerprint_and_other_data_another(
    articles: Path, tmp_path: Path
) -> None:
    first, again = (load_sets(Sources([articles]), RECIPE) for _ in range(2))
    assert first == again
    assert first.fingerprint() == again.fingerprint()
    corpus = write_rows(tmp_path / "corpus.jsonl", [{"text": "one more"}])
    others = [
        load_sets(Sources([articles], corpus=[corpus]), RECIPE),
        load_sets(Sources([articles]), replace(RECIPE, seed=1)),
    ]
    assert len({first.fingerprint(), *(other.fingerprint() for other in others)}) == 3


def test_nothing_to_train_or_to_measure_on_is_refused(articles: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no query to train on; .*such passages': 120"):
        load_sets(Sources([articles], not_like=[articles]), RECIPE)
    single = write_rows(tmp_path / "one.jsonl", [{"question": "one", "context": "passage"}])
    with pytest.raises(InputError, match="no query to measure on"):
        load_sets(Sources([single]), RECIPE)
    nothing = write_rows(tmp_path / "nothing.jsonl", [{"words": "x"}])
    with pytest.raises(InputError, match=r"not-like: .*nothing\.jsonl: no row has any of question"):
        texts_of([nothing])
