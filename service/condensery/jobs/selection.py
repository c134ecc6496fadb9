"""Which passages the generator reads, and how finely: by relevance, by budget, by what fits.

A budget (vectors, or time) is kept by the finest rate that keeps to it; where even the coarsest
does not, by fewer windows of long passages whose windows nothing scores, then by fewer passages.
"""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from condensery.errors import ContextTooLong, InputError
from condensery.index.fusion import weigh_place
from condensery.jobs.contexts import Candidate, RetrievedContext, failure_reasons, passages_phrase
from condensery.jobs.interfaces import (
    AnswerGenerator,
    AnswerServer,
    CountedAnswer,
    GeneratorPrompt,
    OscarModel,
)
from condensery.question import AnswerCompression, CompressionMode, CompressionStatus, Question
from condensery.values import Floats

# About a millisecond of tokenising; under it, a thread costs others more than it spares them.
INLINE_CHARACTERS = 2_000

# So many characters for each free position are tokenised at once: about as many as a token has.
LIKELY_CHARACTERS = 8
# By so much, passages in a prompt may take less than each by itself.
JOINT_POSITIONS = 4
DOES_NOT_FIT = "since the generator has no room for more"
ONLY_RANKS = "another server's model writes the answer, and reads text: compression only ranks"

Result = TypeVar("Result")


async def run_tokenizing(texts: Iterable[str], work: Callable[[], Result]) -> Result:
    """Do ``work`` on texts: at once where they are short, else in a thread."""
    if sum(map(len, texts)) <= INLINE_CHARACTERS:
        return work()
    return await asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class SelectedContext:
    """What the generator reads for an answer.

    Attributes:
        mode: What was asked for; ``off`` where the same passages are read as text.
        ranked: All passages, best first.
        kept: Those in context, best first, as far as they are read.
        vectors: How many of each window's memory are read, at most.
        prompt: What the generator reads, in tokens and vectors; made once.
        counted: What the answer's cost is made of.
        left_out: Places of those that were to be read and are not.
        reasons: What the caller would not expect.
        may_answer: Whether the passages may hold an answer; if not, nothing is generated.
        tokenize_ms: What making the prompt took.
        server: The other server that writes the answer, and reads text; None is the pair itself.
    """

    retrieved: RetrievedContext
    mode: CompressionMode
    ranked: tuple[Candidate, ...]
    kept: tuple[Candidate, ...]
    vectors: int
    prompt: GeneratorPrompt
    counted: CountedAnswer
    status: CompressionStatus
    left_out: tuple[int, ...]
    reasons: tuple[str, ...]
    may_answer: bool = True
    tokenize_ms: float = 0.0
    server: AnswerServer | None = None

    @property
    def texts(self) -> list[str]:
        """The same passages' texts."""
        return [candidate.headed_text for candidate in self.kept]

    @property
    def headed(self) -> tuple[Candidate, ...]:
        """Those in context whose passage stands under a heading."""
        return tuple(candidate for candidate in self.kept if candidate.heading)

    @property
    def as_vectors(self) -> tuple[Candidate, ...]:
        """Those read as vectors."""
        kept = () if self.mode == "off" or self.server is not None else self.kept
        return tuple(candidate for candidate in kept if candidate.compressed)

    @property
    def as_text(self) -> tuple[Candidate, ...]:
        """Those read as text because they could not be compressed."""
        kept = () if self.mode == "off" else self.kept
        return tuple(candidate for candidate in kept if candidate.failure)


async def select_context(
    oscar: OscarModel,
    question: Question,
    retrieved: RetrievedContext,
    server: AnswerServer | None = None,
) -> SelectedContext:
    """Keep the most relevant passages that keep to the budgets and fit the generator.

    Args:
        server: What writes the answer in the pair's place, from text.

    Raises:
        InputError: Not even one passage keeps to ``max_context_vectors``.
        ContextTooLong: Not even one fits the generator; or not all, and compression is required.
    """
    texts = (question.query, *(candidate.headed_text for candidate in retrieved.candidates))
    return await _time_tokenizing(
        texts, lambda: _select_context(oscar, question, retrieved, server)
    )


async def select_plain_text(
    oscar: OscarModel, question: Question, selected: SelectedContext
) -> SelectedContext:
    """Return a selection of the same passages as text, as many as fit.

    Raises:
        ContextTooLong: Not even one does.
    """
    texts = (question.query, *selected.texts)
    return await _time_tokenizing(texts, lambda: _select_plain_text(oscar, question, selected))


