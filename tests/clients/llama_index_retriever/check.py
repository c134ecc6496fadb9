"""Our retriever for LlamaIndex, over the index of samples."""

import asyncio
import os

import pytest
from plain import ask

from condensery.client.llama_index import IndexRetriever
from condensery.errors import IndexNotFound

URL = os.environ["SERVER"]
QUESTION = "Which lake does the Rhine pass through?"


def test_nodes_are_what_the_index_finds() -> None:
    hits = ask("/v1/indexes/samples/query", {"query": QUESTION, "top_k": 3})["results"]
    retriever = IndexRetriever("samples", url=URL, top_k=3)
    for found in (retriever.retrieve(QUESTION), asyncio.run(retriever.aretrieve(QUESTION))):
        assert [node.text for node in found] == [hit["text"] for hit in hits]
        assert [node.score for node in found] == pytest.approx([hit["score"] for hit in hits])
        best = found[0].node
        assert (best.metadata["document_id"], best.metadata["title"]) == ("rhine", "Rhine")
        assert best.end_char_idx - best.start_char_idx == len(best.text)


def test_a_filter_and_a_missing_index_are_heard() -> None:
    other = {"must_not": [{"has_id": ["rhine"]}]}
    retriever = IndexRetriever("samples", url=URL, filter=other, search="bm25")
    found = [node.metadata["document_id"] for node in retriever.retrieve(QUESTION)]
    assert "rhine" not in found
    with pytest.raises(IndexNotFound):
        IndexRetriever("nope", url=URL).retrieve(QUESTION)
