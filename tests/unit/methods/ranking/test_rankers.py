import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_pair import pair_files, sharpen, text_of, tiny_pair

from condensery.errors import ModelFault
from condensery.methods.ranking.rankers import CrossEncoderRanker, EncoderRanker, PairRanker
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import prepare_for_inference
from condensery.runtime.workers import Workers
from condensery.values import Embedded, Floats


def vector_of(text: str) -> Floats:
    raw = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    return raw.astype(np.float32) / 255 - 0.5


class Vectors:
    """An encoder whose vectors hang on the text and its prompt."""

    def __init__(self, **prompts: str) -> None:
        self.info = SimpleNamespace(
            name="v", fingerprint="sha256:v", dtype="float32", max_tokens=64
        )
        self.prompts = prompts
        self.default_prompt: str | None = None
        self.embedded: list[str] = []

    async def embed(self, texts: Sequence[str], *, prompt: str = "") -> Embedded:
        self.embedded += texts
        vectors = np.stack([vector_of(prompt + text) for text in texts])
        return Embedded("v", "sha256:v", vectors, 0)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[OscarModel]:
    pair = tiny_pair()
    sharpen(pair.compressor, 3)
    files = pair_files(tmp_path / "pair", pair)
    workers = Workers(1)
    with ThreadPoolExecutor(1) as threads:
        running = OscarModel.of(
            prepare_for_inference(pair), files, workers, name="tiny", threads=threads
        )
        yield running
        running.close()
        workers.close()


@pytest.mark.parametrize(
    "prompts",
    [{}, {"query": "q: ", "passage": "p: "}, {"search_query": "q: ", "search_document": "p: "}],
)
def test_an_encoder_scores_by_inner_products_and_reads_passages_once(
    prompts: dict[str, str],
) -> None:
    encoder: Any = Vectors(**prompts)
    ranker = EncoderRanker(encoder)
    texts = [f"passage {i}" for i in range(130)]
    ranker.prepare([*texts, *texts])
    assert encoder.embedded == texts
    for query in ("one", "two"):
        wanted = [
            vector_of(("p: " if prompts else "") + text)
            @ vector_of(("q: " if prompts else "") + query)
            for text in texts
        ]
        assert ranker.scores(query, texts) == pytest.approx([float(x) for x in wanted], abs=1e-5)
    assert encoder.embedded == [*texts, "one", "two"]


def test_a_pair_scores_as_its_rerank_head_does_long_passages_by_their_best_window(
    reader: OscarModel,
) -> None:
    ranker = PairRanker(reader)
    texts = [text_of(n, seed=n) for n in (5, 20, 60)]
    query = text_of(6, seed=1)
    scored = ranker.scores(query, texts)
    compressed = asyncio.run(reader.compress(query, texts))
    assert scored == pytest.approx(
        [getattr(passage, "relevance", None) for passage in compressed], abs=1e-4
    )
    assert scored == pytest.approx([ranker.scores(query, [text])[0] for text in texts], abs=1e-4)
    assert len({round(score, 3) for score in scored}) == 3
    assert ranker.says["model"] == "tiny"


def test_a_cross_encoder_s_scores_are_kept_in_order_and_nan_is_refused() -> None:
    scores = {"a": 1.5, "b": -2.0, "c": float("nan")}
    model: Any = SimpleNamespace(scores=lambda query, texts: [scores[text] for text in texts])
    ranker = CrossEncoderRanker(model, {"model": "x"})
    assert ranker.prepare(["a"]) == 0
    assert ranker.scores("q", ["b", "a"]) == [-2.0, 1.5]
    with pytest.raises(ModelFault, match="not finite"):
        ranker.scores("q", ["a", "c"])
