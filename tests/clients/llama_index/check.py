"""LlamaIndex's TEI embedding and reranker."""

import os

import pytest
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

URL = os.environ["SERVER"]
PASSAGES = ["Helium is a gas.", "The Danube ends in the Black Sea.", "A mill grinds grain."]
QUESTION = "Where does the Danube end?"


def test_a_question_is_beside_its_answer() -> None:
    embeddings = TextEmbeddingsInference(
        model_name="minilm-l6", base_url=URL, auth_token="Bearer none"
    )
    rows = embeddings.get_text_embedding_batch(PASSAGES)
    query = embeddings.get_query_embedding(QUESTION)
    scores = [sum(a * b for a, b in zip(query, row, strict=True)) for row in rows]
    assert scores[1] == max(scores)


@pytest.mark.parametrize("many", [1, 3])
def test_nodes_come_best_first(many: int) -> None:
    nodes = [NodeWithScore(node=TextNode(text=text), score=0) for text in PASSAGES]
    reranker = TextEmbeddingInference(base_url=URL, top_n=many)
    best = reranker.postprocess_nodes(nodes, query_str=QUESTION)
    scores = [node.score for node in best]
    assert len(best) == many
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
