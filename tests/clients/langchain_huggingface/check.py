"""LangChain's Hugging Face embeddings are the server's, one at a time and many."""

import os

from huggingface_hub import InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings

PASSAGES = ["The Danube ends in the Black Sea.", "Helium is a gas.", "A mill grinds grain."]


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def test_a_question_is_beside_its_answer_and_lists_are_as_one_by_one() -> None:
    embeddings = HuggingFaceEndpointEmbeddings(model="minilm-l6")
    embeddings.client = InferenceClient(os.environ["SERVER"])
    rows = embeddings.embed_documents(PASSAGES)
    query = embeddings.embed_query("Where does the Danube end?")
    scores = [dot(query, row) for row in rows]
    assert scores[0] == max(scores)
    assert scores[0] > 0.5
    for text, row in zip(PASSAGES, rows, strict=True):
        assert dot(embeddings.embed_query(text), row) > 0.9995
