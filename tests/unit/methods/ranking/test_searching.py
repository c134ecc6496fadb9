import asyncio
from pathlib import Path

import pytest
import torch
from tests.unit.methods.conftest import Stored

from condensery.methods.ranking.measures import measure, search
from condensery.methods.ranking.sets import read_set
from condensery.runtime.encoder import Encoder
from condensery.runtime.workers import Workers


def test_a_search_is_by_inner_products_over_the_whole_corpus(beir: Path, stored: Stored) -> None:
    ranking_set = read_set(beir)
    workers = Workers(1, torch.device("cpu"))
    encoder = Encoder.load(stored("bert"), workers)

    def vector(text: str) -> torch.Tensor:
        return torch.from_numpy(asyncio.run(encoder.embed([text])).vectors[0])

    try:
        hits = search(encoder, ranking_set, depth=3)
        by = measure(encoder, ranking_set)
        for query, names in hits.items():
            asked = vector(ranking_set.queries[query])
            scores = {
                passage.id: float(
                    asked
                    @ vector(f"{passage.title}\n{passage.text}" if passage.title else passage.text)
                )
                for passage in ranking_set.passages
            }
            wanted = sorted(scores, key=lambda name: -scores[name])[:3]
            assert [scores[n] for n in names] == pytest.approx([scores[n] for n in wanted])
    finally:
        encoder.close()
        workers.close()
    assert by["queries"] == len(ranking_set.queries) == len(by["by"])
    assert by["ndcg@10"] == pytest.approx(sum(by["by"].values()) / len(by["by"]))
