import asyncio

import pytest

from condensery.errors import EmptyInput, EncoderMismatch, IndexNotFound
from condensery.jobs import indexes, maintenance, retrieval
from condensery.values import AliasAction, Document


@pytest.fixture
async def swapped(services):
    """Two indexes of two encoders, and an alias that points at the first."""
    for name, encoder in (("kb", "words"), ("kb-2", "other")):
        await indexes.create_index(services, name, encoder=encoder)
        await indexes.upsert_documents(services, name, [Document(f"of-{name}", "alpha one")])
    await maintenance.update_index_aliases(services, [AliasAction("create", "live", "kb")])


async def move(services):
    await maintenance.update_index_aliases(services, [AliasAction("create", "live", "kb-2")])


async def under_way(registry):
    async with asyncio.timeout(30):
        while not registry.encoders["words"].waiting:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)


async def test_a_query_under_way_goes_on_where_the_alias_leads_now(services, registry, swapped):
    registry.encoders["words"].gate = gate = asyncio.Event()
    asked = asyncio.create_task(retrieval.query_index(services, "live", "alpha"))
    await under_way(registry)
    await move(services)
    await indexes.drop_index(services, "kb")
    gate.set()
    (hit,) = await asked
    assert hit.passage.document_id == "of-kb-2"


async def test_a_write_under_way_is_there_under_the_alias_when_acknowledged(
    services, registry, swapped
):
    registry.encoders["words"].gate = gate = asyncio.Event()
    writing = asyncio.create_task(
        indexes.upsert_documents(services, "live", [Document("late", "gamma three")])
    )
    await under_way(registry)
    await move(services)
    gate.set()
    assert (await writing).documents == 1
    assert [
        document.id for document in await indexes.get_documents(services, "live", ["late"])
    ] == ["late"]
    assert await indexes.get_documents(services, "kb", ["late"]) == []


async def test_vectors_of_the_encoder_before_are_refused_after_the_move(
    services, registry, swapped
):
    vector = (await registry.encoder("words").embed(["alpha"])).vectors[0]
    await move(services)
    with pytest.raises(EncoderMismatch):
        await retrieval.query_index(services, "live", vector=vector, fingerprint="sha256:words")


async def test_who_asks_for_what_is_not_there_is_told_so(services, swapped):
    with pytest.raises(IndexNotFound):
        await retrieval.query_index(services, "nowhere", "alpha")
    with pytest.raises(EmptyInput, match="actions"):
        await maintenance.update_index_aliases(services, [])
