"""What goes into the next step: how much fits, which sequences, on how many threads.

How much fits is decided once (``KVCacheConfig``), and blocks of the key/value cache are handed out
as sequences begin. How long steps take is measured as they run (``StepTimeModel``).
"""

import time
from collections import abc
from dataclasses import dataclass, replace

import numpy as np
import torch

from condensery.errors import SettingError
from condensery.networks.caching import BLOCK, CachePositions
from condensery.networks.stepping import Stepper
from condensery.runtime.batcher import RATE_MEMORY
from condensery.runtime.sequence import ScheduledChunk, Sequence

CACHE_BYTES = 1 << 30  # on a CPU, where memory that was never written takes no space
SEPARATOR_POSITIONS = 1024  # beside the longest sequence, one after each part of its prompt
CACHE_SHARE = 0.5  # on CUDA, of what is free once the models are loaded
# A cache for fewer positions holds no answer worth the name.
MIN_POSITIONS = 256
# Sequences that ended so many sequences ago count for little (0.9 ** 20 = 0.12).
DRAIN_MEMORY = 0.9
# A shorter step has nothing to gain: every operation waits for the slowest thread.
MIN_STEP_SECONDS = 0.005
# How much faster it has to be: idle workers should be there for what comes.
MIN_SPEEDUP = 1.1
# Of so many steps so many run the other way, to see whether that is still slower: it depends on
# the model's size, on how many sequences run, and on what else the machine does. Not one alone:
# the first of a new shape prepares its products.
TRIAL_PERIOD, TRIAL_STEPS = 64, 2
# Positions that a step reads of a prompt for which nobody waits: who comes meanwhile waits for no
# more than that.
BACKGROUND_POSITIONS = 64
# A step that has taken so many times what it should is not waited for: it may hang.
HANG_FACTOR = 5


