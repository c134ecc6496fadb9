"""LangChain's Cohere reranker."""

import os

from langchain_cohere import CohereRerank
from langchain_core.documents import Document

passages = ["Helium is a gas.", "The Danube ends in the Black Sea.", "A mill grinds grain."]
reranker = CohereRerank(
    base_url=os.environ["SERVER"], cohere_api_key="none", model="minilm-l6", top_n=2
)
documents = [Document(page_content=text, metadata={"place": n}) for n, text in enumerate(passages)]
best = reranker.compress_documents(documents, "Where does the Danube end?")
assert [one.metadata["place"] for one in best][0] == 1, best
scores = [one.metadata["relevance_score"] for one in best]
assert len(scores) == 2 and scores == sorted(scores, reverse=True)
print("ok")
