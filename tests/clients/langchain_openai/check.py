"""LangChain's OpenAI embeddings find what they should, and never send another tokenizer's ids."""

import os

import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

BASE = {"base_url": f"{os.environ['SERVER']}/v1", "api_key": "none", "max_retries": 0}
PASSAGES = ["The Danube ends in the Black Sea.", "Helium is a gas.", ""]
QUESTION = "Where does the Danube end?"


@pytest.fixture
def embeddings() -> OpenAIEmbeddings:
    return OpenAIEmbeddings(**BASE, model="minilm-l6", check_embedding_ctx_length=False)


def test_a_question_is_beside_its_answer(embeddings: OpenAIEmbeddings) -> None:
    rows = embeddings.embed_documents(PASSAGES)
    query = embeddings.embed_query(QUESTION)
    scores = [sum(a * b for a, b in zip(query, row, strict=True)) for row in rows]
    assert scores[0] == max(scores)
    assert scores[0] > 0.5


def test_more_texts_than_it_sends_at_once(embeddings: OpenAIEmbeddings) -> None:
    assert len(embeddings.embed_documents([f"passage {place}" for place in range(1200)])) == 1200


def test_token_ids_are_refused_by_the_setting_that_sends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tiktoken

    class Bytes:  # tiktoken's own table is fetched from the network
        def encode(self, text: str, **_: object) -> list[int]:
            return list(text.encode())

        encode_ordinary = encode

    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: Bytes())
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: Bytes())
    with pytest.raises(Exception, match="check_embedding_ctx_length=False"):
        OpenAIEmbeddings(**BASE, model="minilm-l6").embed_query(QUESTION)


def test_chat_answers_from_documents() -> None:
    chat = ChatOpenAI(**BASE, model="oscar-mini", extra_body={"documents": PASSAGES[:2]})
    assert isinstance(chat.invoke(QUESTION).content, str)


def test_a_conversation_is_answered_from_an_index_by_the_models_name_alone() -> None:
    chat = ChatOpenAI(**BASE, model="oscar-mini@samples", temperature=0, max_tokens=8)
    turns = [("system", "Be brief."), ("user", "What is a lake?"), ("assistant", "Water.")]
    asked = [*turns, ("user", QUESTION)]
    whole = chat.invoke(asked).content
    assert whole == chat.invoke(QUESTION).content
    assert "".join(str(part.content) for part in chat.stream(asked)) == whole
    newer = ChatOpenAI(**BASE, model="oscar-mini@samples", use_responses_api=True, max_tokens=8)
    assert newer.invoke(asked).text == whole
