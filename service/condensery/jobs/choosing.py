"""Which of the passages the generator reads, and how finely: by relevance, by budget, by room."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from condensery.answers import CompressionMode, CompressionStatus
from condensery.errors import ContextTooLong
from condensery.jobs.aside import aside
from condensery.jobs.budgets import within_budget
from condensery.jobs.candidates import Candidate, Gathered, count_of
from condensery.jobs.ports import Reader
from condensery.questions import Question
from condensery.values import Floats


@dataclass(frozen=True, slots=True)
class Reading:
    """What the generator reads for an answer.

    Attributes:
        gathered: What there was.
        mode: What was asked for; of a plain reading of the same passages, ``off``.
        kept: Passages in context, best first.
        vectors: How many of each memory are read, at most.
        status: What became of compression.
        left_out: Places of those that were to be read and are not.
        reasons: What the caller would not expect.
        found: Whether the passages may hold an answer; if not, nothing is generated.
    """

    gathered: Gathered
    mode: CompressionMode
    kept: tuple[Candidate, ...]
    vectors: int
    status: CompressionStatus
    left_out: tuple[int, ...]
    reasons: tuple[str, ...]
    found: bool = True

    @property
    def context(self) -> list[Floats | str]:
        """What the generator gets, best first."""
        return _context(self.kept, 0 if self.mode == "off" else self.vectors)

    @property
    def texts(self) -> list[str]:
        """The same passages' texts."""
        return [one.text for one in self.kept]

    @property
    def as_vectors(self) -> tuple[Candidate, ...]:
        """Those read as vectors."""
        return () if self.mode == "off" else tuple(one for one in self.kept if one.compressed)

    @property
    def as_text(self) -> tuple[Candidate, ...]:
        """Those read as text because they could not be compressed."""
        return () if self.mode == "off" else tuple(one for one in self.kept if one.failure)


async def choose(reader: Reader, question: Question, gathered: Gathered) -> Reading:
    """Keep the most relevant passages that the budgets and the generator have room for.

    Raises:
        InputError: Not even one passage keeps to ``max_context_vectors``.
        ContextTooLong: Not even one fits the generator; or not all, and compression is required.
    """
    texts = (one.text for one in gathered.candidates)
    return await aside(texts, lambda: _choose(reader, question, gathered))


async def plainly(reader: Reader, question: Question, reading: Reading) -> Reading:
    """Return a reading of the same passages as text, as many as fit.

    Raises:
        ContextTooLong: Not even one does.
    """
    return await aside(reading.texts, lambda: _plainly(reader, question, reading))


def _choose(reader: Reader, question: Question, gathered: Gathered) -> Reading:
    mode, plain = question.mode, question.mode == "off"
    top_n = reader.traits.top_n if question.top_n is None else question.top_n
    kept = ranked(gathered.candidates)[: top_n or None]
    reasons = ["asked for"] if plain else []
    if not kept:
        reasons.append("no passages were found")
    reasons += gathered.reasons
    vectors, left_out, unfit = gathered.vectors[0], list(gathered.left_out), False
    found = plain or not _under_threshold(reader, question, gathered)
    if found:
        vectors, count, why = within_budget(reader, question, gathered, kept)
        reasons += why
        fits = fitting(reader, question, kept[:count], 0 if plain else vectors)
        if unfit := fits < count:
            reasons.append(_no_room(count - fits))
        left_out += [one.place for one in kept[fits:]]
        kept = kept[:fits]
    if gathered.failed:
        reasons.append(_failures(gathered, kept))
    return Reading(
        gathered=gathered,
        mode=mode,
        kept=tuple(kept),
        vectors=vectors,
        status=_status(mode, gathered, kept, unfit=unfit),
        left_out=tuple(left_out),
        reasons=tuple(reasons),
        found=found,
    )


