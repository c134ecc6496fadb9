"""The same question answered from memory vectors and from the passages' own text."""

import time

import numpy as np

from condensery.agreement import exact, f1
from condensery.answers import Answer, Comparison
from condensery.errors import InputError, ModelNotFound
from condensery.jobs.answer import last, say
from condensery.jobs.choosing import choose, plainly
from condensery.jobs.reading import find_reader, gather
from condensery.jobs.services import Services
from condensery.questions import Question

LEAST_MS = 1e-3  # under the clock's step; so that no time is divided by 0


async def compare(services: Services, question: Question) -> Comparison:
    """Answer a question twice from the same passages: from vectors, and from their text.

    Passages are found and compressed once. The two answers are generated one after the other, so
    that neither takes the other's time.

    Raises:
        InputError: As for ``answer``; and where compression is off, since nothing is compared then.
        ContextTooLong: Not even one passage fits the generator as text.
        Exception: What ``answer`` raises.
    """
    began = time.perf_counter()
    reader, context = find_reader(services, question)
    if question.mode == "off":
        raise InputError(
            "compression.mode: 'off' leaves nothing to compare with; give auto or required.",
            field="compression.mode",
            value=question.mode,
        )
    reading = await choose(reader, question, await gather(services, reader, question, context))
    plain_reading = await plainly(reader, question, reading)
    # Each answer's time is that of its own parts.
    began += plain_reading.tokenize_ms / 1000
    compressed = await last(say(services, reader, question, reading, began))
    shared_ms = reading.gathered.retrieve_ms + plain_reading.tokenize_ms
    again = time.perf_counter() - shared_ms / 1000
    plain = await last(say(services, reader, question, plain_reading, again))
    return Comparison(
        compressed=compressed,
        plain=plain,
        exact=bool(exact(compressed.text, [plain.text])),
        f1=f1(compressed.text, [plain.text]),
        cosine=await _cosine(services, compressed.text, plain.text),
        speedup=_speedup(compressed, plain),
    )


def _speedup(compressed: Answer, plain: Answer) -> float:
    took = compressed.timings.compress_ms + compressed.timings.generate_ms
    return plain.timings.generate_ms / max(took, LEAST_MS)


async def _cosine(services: Services, one: str, other: str) -> float | None:
    """Return the cosine of two texts' vectors by the default encoder; None if there is none."""
    try:
        encoder = services.pool.encoder()
    except ModelNotFound:
        return None
    vectors = (await encoder.embed([one, other], field="answer")).vectors.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    return float(vectors[0] @ vectors[1] / max(lengths.prod(), 1e-12))
