from dataclasses import replace

from condensery.jobs import indexes, maintenance
from condensery.jobs.services import RequestLimits
from condensery.values import Document


async def test_the_sample_index_is_made_once_and_mended(services):
    services = replace(services, limits=RequestLimits())
    messages = []
    assert await maintenance.ensure_samples(services, messages.append)
    documents, _ = await indexes.count_documents(services, maintenance.SAMPLES_INDEX)
    assert documents == len(maintenance.sample_documents()) >= 150
    assert messages[-1] == f"index samples: {documents} of {documents} passages"
    messages.clear()
    await maintenance.ensure_samples(services, messages.append)
    assert messages == []
    await indexes.upsert_documents(
        services, maintenance.SAMPLES_INDEX, [Document("danube", "altered")]
    )
    await maintenance.ensure_samples(services, messages.append)
    assert messages == ["index samples: 1 of 1 passages"]
    (danube,) = await indexes.get_documents(services, maintenance.SAMPLES_INDEX, ["danube"])
    assert danube.metadata["title"] == "Danube"


async def test_somebodys_index_of_that_name_stays(services):
    services = replace(services, limits=RequestLimits())
    await indexes.create_index(services, maintenance.SAMPLES_INDEX, encoder="other")
    messages = []
    assert not await maintenance.ensure_samples(services, messages.append)
    assert "left as it is" in messages[0]
    assert await indexes.count_documents(services, maintenance.SAMPLES_INDEX) == (0, 0)