async def _time_tokenizing(
    texts: Iterable[str], select: Callable[[], SelectedContext]
) -> SelectedContext:
    started = time.perf_counter()
    selected = await run_tokenizing(texts, select)
    return replace(selected, tokenize_ms=1000 * (time.perf_counter() - started))


def _select_context(
    oscar: OscarModel,
    question: Question,
    retrieved: RetrievedContext,
    server: AnswerServer | None,
) -> SelectedContext:
    mode, plain = question.compression.mode, question.compression.mode == "off"
    reads_text = plain or server is not None
    top_n = oscar.traits.top_n if question.rerank.top_n is None else question.rerank.top_n
    # The order of documents that came with the request says nothing of them.
    weight = 0.0 if question.index is None else oscar.traits.rank_weight
    ranked = rank_candidates(retrieved.candidates, weight)
    kept = ranked[: top_n or None]
    reasons = ["asked for"] if plain else []
    if not kept:
        reasons.append("no passages were found")
    reasons += retrieved.reasons
    if server is not None and not plain:
        reasons.append(ONLY_RANKS)
    vectors, left_out, unfit = retrieved.vectors[0], list(retrieved.left_out), False
    may_answer = plain or not _is_under_threshold(oscar, question, retrieved, kept)
    if may_answer:
        allowed = _fit_budgets_of(oscar, question, retrieved, kept, server)
        vectors = allowed.vectors
        reasons += allowed.reasons
        wanted = [candidate.first(allowed.windows) for candidate in kept[: allowed.passages]]
        prompt, fits, windows = fit_prompt(
            oscar, question, wanted, 0 if reads_text else vectors, server
        )
        windows = allowed.windows if reads_text else windows
        if fits < len(wanted):
            reasons.append(_does_not_fit_reason(len(wanted) - fits))
        shortened = any(len(candidate.memories) > windows for candidate in wanted[:fits])
        if shortened:
            reasons.append(unread_windows_reason(wanted[:fits], windows, DOES_NOT_FIT))
        unfit = shortened or fits < len(wanted)
        left_out += [candidate.place for candidate in kept[fits:]]
        kept = [candidate.first(windows) for candidate in wanted[:fits]]
    else:
        inputs = _generator_inputs(kept, 0 if reads_text else vectors)
        prompt = (server or oscar).make_prompt(question.query, inputs)
    if retrieved.failed:
        reasons.append(_failures_reason(retrieved, kept))
    return SelectedContext(
        retrieved=retrieved,
        mode=mode,
        ranked=tuple(ranked),
        kept=tuple(kept),
        vectors=vectors,
        prompt=prompt,
        counted=_count_cost(oscar, question, prompt if server is None else None, kept),
        status=_compression_status(mode, retrieved, kept, unfit=unfit) if server is None else "off",
        left_out=tuple(left_out),
        reasons=tuple(reasons),
        may_answer=may_answer,
        server=server,
    )


def _select_plain_text(
    oscar: OscarModel, question: Question, selected: SelectedContext
) -> SelectedContext:
    kept = selected.kept
    prompt, fits, _ = fit_prompt(
        oscar, replace(question, compression=AnswerCompression("off")), kept, 0
    )
    unfit = [_does_not_fit_reason(len(kept) - fits)] if fits < len(kept) else []
    return SelectedContext(
        # Reading the same passages as text takes none of their compression.
        retrieved=replace(
            selected.retrieved, read=(), compress_ms=0.0, queue_ms=0.0, tokenize_ms=0.0
        ),
        mode="off",
        ranked=selected.ranked,
        kept=kept[:fits],
        vectors=0,
        prompt=prompt,
        counted=_count_cost(oscar, question, prompt, kept[:fits]),
        status="off",
        left_out=tuple(candidate.place for candidate in kept[fits:]),
        reasons=("asked for", *unfit),
    )


