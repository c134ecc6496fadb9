"""How finely, and how many passages, an answer may read: by vectors and by time.

A budget is kept by the finest rate that keeps to it; where even the coarsest does not, by fewer
windows of long passages whose windows nothing scores, and then by fewer passages.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from condensery.errors import InputError
from condensery.jobs.candidates import Candidate, Gathered, count_of
from condensery.jobs.ports import Reader
from condensery.questions import Question
from condensery.values import Floats


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the budgets allow.

    Attributes:
        vectors: Of a window.
        windows: Of a passage whose windows nothing scores.
        passages: The best.
        reasons: What is to be told.
    """

    vectors: int
    windows: int
    passages: int
    reasons: tuple[str, ...] = ()


def affordable(reader: Reader, question: Question, sizes: Sequence[int], vectors: int) -> int:
    """Return how many of the first texts can be compressed and read by ``target_ms``; 1 at least.

    Args:
        reader: The pair.
        question: What is asked.
        sizes: Tokens of each text, in the order of retrieval.
        vectors: That each may become, at the coarsest.
    """
    assert question.target_ms is not None
    top_n = reader.traits.top_n if question.top_n is None else question.top_n
    for count in range(len(sizes), 1, -1):
        kept = min(count, top_n or count)
        if reader.expected_ms(sum(sizes[:count]), vectors * kept, 0, kept) <= question.target_ms:
            return count
    return 1


def within_budget(
    reader: Reader, question: Question, gathered: Gathered, kept: Sequence[Candidate]
) -> Allowed:
    """Return how finely, and how many of the best passages, may be read.

    Both budgets hold. ``max_context_vectors`` is a bound. ``target_ms`` is aimed at: what
    compression has used of it is gone, and one passage is read in any case.

    Raises:
        InputError: One passage alone is over ``max_context_vectors``.
    """
    most, target = question.max_context_vectors, question.target_ms
    all_windows = max((len(one.memories) for one in kept), default=1)
    if not kept or (most is None and target is None):
        return Allowed(gathered.vectors[0], all_windows, len(kept))
    sizes = []
    if target is not None:
        sizes = [0 if one.compressed else reader.sizes([one.text])[0] for one in kept]
    left_ms = 0.0 if target is None else max(0.0, target - gathered.compress_ms)

    def read(count: int, windows: int) -> list[Floats]:
        return [memory for one in kept[:count] for memory in one.memories[:windows]]

    def held(vectors: int, count: int, windows: int) -> int:
        return sum(min(len(memory), vectors) for memory in read(count, windows))

    def expected(vectors: int, count: int, windows: int) -> float:
        texts = sum(not one.compressed for one in kept[:count])
        passages = texts + len(read(count, windows))
        known = held(vectors, count, windows)
        return reader.expected_ms(0, known, sum(sizes[:count]), passages)

    def holds(vectors: int, count: int, windows: int) -> bool:
        if most is not None and held(vectors, count, windows) > most:
            return False
        return target is None or expected(vectors, count, windows) <= left_ms

    reasons = []
    if target is not None and not expected(gathered.vectors[0], len(kept), all_windows):
        reasons.append("there is no measurement yet by which to keep to target_ms")
    for vectors in gathered.vectors:
        if holds(vectors, len(kept), all_windows):
            return Allowed(vectors, all_windows, len(kept), tuple(reasons))
    coarsest = gathered.vectors[-1]
    budgets = {"max_context_vectors": most, "target_ms": target}
    named = " and ".join(f"{name} {value:g}" for name, value in budgets.items() if value)
    # The more windows, the more vectors, and the longer it takes.
    windows = bisect_right(
        range(1, all_windows), False, key=lambda windows: not holds(coarsest, len(kept), windows)
    )
    if windows:
        reasons.append(unread_windows(kept, windows, f"to keep to {named}"))
        return Allowed(coarsest, windows, len(kept), tuple(reasons))
    count = next((count for count in range(len(kept) - 1, 0, -1) if holds(coarsest, count, 1)), 0)
    if not count and most is not None and held(coarsest, 1, 1) > most:
        raise InputError(
            f"compression.max_context_vectors: {most}, but one passage is {held(coarsest, 1, 1)} "
            "vectors at the coarsest rate.",
            field="compression.max_context_vectors",
            value=most,
        )
    if not count:
        count = 1
        reasons.append(
            f"compression took {gathered.compress_ms:.0f} ms and the first token takes about "
            f"{expected(coarsest, 1, 1):.0f} ms from one passage, over target_ms {target:g}"
        )
    if count < len(kept):
        reasons.append(f"{count_of(len(kept) - count, 'passage')} left out to keep to {named}")
    if any(len(one.memories) > 1 for one in kept[:count]):
        reasons.append(unread_windows(kept[:count], 1, f"to keep to {named}"))
    return Allowed(coarsest, 1, count, tuple(reasons))


def unread_windows(kept: Sequence[Candidate], windows: int, why: str) -> str:
    """Say how many windows of long passages are not read, beyond the first ``windows`` of each."""
    long = [len(one.memories) for one in kept if len(one.memories) > 1]
    unread = sum(max(0, count - windows) for count in long)
    windows_of = f"{unread} of the {sum(long)} windows of long passages"
    return f"{windows_of} were compressed and are not read, {why}"
