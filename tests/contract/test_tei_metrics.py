"""Dashboards made for text-embeddings-inference: its metrics on a real scrape."""

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from condensery.client.grpc import GrpcClient


def read(url: str) -> dict[str, float]:
    text = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    return {
        "".join([sample.name, *(f"|{value}" for value in sample.labels.values())]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("te_")
    }


def test_what_tei_counts_is_counted_over_both_doors(live_server: Any) -> None:
    before = read(live_server.url)

    def more(name: str) -> float:
        return after[name] - before[name]

    with httpx.Client(base_url=live_server.url, timeout=60, trust_env=False) as http:
        for path, body, status in (
            ("/embed", {"inputs": "a text"}, 200),
            ("/embed", {"inputs": ["a text", "another", "and one"]}, 200),
            ("/v1/embeddings", {"input": ["one more"]}, 200),
            ("/rerank", {"query": "who?", "texts": ["a mill", "some bread"]}, 200),
            ("/tokenize", {"inputs": "a text"}, 200),
            ("/embed", {"inputs": []}, 400),
            ("/embed", {"inputs": 7}, 422),
            ("/predict", {"inputs": "a text"}, 424),
        ):
            assert http.post(path, json=body).status_code == status, path
    with GrpcClient(live_server.grpc) as rpc:
        rpc.embed(["over", "gRPC"])
    after = read(live_server.url)
    assert more("te_request_count|batch") == 2
    assert more("te_request_success|batch") == 2
    assert more("te_request_success|single") == 3
    assert more("te_request_count|single") == 3 + 3
    assert more("te_request_failure|empty") == 1
    assert more("te_request_failure|validation") == 1
    assert more("te_request_failure|model_type") == 1
    assert more("te_embed_success") == 1 + 3 + 1 + 2
    assert more("te_predict_success") == 2
    assert more("te_request_duration_count") == 5
    assert more("te_embed_duration_count") == 7
    assert more("te_embed_inference_duration_sum") > 0
    assert more("te_request_input_length_sum") > 20
    assert more("te_batch_next_size_sum") >= 9
    assert after["te_queue_size"] == 0
