"""LlamaIndex's retriever over an index of a running server; needs ``llama-index-core``."""

from collections.abc import Mapping
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from condensery.client.rest import AsyncClient, Client
from condensery.client.transports import DEFAULT_URL
from condensery.values import Hit, SearchMode


class IndexRetriever(BaseRetriever):
    """Finds an index's passages for a question, the best first.

    A node's metadata are those that its document was indexed with, and its ``document_id``; its
    place in that document are the node's ``start_char_idx`` and ``end_char_idx``.

    Args:
        index: The index's name, or an alias.
        top_k: How many passages to find.
        search: By vectors, words or both; None is the server's default.
        filter: Which documents' passages are looked at, as ``Client.query`` takes it.
    """

    def __init__(
        self,
        index: str,
        *,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        top_k: int = 10,
        search: SearchMode | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._index = index
        self._server: dict[str, Any] = {"url": url, "api_key": api_key}
        self._options: dict[str, Any] = {"top_k": top_k, "search": search, "filter": filter}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with Client(**self._server) as client:
            hits = client.query(self._index, query_bundle.query_str, **self._options)
        return [_to_node(hit) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        async with AsyncClient(**self._server) as client:
            hits = await client.query(self._index, query_bundle.query_str, **self._options)
        return [_to_node(hit) for hit in hits]


def _to_node(hit: Hit) -> NodeWithScore:
    heading = {"passage_heading": hit.heading} if hit.heading else {}
    node = TextNode(
        id_=hit.id,
        text=hit.text or "",
        start_char_idx=hit.start,
        end_char_idx=hit.end,
        metadata={**heading, **hit.metadata, "document_id": hit.document_id},
    )
    return NodeWithScore(node=node, score=hit.score)
