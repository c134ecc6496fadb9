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
    given = read_set(beir)
    workers = Workers(1, torch.device("cpu"))
    encoder = Encoder.load(stored("bert"), workers)

    def vector(text: str) -> torch.Tensor:
        return torch.from_numpy(asyncio.run(encoder.embed([text])).vectors[0])

    try:
        found = search(encoder, given, depth=3)
        by = measure(encoder, given)
        for query, names in found.items():
            asked = vector(given.queries[query])
            scores = {
                one.id: float(asked @ vector(f"{one.title}\n{one.text}" if one.title else one.text))
                for one in given.passages
            }
            wanted = sorted(scores, key=lambda name: -scores[name])[:3]
            assert [scores[n] for n in names] == pytest.approx([scores[n] for n in wanted])
    finally:
        encoder.close()
        workers.close()
    assert by["queries"] == len(given.queries) == len(by["by"])
    assert by["ndcg@10"] == pytest.approx(sum(by["by"].values()) / len(by["by"]))
