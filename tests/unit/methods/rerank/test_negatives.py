import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel

from condensery.errors import InputError
from condensery.methods.rerank.model import open_base
from condensery.methods.rerank.negatives import NAME, load_or_mine, open_encoder
from condensery.methods.rerank.recipe import RerankRecipe
from condensery.methods.rerank.sets import RankingSets
from condensery.methods.rerank.sources import Query

CPU = torch.device("cpu")
RECIPE = RerankRecipe(negatives=2, depth=4, candidates=3, search="bm25", held_out=1)
PASSAGES = (
    "the old mill on the river bread",  # 0: answers the first query
    "the old mill in town",  # 1: holds its answer
    "an old stone mill",  # 2
    "bread market",  # 3: answers the second query
    "stone stone stone",  # 4
    "river stone old",  # 5: answers the query that is measured on
    "new town",  # 6
)
SETS = RankingSets(
    passages=PASSAGES,
    train=(
        Query("old mill", (0,), ("in town",), "a", "here"),
        Query("bread", (3,), (), "b", "here"),
    ),
    held_out=(Query("stone town", (5,), (), "c", "here"),),
    report={},
)


def test_negatives_are_found_by_words_and_do_not_answer(tmp_path: Path) -> None:
    mined = load_or_mine(tmp_path, SETS, RECIPE, None)
    first, second = mined.negatives
    assert first[0] == 2  # the only one found that neither answers, nor is kept for the measure
    assert set(first) <= {2, 3, 4, 6}  # made up to two by a random one
    assert second[0] == 0
    assert len(second) == 2
    assert not {3, 5} & set(second)
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME]


def test_candidates_are_bm25s_best_and_then_gold_ones_not_among_them(tmp_path: Path) -> None:
    mined = load_or_mine(tmp_path, SETS, replace(RECIPE, candidates=2), None)
    [candidates] = mined.candidates
    assert candidates[-1] == 5
    assert len(candidates) == 3
    assert set(candidates[:2]) <= {1, 2, 4, 6}
    assert mined.encoder == []


def test_vectors_find_negatives_too_and_order_the_candidates(base: Path, tmp_path: Path) -> None:
    with open_encoder(base, CPU, torch.float32) as encoder:
        mined = load_or_mine(tmp_path, SETS, replace(RECIPE, search="both"), encoder)
        assert mined == load_or_mine(tmp_path, SETS, replace(RECIPE, search="both"), encoder)
    model, reader = open_base(base, 64, seed=0)

    def embed(text: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        ids = reader.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        bert: BertModel = model.bert.eval()
        with torch.no_grad():
            vector = bert(input_ids=ids).last_hidden_state[0].mean(0)
        unit: np.ndarray[tuple[int], np.dtype[np.float32]] = (vector / vector.norm()).numpy()
        return unit

    wanted = [float(embed("stone town") @ embed(PASSAGES[i])) for i in mined.candidates[0]]
    assert mined.encoder[0] == pytest.approx(wanted, abs=1e-5)
    near = sorted(range(7), key=lambda i: -float(embed("bread") @ embed(PASSAGES[i])))[:4]
    words = [0]  # the only other passage with the word; BM25 and vectors take turns
    turns = [words[0], *(i for i in near if i not in (3, 5, *words))]
    assert mined.negatives[1] == turns


def test_a_query_with_too_few_negatives_has_none_and_a_set_of_such_is_refused(
    tmp_path: Path,
) -> None:
    first, second = SETS.train
    hardly = replace(first, answers=("the", "old mill", "stone", "town", "bread market"))
    sets = replace(SETS, train=(hardly, second))
    assert load_or_mine(tmp_path, sets, RECIPE, None).negatives[0] == []
    (tmp_path / NAME).unlink()
    with pytest.raises(InputError, match="negatives=6: no query has so many passages"):
        load_or_mine(tmp_path, sets, replace(RECIPE, negatives=6), None)


def test_what_was_mined_is_read_again_and_only_for_the_same_data(tmp_path: Path) -> None:
    mined = load_or_mine(tmp_path, SETS, RECIPE, None)
    path = tmp_path / NAME
    rows = path.read_text().splitlines()
    changed = json.loads(rows[1])
    changed["negatives"] = [6, 4]
    path.write_text("\n".join([rows[0], json.dumps(changed), *rows[2:]]) + "\n")
    again = load_or_mine(tmp_path, SETS, RECIPE, None)  # read, not mined
    assert again == replace(mined, negatives=[[6, 4], mined.negatives[1]])
    other = replace(SETS, passages=(*PASSAGES, "one more"))
    with pytest.raises(InputError, match=r"mined with other data or settings: data: .* not "):
        load_or_mine(tmp_path, other, RECIPE, None)
    with pytest.raises(InputError, match="depth: 4, not 5"):
        load_or_mine(tmp_path, SETS, replace(RECIPE, depth=5), None)
