"""The same question answered from vectors and from plain text, and whether the answers agree."""

import time

import numpy as np

from condensery.agreement import exact_match, f1_score
from condensery.errors import InputError, ModelNotFound
from condensery.jobs.answer import collect_answer, stream_answer
from condensery.jobs.interfaces import OscarModel
from condensery.jobs.retrieval import (
    apply_model_index,
    find_model_and_context,
    retrieve_context,
)
from condensery.jobs.selection import select_context, select_plain_text
from condensery.jobs.services import Services
from condensery.question import Agreement, Answer, Comparison, Question

MIN_MILLISECONDS = 1e-3  # under the clock's step; so that no time is divided by 0


async def compare_answers(services: Services, question: Question) -> Comparison:
    """Answer a question twice from the same passages: from vectors, and from their text.

    Both by the pair's own generator, whatever writes other answers: it is what is compared.

    Passages are found and compressed once. The two answers are generated one after the other, so
    that neither takes the other's time.

    Raises:
        InputError: As for ``answer``; and where compression is off: nothing is compared then.
        ContextTooLong: Not even one passage fits the generator as text.
        Exception: What ``answer`` raises.
    """
    began = time.perf_counter()
    question = apply_model_index(services, question)
    oscar, context = find_model_and_context(services, question)
    if question.compression.mode == "off":
        raise InputError.at(
            "compression.mode",
            "'off' leaves nothing to compare with; give auto or required.",
            question.compression.mode,
        )
    selected = await select_context(
        oscar, question, await retrieve_context(services, oscar, question, context)
    )
    plain_selected = await select_plain_text(oscar, question, selected)
    # Each answer's time is that of its own parts.
    began += plain_selected.tokenize_ms / 1000
    compressed = await collect_answer(stream_answer(services, oscar, question, selected, began))
    shared_ms = selected.retrieved.retrieve_ms + plain_selected.tokenize_ms
    again = time.perf_counter() - shared_ms / 1000
    plain = await collect_answer(stream_answer(services, oscar, question, plain_selected, again))
    generated = max(compressed.timings.generate_ms, MIN_MILLISECONDS)
    took = compressed.timings.compress_ms + generated
    return Comparison(
        compressed=compressed,
        plain=plain,
        agreement=Agreement(
            exact=bool(exact_match(compressed.answer, [plain.answer])),
            f1=f1_score(compressed.answer, [plain.answer]),
            cosine=await _cosine(services, compressed.answer, plain.answer),
        ),
        speedup=plain.timings.generate_ms / took,
        generator_speedup=plain.timings.generate_ms / generated,
        why=explain(oscar, compressed, plain),
    )


def explain(oscar: OscarModel, compressed: Answer, plain: Answer) -> str:
    """Say where the time went, and what it would take for compression to pay."""
    done, times = compressed.compression, compressed.timings
    saved = plain.timings.generate_ms - times.generate_ms
    shorter = "less" if saved >= 0 else "more"
    said = (
        f"Compressing took {times.compress_ms:.0f} ms; with {done.vectors_out} vectors to read in"
        f" place of text, the generator took {abs(saved):.0f} ms {shorter}."
    )
    if saved > times.compress_ms:
        return said
    ranks = "; and it ranks them, which plain text does not" if oscar.traits.scores else ""
    return (
        f"{said} For each token that it reads, this generator costs {oscar.generator_share:.1f}"
        " times what the compressor does. Compression pays where the generator is many times"
        f" larger, and where passages are long and many{ranks}."
    )


async def _cosine(services: Services, text: str, other: str) -> float | None:
    """Return the cosine of two texts' vectors by the default encoder; None if there is none."""
    try:
        encoder = services.registry.encoder()
    except ModelNotFound:
        return None
    vectors = (await encoder.embed([text, other], field="answer")).vectors.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    return float(vectors[0] @ vectors[1] / max(lengths.prod(), 1e-12))
