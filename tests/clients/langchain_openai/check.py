"""LangChain's OpenAI embeddings find what they should, and never send another tokenizer's ids."""

import os

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

BASE = {"base_url": f"{os.environ['SERVER']}/v1", "api_key": "none", "max_retries": 0}
passages = ["The Danube ends in the Black Sea.", "Helium is a gas.", ""]
embeddings = OpenAIEmbeddings(**BASE, model="minilm-l6", check_embedding_ctx_length=False)
rows = embeddings.embed_documents(passages)
query = embeddings.embed_query("Where does the Danube end?")
scores = [sum(a * b for a, b in zip(query, row, strict=True)) for row in rows]
assert scores[0] == max(scores) > 0.5, scores
many = embeddings.embed_documents([f"passage number {place}" for place in range(1200)])
assert len(many) == 1200
try:
    import tiktoken

    tiktoken.get_encoding("cl100k_base")
except Exception:  # its file comes from the network
    encodings = False
else:
    encodings = True
if encodings:
    try:
        OpenAIEmbeddings(**BASE, model="minilm-l6").embed_query("Where does the Danube end?")
    except Exception as error:
        assert "check_embedding_ctx_length=False" in str(error), error
    else:
        raise AssertionError("token ids were embedded")
chat = ChatOpenAI(**BASE, model="oscar-mini", extra_body={"documents": passages[:2]})
assert isinstance(chat.invoke("Where does the Danube end?").content, str)
print("ok")
