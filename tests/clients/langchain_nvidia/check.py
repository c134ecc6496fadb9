"""LangChain's NVIDIAEmbeddings and NVIDIARerank, with a model's name and without."""

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_nvidia_ai_endpoints import NVIDIAEmbeddings, NVIDIARerank
from plain import URL, ask

PASSAGES = ["Helium is a gas.", "The Danube ends in the Black Sea.", "A mill grinds grain."]
QUESTION = "Where does the Danube end?"


def test_vectors_are_those_of_the_plain_route() -> None:
    embeddings = NVIDIAEmbeddings(base_url=f"{URL}/v1", model="minilm-l6", truncate="NONE")
    rows = np.array(ask("/embed", {"inputs": PASSAGES}), np.float32)
    assert np.array_equal(np.array(embeddings.embed_documents(PASSAGES), np.float32), rows)
    with pytest.raises(Exception, match="input"):
        embeddings.embed_query("word " * 1000)
    cut = NVIDIAEmbeddings(base_url=f"{URL}/v1", model="minilm-l6", truncate="START")
    assert len(cut.embed_query("word " * 1000)) == 384


@pytest.mark.filterwarnings("ignore")
def test_without_a_name_a_reranker_ranks() -> None:
    documents = [Document(page_content=text) for text in PASSAGES]
    found = []
    for options in (
        {"base_url": f"{URL}/rerank/v1"},
        {"base_url": URL, "model": "oscar-mini"},
    ):
        reranker = NVIDIARerank(**options, top_n=2, truncate="END")
        found.append([d.page_content for d in reranker.compress_documents(documents, QUESTION)])
    assert found[0] == found[1]
    assert len(found[0]) == 2
