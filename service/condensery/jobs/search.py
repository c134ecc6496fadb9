"""Passages of an index, found by vectors, by words, or by both."""

import asyncio
from typing import Any, get_args

from condensery.errors import EncoderMismatch, InputError
from condensery.index.filters import Filter, read_filter
from condensery.index.fusion import LEAST_CANDIDATES, fuse
from condensery.jobs.checks import check_choice, check_range, check_text
from condensery.jobs.index_ports import JsonObject
from condensery.jobs.index_vectors import check_vectors, encoder_of, prompts_of
from condensery.jobs.services import Services
from condensery.jobs.swapping import across_swaps
from condensery.questions import SearchMode
from condensery.values import Floats, Hit, IndexInfo

MODES: tuple[SearchMode, ...] = get_args(SearchMode)
# Characters of a query that is looked for by its words alone, so that no encoder limits it.
MAX_WORDS_CHARS = 100_000


@across_swaps
async def query(
    services: Services,
    name: str,
    text: str | None = None,
    *,
    vector: Floats | None = None,
    fingerprint: str | None = None,
    top_k: int = 10,
    search: SearchMode | None = None,
    filter: JsonObject | None = None,
    filter_field: str = "filter",
) -> list[Hit]:
    """Return the passages nearest to a text, or to a vector of the index's encoder, best first.

    A hit's score is what it was ranked by: the index's metric (``dense``), BM25 (``bm25``; no
    forward pass is made, and the encoder need not run), or the fusion of the two (``hybrid``; see
    ``fuse``). Scores of different modes can't be compared.

    Args:
        services: The running parts.
        name: The index.
        text: What to look for; or
        vector: its vector, (dims,), with
        fingerprint: that of the encoder which made it.
        top_k: Most passages to return.
        search: How a text is looked for; None is the server's default. A vector is ``dense``.
        filter: Which documents' passages are looked at, as ``read_filter`` reads it.
        filter_field: The filter's name in messages.

    Raises:
        IndexNotFound: No such index.
        EncoderMismatch: The vector, or the index, is another encoder's.
        InputError: Neither or both of text and vector; a malformed one; ``top_k`` out of range; an
            unknown ``search``, or one by words beside a vector; a malformed ``filter``.
    """
    info = services.indexes.info(name)
    check_range(top_k, "top_k", 1, services.limits.max_top_k)
    if (text is None) == (vector is None):
        got = "neither" if text is None else "both"
        raise InputError(f"query: give `query` or `vector`, one of them; got {got}.", field="query")
    if search is not None:
        check_choice(search, "search", MODES)
    chosen = read_filter(filter, filter_field)
    embedded_for = None
    if text is not None:
        mode = search or services.search
        if mode == "bm25":
            check_text(text, "query", MAX_WORDS_CHARS)
            with services.metrics.stage(info.encoder, "index"):
                return await asyncio.to_thread(
                    services.indexes.match, name, text, top_k=top_k, chosen=chosen
                )
        encoder = encoder_of(services, info)
        check_text(text, "query", encoder.info.max_tokens * services.limits.chars_per_token)
        embedded = await encoder.embed([text], prompt=prompts_of(encoder, info).query)
        vector, fingerprint, embedded_for = embedded.vectors[0], embedded.fingerprint, info
        if mode == "hybrid":
            with services.metrics.stage(info.encoder, "index"):
                return await _query_both(services, info, text, vector, fingerprint, top_k, chosen)
    else:
        assert vector is not None  # checked above
        if search not in (None, "dense"):
            raise InputError(
                f"search: {search!r} looks for words, and a vector has none; give `query`.",
                field="search",
                value=search,
            )
        fingerprint = check_vectors(info, vector[None], fingerprint, "vector")
    with services.metrics.stage(info.encoder, "index"):
        return await asyncio.to_thread(
            services.indexes.query,
            name,
            vector,
            top_k=top_k,
            fingerprint=fingerprint,
            embedded_for=embedded_for,
            chosen=chosen,
        )


async def _query_both(
    services: Services,
    info: IndexInfo,
    text: str,
    vector: Floats,
    fingerprint: str,
    top_k: int,
    chosen: Filter | None,
) -> list[Hit]:
    most: dict[str, Any] = {"top_k": max(top_k, LEAST_CANDIDATES), "chosen": chosen}
    made: dict[str, Any] = {"fingerprint": fingerprint, "embedded_for": info}
    indexes = services.indexes
    near, alike = await asyncio.gather(
        asyncio.to_thread(indexes.query, info.name, vector, **made, **most),
        asyncio.to_thread(indexes.match, info.name, text, **most),
    )
    now = indexes.info(info.name)
    # else passages of two indexes, split in two ways, would mix
    if (now.fingerprint, now.prompts) != (fingerprint, info.prompts):
        raise EncoderMismatch(
            f"Index {now.name!r} was made anew by encoder {now.encoder!r} with fingerprint "
            f"{now.fingerprint} while it was asked.",
            field="index",
            value=now.name,
        )
    return fuse([near, alike], top_k)
