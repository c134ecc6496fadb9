"""A text's numbers are the same alone and among others, at the doors that take several."""

from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from condensery.stubs import tei_v1_pb2 as tei
from condensery.stubs import tei_v1_pb2_grpc as stubs

LEAST_COSINE = 0.9995  # bfloat16, where the machine computes in it
WORDS = st.sampled_from(["mill", "river", "naïve", "北京", "a", "the old stone bridge", "42", "!"])
TEXTS = st.lists(st.lists(WORDS, max_size=60).map(" ".join), min_size=2, max_size=12)

few = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def close(together: Any, alone: Any) -> None:
    cosines = np.sum(np.array(together) * np.array(alone), axis=1)
    assert cosines.min() >= LEAST_COSINE


@few
@given(texts=TEXTS)
def test_of_cohere(live_server: Any, texts: list[str]) -> None:
    def ask(some: list[str]) -> Any:
        body = {"texts": some, "embedding_types": ["float"]}
        reply = httpx.post(f"{live_server.url}/v2/embed", json=body, timeout=60).json()
        return reply["embeddings"]["float"]

    close(ask(texts), [ask([text])[0] for text in texts])


@few
@given(texts=TEXTS)
def test_of_teis_streams(live_server: Any, texts: list[str]) -> None:
    with grpc.insecure_channel(live_server.grpc) as channel:
        stub = stubs.EmbedStub(channel)
        asked = [tei.EmbedRequest(inputs=text, truncate=True) for text in texts]
        together = [list(item.embeddings) for item in stub.EmbedStream(iter(asked))]
        close(together, [list(stub.Embed(entry).embeddings) for entry in asked])


@few
@given(texts=TEXTS)
def test_of_teis_ranking(live_server: Any, texts: list[str]) -> None:
    with grpc.insecure_channel(live_server.grpc) as channel:
        stub = stubs.RerankStub(channel)
        together = stub.Rerank(tei.RerankRequest(query="where is the mill", texts=texts))
        for rank in together.ranks:
            text = texts[rank.index]
            alone = stub.Rerank(tei.RerankRequest(query="where is the mill", texts=[text]))
            assert rank.score == pytest.approx(alone.ranks[0].score, abs=2e-2)
