"""Which of the passages the generator reads, and how finely: by relevance, by budget, by room."""

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from condensery.answers import CompressionMode, CompressionStatus
from condensery.errors import ContextTooLong
from condensery.jobs.aside import aside
from condensery.jobs.budgets import unread_windows, within_budget
from condensery.jobs.candidates import Candidate, Gathered, count_of
from condensery.jobs.ports import Counted, Prompt, Reader
from condensery.questions import Question
from condensery.values import Floats

# So many characters for each free position are tokenised at once: about as many as a token has.
LIKELY_CHARACTERS = 8
# By so much, passages in a prompt may take less than each by itself.
SEAM_POSITIONS = 4
NO_ROOM = "since the generator has no room for more"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the generator reads for an answer.

    Attributes:
        gathered: What there was.
        mode: What was asked for; of a plain reading of the same passages, ``off``.
        kept: Passages in context, best first, as far as they are read.
        vectors: How many of each window's memory are read, at most.
        prompt: What the generator reads, in tokens and vectors; made once, for all that asks.
        counted: What the answer's cost is made of.
        status: What became of compression.
        left_out: Places of those that were to be read and are not.
        reasons: What the caller would not expect.
        found: Whether the passages may hold an answer; if not, nothing is generated.
        tokenize_ms: What making the prompt took.
    """

    gathered: Gathered
    mode: CompressionMode
    kept: tuple[Candidate, ...]
    vectors: int
    prompt: Prompt
    counted: Counted
    status: CompressionStatus
    left_out: tuple[int, ...]
    reasons: tuple[str, ...]
    found: bool = True
    tokenize_ms: float = 0.0

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
    texts = (question.text, *(one.text for one in gathered.candidates))
    started = time.perf_counter()
    reading = await aside(texts, lambda: _choose(reader, question, gathered))
    return replace(reading, tokenize_ms=1000 * (time.perf_counter() - started))


async def plainly(reader: Reader, question: Question, reading: Reading) -> Reading:
    """Return a reading of the same passages as text, as many as fit.

    Raises:
        ContextTooLong: Not even one does.
    """
    texts = (question.text, *reading.texts)
    started = time.perf_counter()
    plain = await aside(texts, lambda: _plainly(reader, question, reading))
    return replace(plain, tokenize_ms=1000 * (time.perf_counter() - started))


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
        allowed = within_budget(reader, question, gathered, kept)
        vectors = allowed.vectors
        reasons += allowed.reasons
        wanted = [one.first(allowed.windows) for one in kept[: allowed.passages]]
        prompt, fits, windows = fitting(reader, question, wanted, 0 if plain else vectors)
        if fits < len(wanted):
            reasons.append(_no_room(len(wanted) - fits))
        shortened = any(len(one.memories) > windows for one in wanted[:fits])
        if shortened:
            reasons.append(unread_windows(wanted[:fits], windows, NO_ROOM))
        unfit = shortened or fits < len(wanted)
        left_out += [one.place for one in kept[fits:]]
        kept = [one.first(windows) for one in wanted[:fits]]
    else:
        prompt = reader.tokenise(question.text, _context(kept, vectors))
    if gathered.failed:
        reasons.append(_failures(gathered, kept))
    return Reading(
        gathered=gathered,
        mode=mode,
        kept=tuple(kept),
        vectors=vectors,
        prompt=prompt,
        counted=_count(reader, question, prompt, kept),
        status=_status(mode, gathered, kept, unfit=unfit),
        left_out=tuple(left_out),
        reasons=tuple(reasons),
        found=found,
    )


def _plainly(reader: Reader, question: Question, reading: Reading) -> Reading:
    kept = reading.kept
    prompt, fits, _ = fitting(reader, replace(question, mode="off"), kept, 0)
    unfit = [_no_room(len(kept) - fits)] if fits < len(kept) else []
    return Reading(
        gathered=reading.gathered,
        mode="off",
        kept=kept[:fits],
        vectors=0,
        prompt=prompt,
        counted=_count(reader, question, prompt, kept[:fits]),
        status="off",
        left_out=tuple(one.place for one in kept[fits:]),
        reasons=("asked for", *unfit),
    )


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return passages best first: by relevance, then those without, in the order of retrieval.

    By the logit, not its sigmoid, which in float32 is 1.0 for all above 17. Where some have a
    score, the others have none: retrieval's is on another scale.
    """
    scored = [(one.logit, one) for one in candidates if one.logit is not None]
    others = [one for one in candidates if one.logit is None]
    if scored:
        others = [replace(one, score=None) for one in others]
    return [*(one for _, one in sorted(scored, key=lambda pair: -pair[0])), *others]


