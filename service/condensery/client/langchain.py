"""LangChain's retriever over an index of a running server; needs ``langchain-core``."""

from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from condensery.client.rest import AsyncClient, Client
from condensery.client.transports import DEFAULT_URL
from condensery.values import Hit, SearchMode


class IndexRetriever(BaseRetriever):
    """Finds an index's passages for a question, the best first.

    A document's metadata are those that it was indexed with, and its ``document_id``, ``start`` and
    ``end`` in that document, and ``score``.

    Attributes:
        index: The index's name, or an alias.
        top_k: How many passages to find.
        search: By vectors, words or both; None is the server's default.
        filter: Which documents' passages are looked at, as ``Client.query`` takes it.
    """

    index: str
    url: str = DEFAULT_URL
    api_key: str | None = None
    top_k: int = 10
    search: SearchMode | None = None
    filter: dict[str, Any] | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        del run_manager
        with Client(self.url, api_key=self.api_key) as client:
            return [_to_document(hit) for hit in client.query(self.index, query, **self._options())]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        del run_manager
        async with AsyncClient(self.url, api_key=self.api_key) as client:
            hits = await client.query(self.index, query, **self._options())
        return [_to_document(hit) for hit in hits]

    def _options(self) -> dict[str, Any]:
        return {"top_k": self.top_k, "search": self.search, "filter": self.filter}


def _to_document(hit: Hit) -> Document:
    place = {"document_id": hit.document_id, "start": hit.start, "end": hit.end}
    heading = {"passage_heading": hit.heading} if hit.heading else {}
    metadata = {**heading, **hit.metadata, **place, "score": hit.score}
    return Document(page_content=hit.text or "", id=hit.id, metadata=metadata)
