"""LangChain's Hugging Face embeddings are the server's, one at a time and many."""

import os

from langchain_huggingface import HuggingFaceEndpointEmbeddings

embeddings = HuggingFaceEndpointEmbeddings(model=os.environ["SERVER"])
passages = ["The Danube ends in the Black Sea.", "Helium is a gas.", "A mill grinds grain."]
rows = embeddings.embed_documents(passages)
assert [len(row) for row in rows] == [384] * 3
query = embeddings.embed_query("Where does the Danube end?")
scores = [sum(a * b for a, b in zip(query, row, strict=True)) for row in rows]
assert scores[0] == max(scores) > 0.5, scores
for text, row in zip(passages, rows, strict=True):
    alone = embeddings.embed_query(text)
    assert sum(a * b for a, b in zip(alone, row, strict=True)) > 0.9995
print("ok")
