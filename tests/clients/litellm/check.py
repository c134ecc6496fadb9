"""LiteLLM by each of its providers that this server speaks: chat, vectors, rankings."""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it is fetched

import litellm
import pytest
from plain import URL, ask

PASSAGES = ["Helium is a gas.", "The Rhine passes through Lake Constance.", "Vasa sank in 1628."]
QUESTION = "Which lake does the Rhine pass through?"
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is a lake?"},
    {"role": "assistant", "content": "Water."},
    {"role": "user", "content": QUESTION},
]
V1 = {"api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0}
HERE = {**V1, "api_base": URL}
FEATURES = {"input_type": "feature-extraction"}  # without it Hugging Face's hub is asked


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "litellm_proxy"])
def test_a_conversation_is_answered_whole_and_streamed_alike(provider: str) -> None:
    body = {"query": QUESTION, "index": {"name": "samples"}, "max_tokens": 8}
    answer = ask("/v1/rag/answer", body)["answer"]
    asked = {"model": f"{provider}/oscar-mini@samples", "messages": TURNS, "max_tokens": 8}
    whole = litellm.completion(**asked, **V1)
    assert whole.choices[0].message.content == answer != ""
    assert whole.usage.completion_tokens > 0
    parts = list(
        litellm.completion(**asked, **V1, stream=True, stream_options={"include_usage": True})
    )
    joined = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert joined == answer
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_response_is_the_same_answer() -> None:
    asked = {"model": "openai/oscar-mini@samples", "max_output_tokens": 16}  # it sends no fewer
    done = litellm.responses(**asked, input=QUESTION, **V1)
    body = {"query": QUESTION, "index": {"name": "samples"}, "max_tokens": 16}
    assert done.output[0].content[0].text == ask("/v1/rag/answer", body)["answer"]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("openai/minilm-l6", V1),
        ("hosted_vllm/minilm-l6", V1),
        ("nvidia_nim/minilm-l6", {**V1, "input_type": "query"}),
        ("infinity/minilm-l6", {**V1, "api_base": f"{URL}/embeddings"}),
        ("jina_ai/minilm-l6", {**V1, "api_base": f"{URL}/v1/embeddings"}),
        ("voyage/minilm-l6", {**V1, "api_base": f"{URL}/v1/embeddings"}),
        ("cohere/minilm-l6", {**V1, "api_base": f"{URL}/v2/embed", "input_type": "search_query"}),
        ("huggingface/minilm-l6", {**HERE, "api_base": f"{URL}/embed", **FEATURES}),
        ("ollama/minilm-l6", HERE),
        ("triton/minilm-l6", {**HERE, "api_base": f"{URL}/v2/models/minilm-l6/infer"}),
    ],
)
def test_vectors_are_those_of_the_plain_route(model: str, options: dict[str, object]) -> None:
    rows = ask("/embed", {"inputs": PASSAGES})
    data = litellm.embedding(model=model, input=PASSAGES, **options).data
    assert len(data) == len(rows)
    for item, row in zip(data, rows, strict=True):
        assert item["embedding"] == pytest.approx(row, abs=5e-3)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("cohere/oscar-mini", HERE),
        ("hosted_vllm/oscar-mini", V1),
        ("infinity/oscar-mini", HERE),
        ("jina_ai/oscar-mini", {**HERE, "api_base": f"{URL}/v1/rerank"}),
        ("voyage/oscar-mini", {**HERE, "api_base": f"{URL}/v1/rerank"}),
        ("nvidia_nim/oscar-mini", HERE),
        ("nvidia_nim/ranking/oscar-mini", HERE),
    ],
)
def test_a_ranking_is_that_of_the_plain_route(model: str, options: dict[str, object]) -> None:
    body = {"query": QUESTION, "texts": PASSAGES, "model": "oscar-mini"}
    wanted = [ranked["index"] for ranked in ask("/rerank", body)]
    done = litellm.rerank(model=model, query=QUESTION, documents=PASSAGES, top_n=2, **options)
    assert [ranked["index"] for ranked in done.results] == wanted[:2]


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"model": "openai/gpt-4o"}, litellm.NotFoundError),
        ({"model": "openai/oscar-mini@gone"}, litellm.NotFoundError),
        ({"response_format": {"type": "json_object"}}, litellm.BadRequestError),
    ],
)
def test_refusals_are_its_own_errors(more: dict[str, object], kind: type) -> None:
    with pytest.raises(kind):
        litellm.completion(
            **{"model": "openai/oscar-mini@samples", "messages": TURNS, **V1, **more}
        )
