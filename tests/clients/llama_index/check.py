"""LlamaIndex's TEI embedding and reranker, with and without a token."""

import os

from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

URL = os.environ["SERVER"]
passages = ["Helium is a gas.", "The Danube ends in the Black Sea.", "A mill grinds grain."]
embeddings = TextEmbeddingsInference(model_name="minilm-l6", base_url=URL, auth_token="Bearer none")
rows = embeddings.get_text_embedding_batch(passages)
query = embeddings.get_query_embedding("Where does the Danube end?")
scores = [sum(a * b for a, b in zip(query, row, strict=True)) for row in rows]
assert scores[1] == max(scores) > 0.4, scores
nodes = [NodeWithScore(node=TextNode(text=text), score=0) for text in passages]
for many in (1, 3):
    reranker = TextEmbeddingInference(base_url=URL, top_n=many)
    best = reranker.postprocess_nodes(nodes, query_str="Where does the Danube end?")
    found = [one.score for one in best]
    assert len(best) == many
    assert found == sorted(found, reverse=True)
    assert all(0 <= score <= 1 for score in found)
print("ok")
