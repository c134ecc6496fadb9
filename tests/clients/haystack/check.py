"""Haystack's chat generators, its embedders, and a pipeline of its own before a pair."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.converters import OutputAdapter
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.tools import Tool
from haystack.utils import Secret
from plain import URL, ask

QUESTION = "Which lake does the Rhine pass through?"
PASSAGES = ["The Rhine passes through Lake Constance.", "Helium is a gas.", "Vasa sank in 1628."]
TURNS = [
    ChatMessage.from_system("Be brief."),
    ChatMessage.from_user("What is a lake?"),
    ChatMessage.from_assistant("Water."),
    ChatMessage.from_user(QUESTION),
]
BASE = {"api_base_url": f"{URL}/v1", "api_key": Secret.from_token("none")}


@pytest.fixture(scope="module", params=["docs", "oscar-mini@samples"])
def model(request: pytest.FixtureRequest) -> Iterator[str]:
    ask("/v1/models/aliases", {"aliases": {"docs": "oscar-mini@samples"}})
    yield request.param
    ask("/v1/models/aliases", {"aliases": {"docs": None}})


def generator(model: str, **options: object) -> OpenAIChatGenerator:
    kwargs = {"max_tokens": 8, "temperature": 0, "seed": 1}
    return OpenAIChatGenerator(**BASE, model=model, generation_kwargs=kwargs, **options)


def test_a_conversation_is_answered_whole_and_streamed_alike(model: str) -> None:
    (whole,) = generator(model).run(TURNS)["replies"]
    body = {"query": QUESTION, "index": {"name": "samples"}, "max_tokens": 8}
    assert whole.text == ask("/v1/rag/answer", body)["answer"] != ""
    assert whole.meta["usage"]["completion_tokens"] > 0
    pieces: list[str] = []
    streaming = generator(model, streaming_callback=lambda chunk: pieces.append(chunk.content))
    (streamed,) = streaming.run(TURNS)["replies"]
    assert streamed.text == "".join(pieces) == whole.text
    assert streamed.meta["finish_reason"] == whole.meta["finish_reason"]
    (later,) = asyncio.run(generator(model).run_async(TURNS))["replies"]
    assert later.text == whole.text


def test_its_generator_of_responses_gives_the_same(model: str) -> None:
    (whole,) = generator(model).run(TURNS)["replies"]
    kwargs = {"max_output_tokens": 8}
    newer = OpenAIResponsesChatGenerator(**BASE, model=model, generation_kwargs=kwargs)
    (reply,) = newer.run(TURNS)["replies"]
    assert reply.text == whole.text


def test_tools_that_it_may_call_are_not_called(model: str) -> None:
    properties = {"type": "object", "properties": {"where": {"type": "string"}}}
    tool = Tool(name="look", description="Look.", parameters=properties, function=str)
    (reply,) = generator(model).run(TURNS, tools=[tool])["replies"]
    assert reply.text == generator(model).run(TURNS)["replies"][0].text
    assert not reply.tool_calls
    with pytest.raises(Exception, match="tool_choice"):
        generator(model).run(TURNS, generation_kwargs={"tool_choice": "required"}, tools=[tool])


def test_a_pipeline_sends_the_documents_that_it_found() -> None:
    embedder = {**BASE, "model": "minilm-l6"}
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    documents = [Document(content=text) for text in PASSAGES]
    store.write_documents(OpenAIDocumentEmbedder(**embedder).run(documents)["documents"])
    sent = "{{ {'extra_body': {'documents': documents | map(attribute='content') | list}} }}"
    pipeline = Pipeline()
    pipeline.add_component("question", OpenAITextEmbedder(**embedder))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=2))
    pipeline.add_component("passages", OutputAdapter(sent, output_type=dict[str, Any]))
    template = [ChatMessage.from_system("Be brief."), ChatMessage.from_user("{{ question }}")]
    pipeline.add_component("prompt", ChatPromptBuilder(template, required_variables="*"))
    pipeline.add_component("pair", generator("oscar-mini"))
    pipeline.connect("question.embedding", "retriever.query_embedding")
    pipeline.connect("retriever.documents", "passages.documents")
    pipeline.connect("passages.output", "pair.generation_kwargs")
    pipeline.connect("prompt.prompt", "pair.messages")
    inputs = {"question": {"text": QUESTION}, "prompt": {"question": QUESTION}}
    done = pipeline.run(inputs, include_outputs_from={"retriever"})
    found = [document.content for document in done["retriever"]["documents"]]
    assert found[0] == PASSAGES[0]
    body = {"query": QUESTION, "documents": found, "max_tokens": 8}
    assert done["pair"]["replies"][0].text == ask("/v1/rag/answer", body)["answer"]


def test_an_index_that_is_not_there_is_told_by_its_name() -> None:
    with pytest.raises(Exception, match="no index 'gone'"):
        generator("oscar-mini@gone", max_retries=0).run(TURNS)
