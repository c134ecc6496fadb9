"""Whether a step is faster with the threads of idle workers as well: seen by trying."""

from condensery.runtime.pace import Pace

# A shorter step has nothing to gain: every operation waits for the slowest thread.
LEAST_SECONDS = 0.005
# How much faster it has to be: idle workers should be there for what comes.
LEAST_GAIN = 1.1
# Of so many steps so many run the other way, to see whether that is still slower: it depends on
# the model's size, on how many sequences run, and on what else the machine does. Not one alone:
# the first of a new shape prepares its products.
EVERY, TRIES = 64, 2


class Width:
    """Chooses how many threads a step runs on; the caller holds a lock.

    Args:
        narrow: How fast steps on one thread are; learns of those.
    """

    def __init__(self, narrow: Pace) -> None:
        self._narrow = narrow
        self._wide = Pace()
        self._steps = 0

    def threads(self, most: int, tokens: int, prompt: int) -> int:
        """Return how many threads a step is to have: one, or the ``most`` there are for it."""
        narrow = self._narrow.estimates(tokens, prompt)
        if most < 2 or narrow < LEAST_SECONDS:
            return 1
        wide = self._wide.estimates(tokens, prompt)
        faster = wide * LEAST_GAIN < narrow  # as it is thought to be while nothing is known
        if wide and self._steps % EVERY < TRIES:
            faster = not faster
        self._steps += 1
        return most if faster else 1

    def ran(self, threads: int, tokens: int, prompt: int, seconds: float) -> None:
        """Note how long a step took."""
        pace = self._narrow if threads == 1 else self._wide
        pace.ran(tokens, prompt, seconds)
