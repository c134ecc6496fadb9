"""LangChain's Cohere embeddings and reranker."""

import os

from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_core.documents import Document

PASSAGES = ["Helium is a gas.", "The Danube ends in the Black Sea.", "A mill grinds grain."]


def test_documents_come_best_first() -> None:
    reranker = CohereRerank(
        base_url=os.environ["SERVER"], cohere_api_key="none", model="oscar-mini", top_n=2
    )
    documents = [
        Document(page_content=text, metadata={"place": n}) for n, text in enumerate(PASSAGES)
    ]
    best = reranker.compress_documents(documents, "Where does the Danube end?")
    assert len(best) == 2
    scores = [document.metadata["relevance_score"] for document in best]
    assert scores == sorted(scores, reverse=True)


def test_a_question_is_beside_its_answer() -> None:
    embeddings = CohereEmbeddings(
        base_url=os.environ["SERVER"], cohere_api_key="none", model="minilm-l6"
    )
    rows = embeddings.embed_documents(PASSAGES)
    query = embeddings.embed_query("Where does the Danube end?")
    scores = [sum(a * b for a, b in zip(query, row, strict=True)) for row in rows]
    assert scores[1] == max(scores)
