import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.index.conftest import database_of, to_format_4

from condensery.errors import DataDirTaken, EmptyInput, InputError
from condensery.methods.ranking import retrieval
from condensery.methods.ranking.retrieval import CorpusPassage, Retriever
from condensery.runtime.tokenizing import MAX_CHARACTERS_PER_TOKEN

WORDS = ["mill", "river", "town", "bread", "stone", "market", "baker", "bridge", "weir", "grain"]


def corpus(count: int = 40, seed: int = 0) -> list[CorpusPassage]:
    draw = random.Random(seed)
    return [
        CorpusPassage(f"p{i}", " ".join(draw.choices(WORDS, k=draw.randint(2, 5))))
        for i in range(count)
    ]


def bm25(texts: Sequence[str], query: Sequence[str]) -> np.ndarray[Any, Any]:
    """Robertson's formula; words of more than half of the texts are left out."""
    counts = [Counter(text.split()) for text in texts]
    mean = sum(count.total() for count in counts) / len(counts)
    scores = np.zeros(len(texts))
    for word in query:
        having = sum(word in count for count in counts)
        if 2 * having > len(texts):
            continue
        idf = math.log((len(texts) - having + 0.5) / (having + 0.5))
        for place, count in enumerate(counts):
            tf = count[word]
            scores[place] += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * count.total() / mean))
    return scores


def ids(hits: list[tuple[str, float]]) -> list[str]:
    return [name for name, _ in hits]


def test_words_are_ranked_by_bm25_title_and_text(tmp_path: Path) -> None:
    passages = [*corpus(), CorpusPassage("titled", "bread stone", title="weir grain")]
    with Retriever.build(passages, tmp_path) as retriever:
        queries = [["baker", "weir"], ["bridge"], ["grain", "stone", "mill"]]
        ranked = retriever.search([" ".join(query) for query in queries], 7, "bm25")
        assert retriever.search(["nothing of it"], 7, "bm25") == [[]]
    texts = [f"{passage.title} {passage.text}".strip() for passage in passages]
    for query, hits in zip(queries, ranked, strict=True):
        expected = bm25(texts, query)
        best = np.argsort(-expected, kind="stable")[:7]
        assert ids(hits) == [passages[place].id for place in best]
        assert [score for _, score in hits] == pytest.approx(expected[best].tolist(), abs=1e-5)


def test_vectors_are_compared_one_by_one_and_prompts_are_the_models(
    tmp_path: Path, encoder: Any
) -> None:
    passages = [*corpus(), CorpusPassage("titled", "bread", title="mill")]
    queries = ["old mill", "a market in the town"]
    with Retriever.build(passages, tmp_path, encoder=encoder) as retriever:
        assert encoder.asked[-1] == "the mill\nbread"
        ranked = retriever.search(queries, 5, "dense")
        assert encoder.asked[-2:] == ["who old mill", "who a market in the town"]
    texts = [
        f"the {passage.title}\n{passage.text}" if passage.title else f"the {passage.text}"
        for passage in passages
    ]
    embed = encoder.encoder.embed
    keys, asked = (
        asyncio.run(embed(some)).vectors for some in (texts, [f"who {query}" for query in queries])
    )
    for vector, hits in zip(asked, ranked, strict=True):
        scores = keys @ vector
        assert [score for _, score in hits] == pytest.approx(
            sorted(scores.tolist(), reverse=True)[:5], abs=1e-5
        )
        own = {passage.id: scores[place] for place, passage in enumerate(passages)}
        assert [own[name] for name in ids(hits)] == pytest.approx([s for _, s in hits], abs=1e-5)


def test_a_nomic_models_prompts_are_taken_but_not_in_a_folder_from_before(
    tmp_path: Path, encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "BLOCK", 8)
    encoder.prompts = {"search_query": "old ", "search_document": "new "}
    passages = corpus(12)
    for older in (False, True):
        asked, read = ("", "") if older else ("old ", "new ")
        folder = tmp_path / f"older-{older}"
        encoder.fails_at = passages[0 if older else 10].text
        with pytest.raises(RuntimeError, match="killed"):
            Retriever.build(passages, folder, encoder=encoder)
        if older:
            to_format_4(database_of(folder, retrieval.INDEX))
        encoder.fails_at = None
        for _ in range(2):
            with Retriever.build(passages, folder, encoder=encoder) as retriever:
                assert encoder.asked == [f"{read}{passage.text}" for passage in passages]
                retriever.search(["a market"], 5, "dense")
                assert encoder.asked.pop() == f"{asked}a market"
        encoder.asked.clear()


