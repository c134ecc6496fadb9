import json
import math
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from condensery.errors import InputError
from condensery.methods.ranking.evaluation import compare, main, measure, reorder, retrieve
from condensery.methods.ranking.measures import ndcg
from condensery.methods.ranking.retrieval import Retriever
from condensery.methods.ranking.sets import parse_set, read_set


class Words:
    """Scores a passage by the words it shares with the query; stops after so many queries."""

    def __init__(self, stop_after: int = 1000) -> None:
        self.says: dict[str, object] = {"model": "words"}
        self.asked: list[str] = []
        self.prepared: list[str] = []
        self._stop_after = stop_after

    def prepare(self, texts: Sequence[str]) -> float:
        self.prepared += texts
        return 0.0

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        if len(self.asked) == self._stop_after:
            raise KeyboardInterrupt
        self.asked.append(query)
        wanted = set(query.split())
        return [len(wanted & set(text.split())) / len(text.split()) for text in texts]


def test_reranking_is_sorting_by_the_scores() -> None:
    rng = random.Random(0)
    for _ in range(50):
        names = [f"d{i}" for i in range(rng.randint(1, 20))]
        rng.shuffle(names)
        scores = {name: rng.choice([0.0, 1.0, 2.5, -3.0]) for name in names}
        order = reorder(names, scores)
        assert sorted(order) == sorted(names)
        values = [scores[name] for name in order]
        assert values == sorted(values, reverse=True)
        for a, b in pairwise(order):  # of equal ones the earlier first
            assert scores[a] > scores[b] or names.index(a) < names.index(b)


def test_each_order_is_measured_on_the_same_candidates(beir: Path, tmp_path: Path) -> None:
    ranking_set = read_set(beir)
    figures = measure(ranking_set, {"pair": Words()}, tmp_path / "work", depth=3)
    with Retriever.build(ranking_set.passages, tmp_path / "index") as retriever:
        hits = retriever.search(list(ranking_set.queries.values()), 3, "bm25")
    bm25 = {
        q: [name for name, _ in ranked] for q, ranked in zip(ranking_set.queries, hits, strict=True)
    }
    texts = {
        passage.id: f"{passage.title}\n{passage.text}" if passage.title else passage.text
        for passage in ranking_set.passages
    }
    words = Words()
    order = {
        q: sorted(
            names, key=lambda name, q=q: words.scores(ranking_set.queries[q], [texts[name]])[0],
            reverse=True,
        )
        for q, names in bm25.items()
    }  # fmt: skip
    for name, expected in (("bm25", bm25), ("pair", order)):
        by_query = ndcg(expected, ranking_set.judged)
        assert figures[name]["ndcg10"] == pytest.approx(sum(by_query.values()) / 4, abs=5e-5)
        assert figures[name]["low"] <= figures[name]["ndcg10"] <= figures[name]["high"]
    difference = figures["differences"]["pair_minus_bm25"]["ndcg10"]
    assert difference == pytest.approx(
        figures["pair"]["ndcg10"] - figures["bm25"]["ndcg10"], abs=2e-4
    )
    assert (figures["queries"], figures["depth"], figures["pair"]["model"]) == (4, 3, "words")
    assert figures["pair"]["seconds"] >= 0


def test_the_place_found_counts_by_its_logarithm() -> None:
    names = ["a", "b", "c", "d"]
    scores = {"a": 0.0, "b": 0.5, "c": 1.2, "d": 1.3}
    for weight in (0.0, 0.3, 0.7, 1.0, 40.0):
        expected = sorted(names, key=lambda n: weight * math.log(names.index(n) + 1) - scores[n])
        assert reorder(names, scores, weight) == expected
    assert reorder(names, scores, 0.0) == ["d", "c", "b", "a"]
    assert reorder(names, scores, 40.0) == names


def test_perfect_orders_are_bounded_by_what_was_found(beir: Path) -> None:
    ranking_set = read_set(beir)
    candidates = {"q0": ["p4", "p5"], "q1": ["p3"], "q2": ["p5"], "q3": ["p0", "p2"]}
    perfect = {
        q: reorder(names, {name: ranking_set.judged[q].get(name, 0) for name in names})
        for q, names in candidates.items()
    }
    figures = compare(ranking_set, candidates, {"bm25": candidates, "pair": perfect}, seed=1)
    assert figures["recall"] == pytest.approx((1 / 2 + 1 + 0 + 1) / 4)
    best = 2 + 1 / math.log2(3)
    assert figures["pair"]["ndcg10"] == pytest.approx((1 / best + 1 + 0 + 1) / 4, abs=1e-4)
    assert figures["bm25"]["ndcg10"] == pytest.approx(
        (1 / best + 1 + 0 + 1 / math.log2(3)) / 4, abs=1e-4
    )