@dataclass(frozen=True, slots=True)
class BudgetAllowance:
    """What the budgets allow, and what of it the caller would not expect."""

    vectors: int  # of a window
    windows: int  # of a passage whose windows nothing scores
    passages: int  # the best
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Budgets:
    """A question's budgets, and what passages take of them when read so finely.

    The methods' ``count`` is of the first passages, ``windows`` of the first of each, ``vectors``
    of the first of a window.
    """

    oscar: OscarModel
    kept: Sequence[Candidate]
    positions: Sequence[int]  # of each passage read as text; empty without `target_ms`
    max_vectors: int | None
    target_ms: float | None
    left_ms: float  # of `target_ms`, after compression

    @property
    def names(self) -> str:
        """The budgets that are set."""
        budgets = {"max_context_vectors": self.max_vectors, "target_ms": self.target_ms}
        return " and ".join(f"{name} {value:g}" for name, value in budgets.items() if value)

    def memories(self, count: int, windows: int) -> list[Floats]:
        """Return the windows' memories."""
        return [memory for passage in self.kept[:count] for memory in passage.memories[:windows]]

    def count_vectors(self, vectors: int, count: int, windows: int) -> int:
        """Return how many vectors are read."""
        return sum(min(len(memory), vectors) for memory in self.memories(count, windows))

    def expected_ms(self, vectors: int, count: int, windows: int) -> float:
        """Return about how long the first token takes."""
        texts = sum(not candidate.compressed for candidate in self.kept[:count])
        passages = texts + len(self.memories(count, windows))
        known = self.count_vectors(vectors, count, windows)
        return self.oscar.expected_ms(0, known, sum(self.positions[:count]), passages)

    def allow(self, vectors: int, count: int, windows: int) -> bool:
        """Whether both budgets are kept."""
        known = self.count_vectors(vectors, count, windows)
        if self.max_vectors is not None and known > self.max_vectors:
            return False
        return self.target_ms is None or self.expected_ms(vectors, count, windows) <= self.left_ms

    def force_one(self, vectors: int, compress_ms: float) -> str:
        """Return why one passage is read though it is over ``target_ms``.

        Raises:
            InputError: It is over ``max_context_vectors``.
        """
        known = self.count_vectors(vectors, 1, 1)
        if self.max_vectors is not None and known > self.max_vectors:
            raise InputError.at(
                "compression.max_context_vectors",
                f"{self.max_vectors}, but one passage is {known} vectors at the coarsest rate.",
                self.max_vectors,
            )
        return (
            f"compression took {compress_ms:.0f} ms and the first token takes about "
            f"{self.expected_ms(vectors, 1, 1):.0f} ms from one passage, over target_ms "
            f"{self.target_ms:g}"
        )


def fit_budgets(
    oscar: OscarModel, question: Question, retrieved: RetrievedContext, kept: Sequence[Candidate]
) -> BudgetAllowance:
    """Return how finely, and how many of the best passages, may be read.

    Both budgets hold. ``max_context_vectors`` is a bound. ``target_ms`` is aimed at: the time of
    compression is taken off it, and one passage is read in any case.

    Raises:
        InputError: One passage alone is over ``max_context_vectors``.
    """
    max_vectors, target = question.compression.max_context_vectors, question.compression.target_ms
    all_windows = max((len(candidate.memories) for candidate in kept), default=1)
    if not kept or (max_vectors is None and target is None):
        return BudgetAllowance(retrieved.vectors[0], all_windows, len(kept))
    positions, left_ms = [], 0.0
    if target is not None:
        left_ms = max(0.0, target - retrieved.compress_ms)
        positions = [
            0 if candidate.compressed else oscar.count_positions([candidate.headed_text])[0]
            for candidate in kept
        ]
    budgets = Budgets(oscar, kept, positions, max_vectors, target, left_ms)
    finest, coarsest = retrieved.vectors[0], retrieved.vectors[-1]
    reasons = []
    if target is not None and not budgets.expected_ms(finest, len(kept), all_windows):
        reasons.append("there is no measurement yet by which to keep to target_ms")
    for vectors in retrieved.vectors:
        if budgets.allow(vectors, len(kept), all_windows):
            return BudgetAllowance(vectors, all_windows, len(kept), tuple(reasons))
    to_keep = f"to keep to {budgets.names}"
    # The more windows, the more vectors, and the longer it takes.
    windows = bisect_right(
        range(1, all_windows), False, key=lambda each: not budgets.allow(coarsest, len(kept), each)
    )
    if windows:
        reasons.append(unread_windows_reason(kept, windows, to_keep))
        return BudgetAllowance(coarsest, windows, len(kept), tuple(reasons))
    fewer = range(len(kept) - 1, 0, -1)
    count = next((count for count in fewer if budgets.allow(coarsest, count, 1)), 0)
    if not count:
        count = 1
        reasons.append(budgets.force_one(coarsest, retrieved.compress_ms))
    if count < len(kept):
        reasons.append(f"{passages_phrase(len(kept) - count)} left out {to_keep}")
    if any(len(candidate.memories) > 1 for candidate in kept[:count]):
        reasons.append(unread_windows_reason(kept[:count], 1, to_keep))
    return BudgetAllowance(coarsest, 1, count, tuple(reasons))


