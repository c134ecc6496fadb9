"""How fast an engine is: what a step should take, and how soon there is room for more."""

from condensery.runtime.batcher import RATE_MEMORY

# Sequences that ended so many sequences ago count for little (0.9 ** 20 = 0.12).
DRAIN_MEMORY = 0.9


class Pace:
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

    def ran(self, tokens: int, prompt: int, seconds: float) -> None:
        """Note a step with so many single tokens and ``prompt`` positions of prompts."""
        if not prompt:
            self._token_seconds = _mean(self._token_seconds, seconds)
            self._tokens = _mean(self._tokens, tokens)
            self._squares = _mean(self._squares, tokens * tokens)
            self._products = _mean(self._products, tokens * seconds)
        else:
            each = max(0.0, seconds - self._token_seconds) / prompt
            self._prompt_seconds = _mean(self._prompt_seconds, each)

    def expects(self, tokens: int, prompt: int) -> float:
        """Return about how many seconds a step should take at most; 0 if too little is known."""
        if not self._token_seconds or (prompt and not self._prompt_seconds):
            return 0.0
        # A step costs as much as its weights, or grows with its tokens.
        growth = max(1.0, tokens / self._tokens)
        return growth * self._token_seconds + prompt * self._prompt_seconds

    def estimates(self, tokens: int, prompt: int) -> float:
        """Return how long a step is likely to take; 0 if too little is known.

        A step costs so much, and so much a token more: a line through those that were.
        """
        if not self._token_seconds or (prompt and not self._prompt_seconds):
            return 0.0
        spread = self._squares - self._tokens**2
        slope = self._token_seconds / self._tokens
        if spread > 0.25:  # of equal steps no slope can be told: then half of it all
            among = (self._products - self._tokens * self._token_seconds) / spread
            slope = min(max(among, 0.0), slope)
        else:
            slope /= 2
        whole = self._token_seconds + slope * (tokens - self._tokens)
        return max(whole, 0.0) + prompt * self._prompt_seconds

    def began(self, now: float) -> None:
        """Note that something runs; what passes while nothing does is not counted."""
        if self._since is None:
            self._since = now

    def ended(self, positions: int, now: float, *, idle: bool) -> None:
        """Note that a sequence gave back its positions, and whether it was the last."""
        passed = now - self._since if self._since is not None else 0.0
        self._freed = DRAIN_MEMORY * self._freed + positions
        self._busy = DRAIN_MEMORY * self._busy + passed
        self._since = None if idle else now

    @property
    def drain(self) -> float:
        """Positions given back per second; 0 before the first were."""
        return self._freed / self._busy if self._busy else 0.0


def _mean(past: float, new: float) -> float:
    return RATE_MEMORY * past + (1 - RATE_MEMORY) * new if past else new
