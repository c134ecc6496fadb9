"""Our retriever for LangChain, over the index of samples."""

import asyncio
import os

import pytest
from plain import ask

from condensery.client.langchain import IndexRetriever
from condensery.errors import IndexNotFound

URL = os.environ["SERVER"]
QUESTION = "Which lake does the Rhine pass through?"


def test_documents_are_what_the_index_finds() -> None:
    hits = ask("/v1/indexes/samples/query", {"query": QUESTION, "top_k": 3})["results"]
    retriever = IndexRetriever(index="samples", url=URL, top_k=3)
    for found in (retriever.invoke(QUESTION), asyncio.run(retriever.ainvoke(QUESTION))):
        assert [document.page_content for document in found] == [hit["text"] for hit in hits]
        best = found[0].metadata
        assert (best["document_id"], best["title"]) == ("rhine", "Rhine")
        assert best["score"] == pytest.approx(hits[0]["score"])


def test_a_filter_and_a_missing_index_are_heard() -> None:
    other = {"must_not": [{"has_id": ["rhine"]}]}
    retriever = IndexRetriever(index="samples", url=URL, filter=other, search="bm25")
    assert "rhine" not in [found.metadata["document_id"] for found in retriever.invoke(QUESTION)]
    with pytest.raises(IndexNotFound):
        IndexRetriever(index="nope", url=URL).invoke(QUESTION)