def test_a_run_that_is_stopped_goes_on_and_says_the_same(beir: Path, tmp_path: Path) -> None:
    ranking_set = read_set(beir)
    whole = measure(ranking_set, {"pair": Words()}, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        measure(ranking_set, {"pair": Words(stop_after=2)}, tmp_path / "cut")
    rest = Words()
    resumed = measure(ranking_set, {"pair": rest}, tmp_path / "cut")
    assert rest.asked == list(ranking_set.queries.values())[2:]
    for figures in (whole, resumed):
        for name in ("bm25", "pair"):
            del figures[name]["seconds"]
    assert resumed == whole


def test_only_what_is_still_to_be_scored_is_read_ahead(beir: Path, tmp_path: Path) -> None:
    ranking_set = read_set(beir, queries=1, seed=1)
    ranker = Words()
    measure(ranking_set, {"encoder": ranker}, tmp_path, depth=2)
    assert 0 < len(ranker.prepared) <= 2
    again = Words()
    measure(ranking_set, {"encoder": again}, tmp_path, depth=2)
    assert again.prepared == again.asked == []


def test_scores_of_another_depth_are_refused(beir: Path, tmp_path: Path) -> None:
    ranking_set = read_set(beir)
    measure(ranking_set, {"pair": Words()}, tmp_path, depth=3)
    with pytest.raises(InputError, match="another depth"):
        measure(ranking_set, {"pair": Words()}, tmp_path, depth=4)


def test_a_query_that_finds_nothing_counts_zero(beir: Path, tmp_path: Path) -> None:
    text = (beir / "qrels.test.tsv").read_text()
    (beir / "qrels.test.tsv").write_text(f"{text}q4\tp5\t1\n")
    ranking_set = read_set(beir)
    candidates, _ = retrieve(ranking_set, 5, tmp_path / "found")
    assert candidates["q4"] == []
    figures = measure(ranking_set, {"pair": Words()}, tmp_path / "work")
    assert figures["bm25"]["ndcg10"] <= 0.8


def test_a_set_may_name_its_split(beir: Path) -> None:
    assert parse_set(str(beir), split="test") == (beir, "test")
    assert parse_set(f"{beir}:train", split="test") == (beir, "train")
    assert parse_set("nowhere", split="test") == (Path("nowhere"), "test")


@pytest.mark.tiny_run
def test_the_command_reranks_by_stored_models(
    beir: Path, tmp_path: Path, store_with_pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--set", str(beir), "--store", str(store_with_pair), "--encoder", "minilm-l6"]
    command += ["--pair", "oscar-mini", "--work", str(tmp_path / "work"), "--dtype", "float32"]
    main([*command, "--out", str(tmp_path / "part.json")])
    part = json.loads((tmp_path / "part.json").read_text())
    assert part == json.loads(capsys.readouterr().out)
    figures = part["rerank"]["tiny"]
    assert figures["encoder"]["model"] == "minilm-l6"
    assert figures["encoder"]["ndcg10"] == pytest.approx(1.0, abs=0.2)
    assert str(tmp_path.parent) not in figures["command"]
    lines = (tmp_path / "work" / "tiny" / "pair.jsonl").read_text().splitlines()
    scores = [json.loads(line) for line in lines[1:]]
    assert [row["query"] for row in scores] == ["q0", "q1", "q2", "q3"]
    # By vectors and words, with the places there: both ends of the weight are the two orders.
    main([*command, "--search", "hybrid", "--rank-weight", "0", "100"])
    figures = json.loads(capsys.readouterr().out)["rerank"]["tiny"]
    assert figures["search"] == "hybrid"
    assert figures["pair_with_place_0"]["ndcg10"] == figures["pair"]["ndcg10"]
    assert figures["pair_with_place_100"]["ndcg10"] == figures["hybrid"]["ndcg10"]
    assert figures["pair_with_place_100"]["rank_weight"] == 100
    for wrong, says in (
        (["--rank-weight", "-1"], "rank_weight: -1 is not 0 to 100"),
        (["--rank-weight", "nan"], "rank_weight: nan is not 0 to 100"),
    ):
        with pytest.raises(InputError, match=says):
            main([*command, *wrong])
    without = [*command[:4], "--work", str(tmp_path / "other")]
    with pytest.raises(InputError, match="search: dense needs --encoder"):
        main([*without, "--search", "dense"])
    with pytest.raises(InputError, match="rank_weight: weighs a pair's scores"):
        main([*without, "--rank-weight", "1"])
    with pytest.raises(InputError, match="encoder: 'oscar-mini' is of kind 'oscar-pair'"):
        main([*command[:4], "--encoder", "oscar-mini", "--work", str(tmp_path / "other")])