def _fit_budgets_of(
    oscar: OscarModel,
    question: Question,
    retrieved: RetrievedContext,
    kept: Sequence[Candidate],
    server: AnswerServer | None,
) -> BudgetAllowance:
    """Return what the budgets allow; where text is read by another server they bound nothing."""
    if server is None:
        return fit_budgets(oscar, question, retrieved, kept)
    target, reasons = question.compression.target_ms, []
    if target is not None:
        reasons = [f"target_ms {target:g} is without effect, since another server generates"]
    windows = max((len(candidate.memories) for candidate in kept), default=1)
    return BudgetAllowance(0, windows, len(kept), tuple(reasons))


def unread_windows_reason(kept: Sequence[Candidate], windows: int, reason: str) -> str:
    """Say how many windows of long passages are not read, beyond the first ``windows`` of each."""
    long = [len(candidate.memories) for candidate in kept if len(candidate.memories) > 1]
    unread = sum(max(0, count - windows) for count in long)
    windows_of = f"{unread} of the {sum(long)} windows of long passages"
    return f"{windows_of} were compressed and are not read, {reason}"


def rank_candidates(candidates: Sequence[Candidate], rank_weight: float = 0.0) -> list[Candidate]:
    """Return passages best first: by relevance, then those without, in the order of retrieval.

    By the logit, not its sigmoid, which in float32 is 1.0 for all above 17. Where some have a
    score, the others have none: retrieval's is on another scale.

    Args:
        candidates: In the order of retrieval.
        rank_weight: How much their places there count beside their scores (``weigh_place``).
    """
    scored = [
        (weigh_place(candidate.logit, candidate.place + 1, rank_weight), candidate)
        for candidate in candidates
        if candidate.logit is not None
    ]
    others = [candidate for candidate in candidates if candidate.logit is None]
    if scored:
        others = [replace(candidate, score=None) for candidate in others]
    return [*(candidate for _, candidate in sorted(scored, key=lambda pair: -pair[0])), *others]


def fit_prompt(
    oscar: OscarModel,
    question: Question,
    kept: Sequence[Candidate],
    vectors: int,
    server: AnswerServer | None = None,
) -> tuple[GeneratorPrompt, int, int]:
    """Make the prompt of what fits the generator, with the question and its answer.

    All of the best passages where they fit; else, of long ones whose windows nothing scores, the
    first windows; else the first passages.

    Args:
        kept: Passages, best first.
        vectors: Read of each window; 0 reads all passages as text.
        server: What reads them in the pair's place.

    Returns:
        The prompt, how many passages are in it, and how many windows of each at most.

    Raises:
        ContextTooLong: None of them; or not all passages, and compression is required.
    """
    generator: AnswerGenerator = server or oscar

    def shown(windows: int) -> list[Candidate]:
        return [candidate.first(windows) for candidate in kept] if vectors else list(kept)

    def prompt_of(count: int, windows: int) -> GeneratorPrompt:
        inputs = _generator_inputs(shown(windows)[:count], vectors)
        return generator.make_prompt(question.query, inputs)

    def free_positions(prompt: GeneratorPrompt) -> int:
        return generator.free_positions(prompt, question.max_tokens)

    every = max((len(candidate.memories) for candidate in kept), default=1) if vectors else 1
    free = free_positions(prompt_of(0, 1)) if kept else 0
    plain = sum(
        len(candidate.headed_text) for candidate in kept if not (vectors and candidate.compressed)
    )
    # Of a hundred long texts few more should be tokenised than fit.
    if plain <= LIKELY_CHARACTERS * max(0, free):
        prompt = prompt_of(len(kept), every)
        if free_positions(prompt) >= 0:
            return prompt, len(kept), every
    # The more windows, the longer the prompt: of all that have more than one, the first so many.
    windows = 1 + bisect_right(
        range(2, every),
        False,
        key=lambda windows: free_positions(prompt_of(len(kept), windows)) < 0,
    )
    if every > 1 and free_positions(prompt := prompt_of(len(kept), windows)) >= 0:
        return prompt, len(kept), windows
    count = likely = _estimate_fit(generator, shown(1), vectors, free)
    while count and free_positions(prompt := prompt_of(count, 1)) < 0:
        count -= 1
    # Together they may take less than each by itself.
    while likely <= count < len(kept) and free_positions(longer := prompt_of(count + 1, 1)) >= 0:
        prompt, count = longer, count + 1
    if count and (count == len(kept) or question.compression.mode != "required"):
        return prompt, count, 1
    named = len(kept) if count else min(1, len(kept))
    over = -free_positions(prompt_of(named, 1))
    if server is not None:
        raise _over_budget_error(server, question, named, over)
    too_many = ("rerank.top_n", len(kept)) if count else ("max_tokens", question.max_tokens)
    raise _too_long_error(oscar, question, named, over, *too_many)