def blocks_for(positions: int) -> int:
    """Return how many blocks so many positions take."""
    return -(-positions // BLOCK)


class BlockAllocator:
    """Positions in blocks of ``BLOCK``, given out and taken back; the caller holds a lock.

    Args:
        positions: How many there are; what is left of them after the last whole block is unused.
    """

    def __init__(self, positions: int) -> None:
        self.count = positions // BLOCK
        self._free = np.ones(self.count, dtype=np.bool_)
        self.free = self.count  # blocks that nobody has

    @property
    def used(self) -> int:
        """Blocks that somebody has."""
        return self.count - self.free

    def take(self, count: int) -> list[int]:
        """Give out ``count`` blocks; there are so many.

        Blocks side by side, where there are any: what lies so is read without gathering it. The
        first ones first: memory that was never used stays untouched.
        """
        assert 0 < count <= self.free
        free = np.flatnonzero(self._free)
        runs = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        first = int(runs[0]) if runs.size else 0
        taken = free[first : first + count]
        self._free[taken] = False
        self.free -= count
        return [int(block) for block in taken]

    def give_back(self, blocks: list[int]) -> None:
        """Take blocks back."""
        assert not self._free[blocks].any()
        self._free[blocks] = True
        self.free += len(blocks)


def block_positions(blocks: list[int]) -> CachePositions:
    """Return the positions in these blocks, in order."""
    first = np.asarray(blocks, dtype=np.int64)[:, None] * BLOCK
    return (first + np.arange(BLOCK)).reshape(-1)


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """What an engine may hold.

    Attributes:
        positions: Of the cache, all sequences together.
        step_tokens: Of a step in which somebody waits for the next token: the longer the piece
            of a new prompt, the later that comes. Other steps have ``BatchLimits.batch_tokens``.
    """

    sequences: int
    positions: int
    step_tokens: int


@dataclass(frozen=True, slots=True)
class GeneratorLimits:
    """What an operator allows a generator to hold; 0 is what suits the device and the model.

    Attributes:
        cache_mib: Size of the key/value cache, MiB.
    """

    sequences: int = 0
    cache_mib: int = 0


def kv_cache_config(stepper: Stepper, limits: GeneratorLimits) -> KVCacheConfig:
    """Return what may run.

    Raises:
        SettingError: The cache would hold less than one short answer.
    """
    if not limits.cache_mib:
        config = default_kv_cache_config(stepper)
    else:
        positions = limits.cache_mib * 2**20 // stepper.bytes_per_position
        if positions < MIN_POSITIONS:
            raise SettingError(
                f"generator_cache_mib={limits.cache_mib} holds {positions} positions of "
                f"{stepper.bytes_per_position} bytes, and {MIN_POSITIONS} are the least",
                field="generator_cache_mib",
                value=limits.cache_mib,
            )
        sequences, step_tokens = device_defaults(stepper.device)
        config = KVCacheConfig(sequences, positions, step_tokens)
    return replace(config, sequences=limits.sequences) if limits.sequences else config


def device_defaults(device: torch.device) -> tuple[int, int]:
    """Return the sequences, and the tokens of a step, that suit a device."""
    return (256, 2048) if device.type == "cuda" else (64, 256)


def default_kv_cache_config(stepper: Stepper) -> KVCacheConfig:
    """Return what suits the device and the model."""
    sequences, step_tokens = device_defaults(stepper.device)
    if stepper.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(stepper.device)
        positions = int(free * CACHE_SHARE) // stepper.bytes_per_position
        return KVCacheConfig(sequences, positions, step_tokens)
    # One sequence of the longest kind fits, separators reserved and all.
    positions = max(
        CACHE_BYTES // stepper.bytes_per_position, stepper.longest + SEPARATOR_POSITIONS
    )
    return KVCacheConfig(sequences, positions, step_tokens)


class StepTimeModel:
    """Measures steps and endings; the caller holds a lock."""

    def __init__(self) -> None:
        self._token_seconds = 0.0  # of a step of single tokens
        self._tokens = 0.0  # in such a step
        self._squares = 0.0  # the mean of those tokens' square, and
        self._products = 0.0  # of them times the seconds: what a token costs
        self._prompt_seconds = 0.0  # of a position of a prompt, what a step takes anyhow left out
        self._freed = 0.0
        self._busy = 0.0
        self._since: float | None = None

    def record(self, tokens: int, prompt: int, seconds: float) -> None:
        """Note a step with so many single tokens and ``prompt`` positions of prompts."""
        if not prompt:
            self._token_seconds = _mean(self._token_seconds, seconds)
            self._tokens = _mean(self._tokens, tokens)
            self._squares = _mean(self._squares, tokens * tokens)
            self._products = _mean(self._products, tokens * seconds)
        else:
            each = max(0.0, seconds - self._token_seconds) / prompt
            self._prompt_seconds = _mean(self._prompt_seconds, each)

    def upper_estimate(self, tokens: int, prompt: int) -> float:
        """Return about how many seconds a step should take at most; 0 if too little is known."""
        if not self._token_seconds or (prompt and not self._prompt_seconds):
            return 0.0
        # A step costs as much as its weights, or grows with its tokens.
        growth = max(1.0, tokens / self._tokens)
        return growth * self._token_seconds + prompt * self._prompt_seconds

    def estimate(self, tokens: int, prompt: int) -> float:
        """Return how long a step is likely to take; 0 if too little is known.

        A step costs so much, and so much a token more: a line through those that were.
        """
        if not self._token_seconds or (prompt and not self._prompt_seconds):
            return 0.0
        spread = self._squares - self._tokens**2
        slope = self._token_seconds / self._tokens
        if spread > 0.25:  # equal steps give no slope: then half of it all
            fitted = (self._products - self._tokens * self._token_seconds) / spread
            slope = min(max(fitted, 0.0), slope)
        else:
            slope /= 2
        whole = self._token_seconds + slope * (tokens - self._tokens)
        return max(whole, 0.0) + prompt * self._prompt_seconds

    def note_start(self, now: float) -> None:
        """Note that something runs; what passes while nothing does is not counted."""
        if self._since is None:
            self._since = now

    def note_end(self, positions: int, now: float, *, idle: bool) -> None:
        """Note that a sequence gave back its positions, and whether it was the last."""
        passed = now - self._since if self._since is not None else 0.0
        self._freed = DRAIN_MEMORY * self._freed + positions
        self._busy = DRAIN_MEMORY * self._busy + passed
        self._since = None if idle else now

    @property
    def drain_rate(self) -> float:
        """Positions given back per second; 0 before the first were."""
        return self._freed / self._busy if self._busy else 0.0


def _mean(past: float, new: float) -> float:
    return RATE_MEMORY * past + (1 - RATE_MEMORY) * new if past else new


class ThreadScaler:
    """Chooses how many threads a step runs on, by trying both ways; the caller holds a lock.

    Args:
        single: How long steps on one thread take; it is shown those.
    """

    def __init__(self, single: StepTimeModel) -> None:
        self._single = single
        self._multi = StepTimeModel()
        self._steps = 0

    def threads(self, most: int, tokens: int, prompt: int) -> int:
        """Return how many threads a step is to have: one, or the ``most`` there are for it."""
        single = self._single.estimate(tokens, prompt)
        if most < 2 or single < MIN_STEP_SECONDS:
            return 1
        multi = self._multi.estimate(tokens, prompt)
        faster = multi * MIN_SPEEDUP < single  # true while nothing is known of several
        if multi and self._steps % TRIAL_PERIOD < TRIAL_STEPS:
            faster = not faster
        self._steps += 1
        return most if faster else 1

    def record(self, threads: int, tokens: int, prompt: int, seconds: float) -> None:
        """Note how long a step took."""
        times = self._single if threads == 1 else self._multi
        times.record(tokens, prompt, seconds)


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A step under way.

    Attributes:
        began: When, seconds of ``time.monotonic``.
        seconds: How long it should take; 0 if too little is known.
        tokens: Of its positions, those that are a sequence's newest token.
    """

    began: float
    seconds: float
    tokens: int


def schedule_step(
    ready: abc.Collection[Sequence],
    idle: int,
    *,
    step_tokens: int,
    batch_tokens: int,
    steps: abc.Collection[InFlightStep],
    own_seconds: float,
    express: bool,
    whole: bool = False,
) -> list[ScheduledChunk]:
    """Choose a step's chunks: those that wait for a token, then pieces of prompts.

    A step reads all weights, for one sequence or for ten. So one worker takes the single tokens,
    and what is ready while it is at it joins its next step; the others read prompts. What nobody
    waits for runs in steps of its own, while nothing else is ready.

    Args:
        ready: Sequences that run, and are in no step at the moment.
        idle: Workers that are free, the one that asks among them.
        step_tokens: Most positions of a step in which somebody waits for a token.
        batch_tokens: Of one in which nobody does.
        own_seconds: How long a step of single tokens of all that run should take.
        express: No prompts: it is there for what is short.
        whole: Each prompt at once, however long, as the model can't read it otherwise.

    Returns:
        Nothing where all are to join the next step of a worker that is busy.
    """
    ready = [sequence for sequence in ready if not sequence.background] or ready
    in_prompt = [sequence for sequence in ready if sequence.in_prompt]
    chunks: list[ScheduledChunk] = []
    if not any(_ends_soon(step, own_seconds) for step in steps):
        chunks = [
            ScheduledChunk(sequence, len(sequence.unread))
            for sequence in ready
            if not sequence.in_prompt
        ]
    if express or (chunks and idle > 1):  # another one reads the prompts
        return chunks
    left = (step_tokens if chunks else batch_tokens) - sum(chunk.count for chunk in chunks)
    for sequence in in_prompt[: -(-len(in_prompt) // max(1, idle))]:
        if left <= 0:
            break
        unread = sequence.size - sequence.done
        most = min(left, BACKGROUND_POSITIONS) if sequence.background else left
        chunks.append(ScheduledChunk(sequence, unread if whole else min(unread, most)))
        left -= chunks[-1].count
    return chunks


def _ends_soon(step: InFlightStep, own_seconds: float) -> bool:
    """Whether a step is one with single tokens, and worth waiting for."""
    passed = time.monotonic() - step.began
    return bool(
        step.tokens and step.seconds - passed <= own_seconds and passed < HANG_FACTOR * step.seconds
    )
