"""Tiny pairs that run, of both kinds, and questions about mills for them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tiny_causal import bpe, causal_shape, tiny_causal, with_specials, write_halves
from tiny_pair import pair_files, tiny_pair

from condensery.networks.oscar_loading import open_texts
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import pair_info, prepare_for_inference, runnable_causal_pair
from condensery.runtime.workers import Workers

Row = dict[str, Any]
PLACES = ("old", "new", "stone", "bread", "long", "town")


def row(context: str, title: str, answers: list[str], question: str = "what?") -> Row:
    return {"question": question, "context": context, "title": title, "answers": answers}


def some_rows() -> list[Row]:
    """Eighteen questions of six articles, each of a passage of its own."""
    return [
        row(
            f"In the {place} market the mill number {10 * t + i} is on the river.",
            f"Article {t}",
            [f"{10 * t + i}"],
            f"what number is the mill in the {place} market?",
        )
        for t, place in enumerate(PLACES, start=1)
        for i in range(3)
    ]


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    return some_rows()


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OscarModel]:
    """A pair with a BERT-size compressor and a rerank head."""
    pair = prepare_for_inference(tiny_pair())
    workers = Workers(2)
    with ThreadPoolExecutor(1) as threads:
        files = pair_files(tmp_path_factory.mktemp("pair"), pair)
        running = OscarModel.of(pair, files, workers, name="tiny", threads=threads)
        yield running
        running.close()
    workers.close()


@pytest.fixture(scope="session")
def causal_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OscarModel]:
    """A pair of two causal language models, without a rerank head."""
    pair, _ = tiny_causal()
    tokenizers = bpe("llama"), with_specials(bpe("mistral"))
    files = write_halves(tmp_path_factory.mktemp("causal"), pair, *tokenizers)
    ready = runnable_causal_pair(pair, open_texts(files, causal_shape().to_dict()))
    workers = Workers(2)
    with ThreadPoolExecutor(1) as threads:
        running = OscarModel(ready, workers, info=pair_info(ready, name="causal"), threads=threads)
        yield running
        running.close()
    workers.close()