def _too_long_error(
    oscar: OscarModel, question: Question, passages: int, over: int, field: str, value: int
) -> ContextTooLong:
    return ContextTooLong.at(
        field,
        f"the question, {passages} passages and an answer of max_tokens "
        f"{question.max_tokens} take {over} positions more than the generator of "
        f"{oscar.info.name} has.",
        value,
    )


def _over_budget_error(
    server: AnswerServer, question: Question, passages: int, over: int
) -> ContextTooLong:
    return ContextTooLong.at(
        "documents" if question.index is None else "index",
        f"{passages} passages are {over} tokens more than {server.model} is sent "
        "(answer_context_tokens).",
        passages,
    )


def _estimate_fit(
    generator: AnswerGenerator, kept: Sequence[Candidate], vectors: int, free: int
) -> int:
    """Return how many of the first passages should fit, each counted by itself; or one more."""
    taken = 0
    for count, candidate in enumerate(kept):
        taken += sum(generator.count_positions(_generator_inputs([candidate], vectors)))
        if taken > free + JOINT_POSITIONS:
            return count
    return len(kept)


def _is_under_threshold(
    oscar: OscarModel,
    question: Question,
    retrieved: RetrievedContext,
    kept: Sequence[Candidate],
) -> bool:
    """Whether all passages were scored, and none that would be read enough.

    One without a score may hold the answer. No passages at all score nothing.
    """
    threshold = question.min_relevance
    if threshold is None:
        threshold = oscar.traits.min_relevance
    unknown = any(candidate.logit is None for candidate in retrieved.candidates)
    best = max((candidate.score or 0.0 for candidate in kept), default=0.0)
    return not unknown and best < threshold


def _generator_inputs(kept: Sequence[Candidate], vectors: int) -> list[Floats | str]:
    """Return what the generator gets: the first vectors of each window, or a passage's text."""
    context: list[Floats | str] = []
    for candidate in kept:
        if vectors and candidate.compressed is not None:
            context += [memory[:vectors] for memory in candidate.memories]
        else:
            context.append(candidate.headed_text)
    return context


def _count_cost(
    oscar: OscarModel, question: Question, prompt: GeneratorPrompt | None, kept: Sequence[Candidate]
) -> CountedAnswer:
    """Count what an answer's cost is made of; texts that the prompt holds are not read again.

    Args:
        prompt: The pair's; None where it generates nothing, and only compresses.
    """
    if prompt is None:
        return oscar.count_answer(question.query, oscar.make_prompt(question.query, []), None)
    texts = [candidate.headed_text for candidate in kept] if prompt.vectors else None
    return oscar.count_answer(question.query, prompt, texts)


def _does_not_fit_reason(count: int) -> str:
    return f"{passages_phrase(count)} left out, {DOES_NOT_FIT}"


def _failures_reason(retrieved: RetrievedContext, kept: Sequence[Candidate]) -> str:
    """Say how many passages could not be compressed, why, and what became of them."""
    failed = retrieved.failed
    causes = failure_reasons(candidate.failure for candidate in failed)
    if len(failed) == len(retrieved.candidates):
        return f"no passage could be compressed ({causes}): read as text, in the order of retrieval"
    plain = sum(candidate.failure is not None for candidate in kept)
    scored = any(candidate.logit is not None for candidate in retrieved.candidates)
    last = "they have no scores and rank last, and " if scored else ""
    return (
        f"{len(failed)} of {len(retrieved.candidates)} passages could not be compressed ({causes})"
        f": {last}{plain} of them in context, read as text"
    )


def _compression_status(
    mode: CompressionMode, retrieved: RetrievedContext, kept: Sequence[Candidate], *, unfit: bool
) -> CompressionStatus:
    if mode == "off" or not retrieved.candidates:
        return "off"
    if retrieved.failed and all(candidate.failure is not None for candidate in kept):
        return "fallback"
    return "partial" if retrieved.failed or unfit else "applied"