def test_a_passage_longer_than_the_service_takes_is_cut(tmp_path: Path, encoder: Any) -> None:
    most = encoder.info.max_tokens * MAX_CHARACTERS_PER_TOKEN
    long = "the mill by the river " * (most // 20)
    with pytest.raises(InputError, match="over the limit"):
        asyncio.run(encoder.encoder.embed([long]))
    with Retriever.build([*corpus(), CorpusPassage("long", long)], tmp_path, encoder=encoder) as it:
        (hits,) = it.search(["the mill by the river " * 40], 1, "dense")
    assert ids(hits) == ["long"]


def test_hybrid_fuses_the_places_in_both_rankings(tmp_path: Path, encoder: Any) -> None:
    passages = corpus(60)
    with Retriever.build(passages, tmp_path, encoder=encoder) as retriever:
        fused, near, alike = (
            retriever.search(["baker weir"], k, mode)[0]
            for k, mode in ((6, "hybrid"), (50, "dense"), (50, "bm25"))
        )
    scores: Counter[str] = Counter()
    for ranking in (near, alike):
        for place, name in enumerate(ids(ranking), 1):
            scores[name] += 1 / (60 + place)
    assert [score for _, score in fused] == pytest.approx([s for _, s in scores.most_common(6)])
    assert [scores[name] for name in ids(fused)] == pytest.approx([score for _, score in fused])


def test_a_build_that_was_ended_goes_on_and_a_whole_one_is_used_again(
    tmp_path: Path, encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "BLOCK", 8)
    passages = corpus(30)
    encoder.fails_at = passages[20].text
    with pytest.raises(RuntimeError, match="killed"):
        Retriever.build(passages, tmp_path, encoder=encoder)
    assert len(encoder.asked) == 16
    encoder.fails_at = None
    for _ in range(2):
        with Retriever.build(passages, tmp_path, encoder=encoder) as retriever:
            assert encoder.asked == [f"the {passage.text}" for passage in passages]
            assert sorted(ids(retriever.search([""], 40, "dense")[0])) == sorted(
                passage.id for passage in passages
            )
        encoder.asked.pop()  # the query


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ([*corpus()[:-1], CorpusPassage("p39", "another text")], "content is sha256"),
        (corpus()[::-1], "content is sha256"),
        (corpus(41), "passages is 40, not 41"),
    ],
)
def test_a_folder_of_another_corpus_is_refused_and_left_as_it_is(
    tmp_path: Path, changed: list[CorpusPassage], says: str
) -> None:
    Retriever.build(corpus(), tmp_path).close()
    with pytest.raises(InputError, match=says) as caught:
        Retriever.build(changed, tmp_path)
    assert str(tmp_path) in caught.value.message
    with Retriever.build(corpus(), tmp_path) as retriever:
        assert retriever.search(["mill"], 1, "bm25")[0]


def test_a_folder_of_other_vectors_or_other_indexes_is_refused(
    tmp_path: Path, encoder: Any
) -> None:
    Retriever.build(corpus(), tmp_path).close()
    with pytest.raises(InputError, match="encoder is None, not sha256:"):
        Retriever.build(corpus(), tmp_path, encoder=encoder)
    (tmp_path / retrieval.ABOUT).write_text("[]")
    with pytest.raises(InputError, match=r"corpus\.json is damaged"):
        Retriever.build(corpus(), tmp_path)
    (tmp_path / retrieval.ABOUT).unlink()
    with pytest.raises(InputError, match="holds indexes of something else"):
        Retriever.build(corpus(), tmp_path)


def test_what_can_not_be_asked_or_indexed_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EmptyInput, match="passages: none"):
        Retriever.build([], tmp_path)
    with pytest.raises(InputError, match=r"passages\[40\]\.id: 'p3' comes twice"):
        Retriever.build([*corpus(), CorpusPassage("p3", "x")], tmp_path)
    with Retriever.build(corpus(), tmp_path) as retriever:
        for mode in ("dense", "hybrid"):
            with pytest.raises(InputError, match=f"mode: '{mode}' needs an encoder"):
                retriever.search(["mill"], 3, mode)
        with pytest.raises(InputError, match="mode: 'words' is none of bm25, dense, hybrid"):
            retriever.search(["mill"], 3, "words")
        with pytest.raises(InputError, match="k: 0 is less than 1"):
            retriever.search(["mill"], 0, "bm25")
        with pytest.raises(DataDirTaken):
            Retriever.build(corpus(), tmp_path)
