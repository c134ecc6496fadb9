"""The routes that run models on texts, and answer from them."""

from typing import Any

from condensery import errors, schemas, schemas_cohere, schemas_rag
from condensery.api.rest import (
    chat,
    cohere,
    compare,
    compress,
    embeddings,
    predict,
    rag,
    replies,
    replies_rag,
    rerank,
    tokens,
)
from condensery.api.rest.doors import Endpoint
from condensery.api.rest.routing import ENCODES, SEARCHES, Errors, Route

READS: Errors = (
    *ENCODES,
    *SEARCHES,
    errors.ContextTooLong,
    errors.ContextNotFound,
    errors.ContextExpired,
    errors.ContextMismatch,
    errors.CompressionFailed,
)
OPENAI_EMBEDDINGS = ("/v1/embeddings", "/embeddings", "/openai/v1/embeddings")


def _tei(path: str, endpoint: Endpoint, body: Any, reply: Any) -> Route:
    """Return one of TEI's routes that tell what an encoder makes of texts."""
    return Route(
        *("POST", path, endpoint, "embed"), family="tei", body=body, reply=reply, fails=ENCODES
    )


INFERENCE = (
    *(
        Route(
            *("POST", path, embeddings.openai_embeddings, "embed"),
            body=schemas.OpenAIEmbedRequest,
            reply=replies.Embeddings,
            other_media=embeddings.BYTES,
            fails=ENCODES,
            hot=True,
        )
        for path in OPENAI_EMBEDDINGS
    ),
    *(
        _tei(
            path,
            tokens.tei_root,
            schemas.TeiEmbedRequest
            | schemas.TeiPredictRequest
            | schemas.TeiSimilarityRequest
            | schemas.TeiRerankRequest,
            replies.Anything,
        )
        for path in ("/", "/invocations")
    ),
    _tei("/embed_all", tokens.tei_embed_all, schemas.TeiEmbedAllRequest, replies.TokenVectors),
    _tei("/similarity", tokens.tei_similarity, schemas.TeiSimilarityRequest, replies.Cosines),
    _tei("/tokenize", tokens.tei_tokenize, schemas.TeiTokenizeRequest, replies.Tokenized),
    _tei("/decode", tokens.tei_decode, schemas.TeiDecodeRequest, replies.Decoded),
    Route(
        *("POST", "/embed", embeddings.tei_embed, "embed"),
        family="tei",
        body=schemas.TeiEmbedRequest,
        reply=replies.Vectors,
        fails=ENCODES,
        hot=True,
    ),
    Route(
        *("POST", "/rerank", rerank.any_rerank, "rerank"),
        family="tei",
        other_family="rerank",
        body=schemas.TeiRerankRequest | schemas.RerankRequest,
        reply=replies.AnyRanking,
        fails=ENCODES,
        hot=True,
    ),
    Route(
        *("POST", "/predict", predict.tei_predict, "classify"),
        family="tei",
        body=schemas.TeiPredictRequest,
        reply=replies.Predictions,
        fails=(*ENCODES, errors.ModelCannot),
        hot=True,
    ),
    Route(
        *("POST", "/v1/embed", cohere.v1_embed, "embed"),
        family="rerank",
        body=schemas_cohere.CohereEmbedRequest,
        reply=replies.CohereEmbeddings,
        fails=ENCODES,
    ),
    Route(
        *("POST", "/v2/embed", cohere.v2_embed, "embed"),
        family="rerank",
        body=schemas_cohere.CohereEmbedRequest,
        reply=replies.CohereByType,
        fails=ENCODES,
        hot=True,
    ),
    Route(
        *("POST", "/v1/rerank", rerank.v1_rerank, "rerank"),
        family="rerank",
        body=schemas.RerankRequest,
        reply=replies.Ranking,
        fails=ENCODES,
        hot=True,
    ),
    Route(
        *("POST", "/v2/rerank", rerank.v2_rerank, "rerank"),
        family="rerank",
        body=schemas.RerankRequest,
        reply=replies.Ranking,
        fails=ENCODES,
    ),
    Route(
        *("POST", "/v1/ranking", rerank.nim_ranking, "rerank"),
        family="rerank",
        body=schemas.NimRankingRequest,
        reply=replies.NimRanking,
        fails=ENCODES,
    ),
)

ANSWERS = (
    Route(
        *("POST", "/v1/rag/answer", rag.rag_answer, "answer"),
        body=schemas_rag.AnswerRequest,
        reply=replies_rag.WholeAnswer,
        streams="events",
        fails=READS,
    ),
    Route(
        *("POST", "/v1/rag/compare", compare.compare, "compare"),
        body=schemas_rag.CompareRequest,
        reply=replies_rag.Comparison,
        fails=READS,
    ),
    Route(
        *("POST", "/v1/chat/completions", chat.chat_completions, "answer"),
        body=schemas_rag.ChatRequest,
        reply=replies_rag.ChatCompletion,
        streams="chunks",
        fails=READS,
    ),
    Route(
        *("POST", "/v1/compress", compress.compress, "compress"),
        body=schemas_rag.CompressRequest,
        reply=replies_rag.Compressed,
        fails=ENCODES,
    ),
    Route(
        *("DELETE", "/v1/contexts/{name}", compress.release, "compress"),
        reply=replies_rag.Released,
        fails=(errors.ContextNotFound, errors.ContextExpired),
    ),
)
