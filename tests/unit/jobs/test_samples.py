from dataclasses import replace

from condensery.jobs import indexes, samples
from condensery.jobs.services import Limits
from condensery.values import Document


async def test_the_sample_index_is_made_once_and_mended(services):
    services = replace(services, limits=Limits())
    said = []
    assert await samples.ensure_samples(services, said.append)
    documents, _ = await indexes.count(services, samples.NAME)
    assert documents == len(samples.sample_documents()) >= 150
    assert said[-1] == f"index samples: {documents} of {documents} passages"
    said.clear()
    await samples.ensure_samples(services, said.append)
    assert said == []
    await indexes.upsert(services, samples.NAME, [Document("danube", "altered")])
    await samples.ensure_samples(services, said.append)
    assert said == ["index samples: 1 of 1 passages"]
    (danube,) = await indexes.get(services, samples.NAME, ["danube"])
    assert danube.metadata["title"] == "Danube"


async def test_somebodys_index_of_that_name_stays(services):
    services = replace(services, limits=Limits())
    await indexes.create_index(services, samples.NAME, encoder="other")
    said = []
    assert not await samples.ensure_samples(services, said.append)
    assert "left as it is" in said[0]
    assert await indexes.count(services, samples.NAME) == (0, 0)