def fitting(
    reader: Reader, question: Question, kept: Sequence[Candidate], vectors: int
) -> tuple[Prompt, int, int]:
    """Make the prompt of what fits the generator, with the question and its answer.

    All of the best passages where they fit; else, of long ones whose windows nothing scores, the
    first windows; else the first passages.

    Args:
        reader: The pair.
        question: What is asked.
        kept: Passages, best first.
        vectors: Read of each window; 0 reads all passages as text.

    Returns:
        The prompt, how many passages are in it, and how many windows of each at most.

    Raises:
        ContextTooLong: None of them; or not all passages, and compression is required.
    """

    def shown(windows: int) -> list[Candidate]:
        return [one.first(windows) for one in kept] if vectors else list(kept)

    def prompt_of(count: int, windows: int) -> Prompt:
        return reader.tokenise(question.text, _context(shown(windows)[:count], vectors))

    def room(prompt: Prompt) -> int:
        return reader.room(prompt, question.max_tokens)

    every = max((len(one.memories) for one in kept), default=1) if vectors else 1
    free = room(prompt_of(0, 1)) if kept else 0
    plain = sum(len(one.text) for one in kept if not (vectors and one.compressed))
    # Of a hundred long texts few more should be tokenised than fit.
    if plain <= LIKELY_CHARACTERS * max(0, free):
        prompt = prompt_of(len(kept), every)
        if room(prompt) >= 0:
            return prompt, len(kept), every
    # The more windows, the longer the prompt: of all that have more than one, the first so many.
    windows = 1 + bisect_right(
        range(2, every), False, key=lambda windows: room(prompt_of(len(kept), windows)) < 0
    )
    if every > 1 and room(prompt := prompt_of(len(kept), windows)) >= 0:
        return prompt, len(kept), windows
    count = likely = _likely(reader, shown(1), vectors, free)
    while count and room(prompt := prompt_of(count, 1)) < 0:
        count -= 1
    # Together they may take less than each by itself.
    while likely <= count < len(kept) and room(longer := prompt_of(count + 1, 1)) >= 0:
        prompt, count = longer, count + 1
    if count and (count == len(kept) or question.mode != "required"):
        return prompt, count, 1
    named = len(kept) if count else min(1, len(kept))
    field, value = ("rerank.top_n", len(kept)) if count else ("max_tokens", question.max_tokens)
    raise ContextTooLong(
        f"{field}: the question, {named} passages and an answer of max_tokens "
        f"{question.max_tokens} take {-room(prompt_of(named, 1))} positions more than the "
        f"generator of {reader.info.name} has.",
        field=field,
        value=value,
    )


def _likely(reader: Reader, kept: Sequence[Candidate], vectors: int, room: int) -> int:
    """Return how many of the first passages should fit, each counted by itself; or one more."""
    taken = 0
    for count, one in enumerate(kept):
        taken += sum(reader.sizes(_context([one], vectors)))
        if taken > room + SEAM_POSITIONS:
            return count
    return len(kept)


def _under_threshold(reader: Reader, question: Question, gathered: Gathered) -> bool:
    """Whether every passage was scored, and none enough. One without a score may be what holds it.

    No passages at all score nothing.
    """
    least = question.min_relevance
    if least is None:
        least = reader.traits.min_relevance
    unknown = any(one.logit is None for one in gathered.candidates)
    return (
        not unknown and max((one.score or 0.0 for one in gathered.candidates), default=0.0) < least
    )


def _context(kept: Sequence[Candidate], vectors: int) -> list[Floats | str]:
    """Return what the generator gets: the first vectors of each window, or a passage's text."""
    context: list[Floats | str] = []
    for one in kept:
        if vectors and one.compressed is not None:
            context += [memory[:vectors] for memory in one.memories]
        else:
            context.append(one.text)
    return context


def _count(
    reader: Reader, question: Question, prompt: Prompt, kept: Sequence[Candidate]
) -> Counted:
    """Count what an answer's cost is made of; texts that the prompt holds are not read again."""
    texts = [one.text for one in kept] if prompt.vectors else None
    return reader.count(question.text, prompt, texts)


def _no_room(count: int) -> str:
    return f"{count_of(count, 'passage')} left out, {NO_ROOM}"


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
