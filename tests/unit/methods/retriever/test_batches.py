from pathlib import Path

import pytest
import torch
from tests.unit.methods.conftest import Stored

from condensery.errors import InputError
from condensery.methods.retriever.batches import NOBODY, Batches, Example, key, read_examples
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.trainer.method import Draw
from condensery.runtime.tokenizing import TextTokenizer


@pytest.fixture
def tokenizer(stored: Stored) -> TextTokenizer:
    return TextTokenizer.load(stored("llama").path, 64)


def ids_of(tokenizer: TextTokenizer, *texts: str) -> list[tuple[int, ...]]:
    return [tuple(encoding.ids) for encoding in tokenizer.encode(texts)]


def test_a_batch_is_each_query_its_positive_and_negatives_of_its_own(
    tuning_rows: Path, tokenizer: TextTokenizer
) -> None:
    recipe = RetrieverRecipe(queries=4, negatives=3)
    examples = read_examples([tuning_rows])
    batches = Batches(examples, tokenizer, recipe, query_prompt="a ", passage_prompt="of ")
    asked = dict(
        zip(
            ids_of(tokenizer, *(f"a {example.query}" for example in examples)),
            examples,
            strict=True,
        )
    )
    assert len(asked) == len(examples)
    seen: set[str] = set()
    for step in range(6):
        batch = batches(Draw(13, step))
        assert (len(batch.queries), len(batch.passages)) == (4, 16)
        for place, query in enumerate(batch.queries):
            own = asked[tuple(query)]
            group = [*map(tuple, batch.passages[4 * place : 4 * place + 4])]
            assert group[0] == ids_of(tokenizer, f"of {own.positives[0]}")[0]
            assert len(set(group)) == 4
            assert set(group[1:]) <= set(ids_of(tokenizer, *(f"of {n}" for n in own.negatives)))
            assert bool(batch.scores[place].isnan().all()) is (own.scores is None)
            if own.scores is not None:
                assert batch.scores[place, 0] == 4.0
            seen.add(own.query)
    assert len(seen) == 24  # an epoch
    again = batches(Draw(13, 2))
    first = batches(Draw(13, 2))
    assert again.passages == first.passages


def test_all_that_answers_a_query_is_known_by_its_key(tokenizer: TextTokenizer) -> None:
    examples = [
        Example("mill", ("old mill", "new mill"), (), None, "a"),
        Example("river", ("river",), (), None, "b"),
    ]
    recipe = RetrieverRecipe(queries=2, negatives=0)
    batch = Batches(examples, tokenizer, recipe)(Draw(13, 0))
    both = {key("old mill"), key("new mill")}
    assert sorted(map(len, map(set, batch.answers.tolist()))) == [2, 2]
    assert {frozenset(row) for row in batch.answers.tolist()} == {
        frozenset(both),
        frozenset({key("river"), NOBODY}),
    }
    assert set(batch.keys.tolist()) <= both | {key("river")}


def test_few_negatives_come_twice_and_none_is_refused(tokenizer: TextTokenizer) -> None:
    few = Example("mill", ("mill",), ("river", "town"), None, "rows.jsonl, line 1")
    recipe = RetrieverRecipe(queries=1, negatives=5)
    batch = Batches([few], tokenizer, recipe)(Draw(13, 0))
    assert len(batch.passages) == 6
    none = Example("mill", ("mill",), (), None, "rows.jsonl, line 2")
    with pytest.raises(InputError, match="line 2: negatives: has none"):
        Batches([few, none], tokenizer, recipe)


def test_texts_are_cut_where_the_tokenizer_cuts(stored: Stored) -> None:
    tokenizer = TextTokenizer.load(stored("llama").path, 6)
    # The second is longer than what a caller of the service may send.
    assert len("river " * 300) > tokenizer.max_characters
    example = Example("mill " * 30, ("river " * 300,), (), None, "a")
    recipe = RetrieverRecipe(queries=2, negatives=0)
    batch = Batches([example], tokenizer, recipe)(Draw(13, 0))
    assert [len(ids) for ids in (*batch.queries, *batch.passages)] == [6] * 4
    assert torch.isnan(batch.scores).all()
