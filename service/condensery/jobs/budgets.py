"""How finely, and how many passages, an answer may read: by vectors and by time.

A budget is kept by the finest rate that keeps to it; where even the coarsest does not, by fewer
passages.
"""

from collections.abc import Sequence

from condensery.errors import InputError
from condensery.jobs.candidates import Candidate, Gathered, count_of
from condensery.jobs.ports import Reader
from condensery.questions import Question


def affordable(reader: Reader, question: Question, texts: Sequence[str], vectors: int) -> int:
    """Return how many of the first texts can be compressed and read by ``target_ms``; 1 at least.

    Args:
        reader: The pair.
        question: What is asked.
        texts: In the order of retrieval.
        vectors: That each may become, at the coarsest.
    """
    assert question.target_ms is not None
    top_n = reader.traits.top_n if question.top_n is None else question.top_n
    sizes = sizes_of(reader, question, texts)
    for count in range(len(texts), 1, -1):
        kept = min(count, top_n or count)
        if reader.expected_ms(sum(sizes[:count]), vectors * kept, 0, kept) <= question.target_ms:
            return count
    return 1


def sizes_of(reader: Reader, question: Question, texts: Sequence[str]) -> list[int]:
    """Return how many positions each text takes in the generator's context."""
    room = reader.spare(question.text, [], 0)
    return [room - reader.spare(question.text, [text], 0) if text else 0 for text in texts]


def within_budget(
    reader: Reader, question: Question, gathered: Gathered, kept: Sequence[Candidate]
) -> tuple[int, int, list[str]]:
    """Return the vectors of a passage, how many of the best passages, and what is to be told.

    Both budgets hold. ``max_context_vectors`` is a bound. ``target_ms`` is aimed at: what
    compression has used of it is gone, and one passage is read in any case.

    Raises:
        InputError: One passage alone is over ``max_context_vectors``.
    """
    most, target = question.max_context_vectors, question.target_ms
    sizes = []
    if target is not None:
        texts = ["" if one.compressed else one.text for one in kept]
        sizes = sizes_of(reader, question, texts)
    left_ms = 0.0 if target is None else max(0.0, target - gathered.compress_ms)

    def held(vectors: int, count: int) -> int:
        memories = [one.compressed.memory for one in kept[:count] if one.compressed]
        return sum(min(len(memory), vectors) for memory in memories)

    def expected(vectors: int, count: int) -> float:
        return reader.expected_ms(0, held(vectors, count), sum(sizes[:count]), count)

    def holds(vectors: int, count: int) -> bool:
        if most is not None and held(vectors, count) > most:
            return False
        return target is None or expected(vectors, count) <= left_ms

    if not kept:
        return gathered.vectors[0], 0, []
    reasons = []
    if target is not None and not expected(gathered.vectors[0], len(kept)):
        reasons.append("there is no measurement yet by which to keep to target_ms")
    for vectors in gathered.vectors:
        if holds(vectors, len(kept)):
            return vectors, len(kept), reasons
    coarsest = gathered.vectors[-1]
    count = next((count for count in range(len(kept) - 1, 0, -1) if holds(coarsest, count)), 0)
    if not count and most is not None and held(coarsest, 1) > most:
        raise InputError(
            f"compression.max_context_vectors: {most}, but one passage is {held(coarsest, 1)} "
            "vectors at the coarsest rate.",
            field="compression.max_context_vectors",
            value=most,
        )
    if not count:
        count = 1
        reasons.append(
            f"compression took {gathered.compress_ms:.0f} ms and the first token takes about "
            f"{expected(coarsest, 1):.0f} ms from one passage, over target_ms {target:g}"
        )
    if count < len(kept):
        budgets = {"max_context_vectors": most, "target_ms": target}
        named = " and ".join(f"{name} {value:g}" for name, value in budgets.items() if value)
        reasons.append(f"{count_of(len(kept) - count, 'passage')} left out to keep to {named}")
    return coarsest, count, reasons
