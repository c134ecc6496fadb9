"""The sample index: something to search and to answer from, on a fresh install."""

import json
from collections.abc import Callable
from importlib.resources import files

from condensery.errors import IndexExists
from condensery.jobs import index_vectors, indexes
from condensery.jobs.services import Services
from condensery.values import Document

NAME = "samples"
BATCH = 64  # documents: a line of progress every second or two on a CPU


def sample_documents() -> list[Document]:
    """Read the sample corpus that comes with the package."""
    text = files("condensery.samples").joinpath("passages.jsonl").read_text(encoding="utf-8")
    documents = []
    for line in text.splitlines():
        entry = json.loads(line)
        metadata = {"title": entry["title"], **entry["metadata"]}
        documents.append(Document(entry["id"], entry["text"], metadata))
    return documents


async def ensure_samples(services: Services, say: Callable[[str], None]) -> bool:
    """Make the sample index, or bring it up to date; what is right already is left alone.

    An index of that name with other settings (another encoder's) is somebody's: it stays.

    Returns:
        Whether the sample index is there.
    """
    documents = sample_documents()
    try:
        info = await indexes.create_index(services, NAME)
    except IndexExists as error:
        say(f"index {NAME}: left as it is. {error.message}")
        return False
    index_vectors.encoder_of(services, info)
    missing = await _missing(services, documents)
    for start in range(0, len(missing), BATCH):
        await indexes.upsert(services, NAME, missing[start : start + BATCH])
        done = min(start + BATCH, len(missing))
        say(f"index {NAME}: {done} of {len(missing)} passages")
    return True


async def _missing(services: Services, documents: list[Document]) -> list[Document]:
    held = await indexes.get(services, NAME, [one.id for one in documents])
    there = {one.id: (one.text, dict(one.metadata)) for one in held}
    return [one for one in documents if there.get(one.id) != (one.text, dict(one.metadata))]
