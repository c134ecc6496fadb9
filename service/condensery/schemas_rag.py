"""The bodies of REST requests that a pair answers: compress, answer, compare, chat.

Ours refuse fields that they don't know. Chat's own, which are OpenAI's, are read as its clients
send them: what would change the answer and can't be had is refused where they are read.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue, WithJsonSchema

from condensery.answers import CompressionMode
from condensery.questions import (
    MAX_LOGPROBS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    SearchMode,
)
from condensery.schemas import Lenient, Many, Ours, as_document
from condensery.schemas_filter import GivenFilter

# What OpenAI takes, and what 64 bits hold.
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
ANSWER_TOKENS = 64
Probability = Annotated[FiniteFloat, Field(ge=0, le=1)]
Milliseconds = Annotated[FiniteFloat, Field(ge=1)]


class AnswerDocument(Ours):
    """A passage to read for an answer; ``id`` is by default its place."""

    id: str | None = None
    text: str
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


AnswerDocuments = Many[
    Annotated[
        AnswerDocument, BeforeValidator(as_document, json_schema_input_type=str | AnswerDocument)
    ]
]
DOCUMENTS = "Strings, or objects `{id, text, metadata}`."


class AnswerIndex(Ours):
    """Where to find the passages."""

    name: str
    top_k: int = Field(default=20, description="Passages to retrieve, and to compress.")
    mode: SearchMode | None = Field(
        default=None,
        description="By vectors, by words (BM25), or by both, their ranks fused. null: as the "
        "server is set.",
    )
    filter: GivenFilter | None = None


class AnswerRerank(Ours):
    """How many of the passages, the most relevant, the answer is generated from."""

    top_n: int | None = Field(
        default=None, description="0: all. null: as many as the pair reads best."
    )


class AnswerCompression(Ours):
    """Whether passages are compressed, and how far."""

    mode: CompressionMode = Field(
        default="auto",
        description="`auto` falls back on text, reported; `required` fails instead; `off` reads "
        "the passages' own tokens.",
    )
    ratio: int | None = Field(
        default=None, ge=1, description="Tokens a memory vector, of the rates that the pair has."
    )
    max_context_vectors: int | None = Field(
        default=None,
        ge=1,
        description="Most memory vectors to read: the finest rate that keeps to it, then fewer "
        "passages.",
    )
    target_ms: Milliseconds | None = Field(
        default=None,
        description="About how long compression and the first token may take: likewise.",
    )
    timeout_ms: Milliseconds | None = Field(
        default=None, description="Longest compression; then it counts as failed."
    )


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


# As the jobs check it.
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOPS)]
Stop = Annotated[
    Many[str] | None,
    BeforeValidator(_as_list, json_schema_input_type=StopString | StopStrings | None),
]
STOP = "A string that ends the answer, or several."
RELEVANCE = (
    "Under this score of the best passage nothing is generated, and the answer says that the "
    "passages don't hold it; 0 always generates. null: as the pair declares."
)


class AnswerRequest(Ours):
    """``POST /v1/rag/answer``: a question with ``documents``, an ``index`` or a ``context``."""

    query: str
    documents: AnswerDocuments | None = Field(default=None, description=DOCUMENTS)
    index: AnswerIndex | None = None
    context: str | None = Field(
        default=None, description="What `/v1/compress` gave for the same question, and to this key."
    )
    rerank: AnswerRerank = Field(default_factory=AnswerRerank)
    compression: AnswerCompression = Field(default_factory=AnswerCompression)
    min_relevance: Probability | None = Field(default=None, description=RELEVANCE)
    model: str | None = Field(default=None, description="A pair; by default the default one.")
    max_tokens: int = ANSWER_TOKENS
    temperature: FiniteFloat = Field(
        default=0.0, ge=0, le=MAX_TEMPERATURE, description="0 takes the best token always."
    )
    top_p: FiniteFloat = Field(default=1.0, gt=0, le=1)
    seed: Seed | None = Field(
        default=None, description="The same one gives the same answer again; null draws anew."
    )
    stop: Stop = Field(default=None, description=STOP)
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Report each token's log-probability, and those of so many likeliest ones.",
    )
    stream: bool = False


class CompareRequest(AnswerRequest):
    """``POST /v1/rag/compare``: the body of ``/v1/rag/answer``; it is not streamed."""

    stream: Literal[False] = Field(default=False, description="A comparison comes whole.")


class CompressRequest(Ours):
    """``POST /v1/compress``: documents to compress for a question."""

    query: str
    documents: AnswerDocuments = Field(description=DOCUMENTS)
    model: str | None = Field(default=None, description="A pair; by default the default one.")
    ratio: int | None = Field(
        default=None, ge=1, description="Tokens a memory vector; by default the pair's finest rate."
    )
    ttl_s: FiniteFloat = Field(
        default=600.0, description="How long the server holds the vectors, seconds."
    )
    returns: Literal["handle", "stats"] = Field(
        default="handle",
        alias="return",
        description="`handle`: the vectors are held, to answer from. `stats`: they are not.",
    )


def _as_index(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


TEXT_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}


class ChatMessage(Lenient):
    """A message. The last one is the question; earlier ones are not read."""

    role: str = Field(description="The last one's is `user`.")
    content: Annotated[
        Any, WithJsonSchema({"anyOf": [{"type": "string"}, TEXT_PARTS, {"type": "null"}]})
    ] = Field(default=None, description='The last one\'s: a string, or parts `{"type": "text"}`.')


class StreamOptions(Lenient):
    """How a chat is streamed."""

    include_usage: bool | None = Field(
        default=None, description="One chunk more, without choices, has the usage."
    )


class ChatRequest(Lenient):
    """``POST /v1/chat/completions``: OpenAI's body, and where the passages are.

    Of OpenAI's fields those that would change the answer and can't be had (tools, n over 1, images,
    penalties, ...) are refused by name.
    """

    messages: Many[ChatMessage] = Field(min_length=1)
    model: str | None = Field(default=None, description="A pair; by default the default one.")
    documents: AnswerDocuments | None = Field(default=None, description=DOCUMENTS)
    index: (
        Annotated[
            AnswerIndex,
            BeforeValidator(_as_index, json_schema_input_type=str | AnswerIndex),
        ]
        | None
    ) = Field(default=None, description="An index's name, or an object.")
    context: str | None = Field(
        default=None, description="What `/v1/compress` gave for the same question, and to this key."
    )
    rerank: AnswerRerank = Field(default_factory=AnswerRerank)
    compression: AnswerCompression = Field(default_factory=AnswerCompression)
    min_relevance: Probability | None = Field(default=None, description=RELEVANCE)
    history: Literal["ignore"] | None = Field(
        default=None,
        description="A pair reads one question: earlier messages are refused, or ignored.",
    )
    max_tokens: int | None = Field(default=None, description=f"By default {ANSWER_TOKENS}.")
    max_completion_tokens: int | None = Field(default=None, description="The same, OpenAI's way.")
    temperature: FiniteFloat | None = Field(
        default=None, ge=0, le=MAX_TEMPERATURE, description="By default 0, the best token always."
    )
    top_p: FiniteFloat | None = Field(default=None, gt=0, le=1)
    seed: Seed | None = None
    stop: Stop = Field(default=None, description=STOP)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