def _plainly(reader: Reader, question: Question, reading: Reading) -> Reading:
    kept = reading.kept
    fits = fitting(reader, replace(question, mode="off"), kept, 0)
    unfit = [_no_room(len(kept) - fits)] if fits < len(kept) else []
    return Reading(
        gathered=reading.gathered,
        mode="off",
        kept=kept[:fits],
        vectors=0,
        status="off",
        left_out=tuple(one.place for one in kept[fits:]),
        reasons=("asked for", *unfit),
    )


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return passages best first: by relevance, then those without, in the order of retrieval.

    By the logit, not its sigmoid, which in float32 is 1.0 for all above 17. Where some have a
    score, the others' is 0: retrieval's is on another scale.
    """
    scored = [(one.logit, one) for one in candidates if one.logit is not None]
    others = [one for one in candidates if one.logit is None]
    if scored:
        others = [replace(one, score=0.0) for one in others]
    return [*(one for _, one in sorted(scored, key=lambda pair: -pair[0])), *others]


def fitting(reader: Reader, question: Question, kept: Sequence[Candidate], vectors: int) -> int:
    """Return how many of the best passages fit the generator, with the question and its answer.

    Raises:
        ContextTooLong: None of them; or not all, and compression is required.
    """

    def missing(count: int) -> int:
        context = _context(kept[:count], vectors)
        return -reader.spare(question.text, context, question.max_tokens)

    # More of them at each step, until they don't fit: a text that is counted is tokenised, so that
    # of a hundred long ones few more than fit should be.
    fits, most, step = 0, len(kept), 1
    while fits < most:
        tried = min(fits + step, most)
        if missing(tried) <= 0:
            fits, step = tried, 2 * step
        else:
            most = tried - 1
            step = max(1, (most - fits + 1) // 2)
    if fits == len(kept) and (kept or missing(0) <= 0):
        return fits
    if fits and question.mode != "required":
        return fits
    count = len(kept) if fits else min(1, len(kept))
    field, value = ("rerank.top_n", len(kept)) if fits else ("max_tokens", question.max_tokens)
    raise ContextTooLong(
        f"{field}: the question, {count} passages and an answer of max_tokens "
        f"{question.max_tokens} take {missing(count)} positions more than the generator of "
        f"{reader.info.name} has.",
        field=field,
        value=value,
    )


def _under_threshold(reader: Reader, question: Question, gathered: Gathered) -> bool:
    """Whether every passage was scored, and none enough. One without a score may be what holds it.

    No passages at all score nothing.
    """
    least = question.min_relevance
    if least is None:
        least = reader.traits.min_relevance
    unknown = any(one.logit is None for one in gathered.candidates)
    return not unknown and max((one.score for one in gathered.candidates), default=0.0) < least


def _context(kept: Sequence[Candidate], vectors: int) -> list[Floats | str]:
    """Return what the generator gets: the first of each memory's vectors, or text."""
    return [
        one.compressed.memory[:vectors] if vectors and one.compressed is not None else one.text
        for one in kept
    ]


def _no_room(count: int) -> str:
    return f"{count_of(count, 'passage')} left out, since the generator has no room for more"


def _failures(gathered: Gathered, kept: Sequence[Candidate]) -> str:
    """Say how many passages could not be compressed, why, and what became of them."""
    failed = gathered.failed
    why = ", ".join(sorted({one.failure.why for one in failed if one.failure is not None}))
    if len(failed) == len(gathered.candidates):
        return f"no passage could be compressed ({why}): read as text, in the order of retrieval"
    plain = sum(one.failure is not None for one in kept)
    scored = any(one.logit is not None for one in gathered.candidates)
    last = "they have no scores and rank last, and " if scored else ""
    return (
        f"{len(failed)} of {len(gathered.candidates)} passages could not be compressed ({why}): "
        f"{last}{plain} of them in context, read as text"
    )


def _status(
    mode: CompressionMode, gathered: Gathered, kept: Sequence[Candidate], *, unfit: bool
) -> CompressionStatus:
    if mode == "off" or not gathered.candidates:
        return "off"
    if gathered.failed and all(one.failure is not None for one in kept):
        return "fallback"
    return "partial" if gathered.failed or unfit else "applied"
