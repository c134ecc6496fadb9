"""Bodies that ask a pair, as the question that the jobs take."""

from collections.abc import Sequence

from condensery.questions import Question, Sampling
from condensery.schemas_rag import AnswerDocument, AnswerIndex, AnswerRequest, ChatRequest
from condensery.values import Document

NO_INDEX = AnswerIndex(name="")


def question_of(body: AnswerRequest) -> Question:
    """Return what a body of ours asks."""
    sampling = Sampling(body.temperature, body.top_p, body.seed, body.logprobs)
    return make_question(body, body.query, body.max_tokens, sampling)


def make_question(
    body: AnswerRequest | ChatRequest, text: str, max_tokens: int, sampling: Sampling
) -> Question:
    """Return a question about the passages that a body names, read as it says."""
    index = body.index or NO_INDEX
    how = body.compression
    return Question(
        text,
        documents=None if body.documents is None else documents_of(body.documents),
        index=body.index.name if body.index else None,
        context=body.context,
        model=body.model,
        top_k=index.top_k,
        search=index.mode,
        filter=index.filter,
        top_n=body.rerank.top_n,
        mode=how.mode,
        rate=how.ratio,
        max_context_vectors=how.max_context_vectors,
        target_ms=how.target_ms,
        compress_timeout_ms=how.timeout_ms,
        min_relevance=body.min_relevance,
        max_tokens=max_tokens,
        stop=tuple(body.stop or ()),
        sampling=sampling,
    )


def documents_of(given: Sequence[AnswerDocument]) -> list[Document]:
    """Return documents as the jobs take them; without an id, a document's place is its id."""
    return [
        Document(one.id if one.id is not None else str(place), one.text, one.metadata)
        for place, one in enumerate(given)
    ]
