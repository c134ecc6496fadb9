"""Waiting in a queue before several servers: Erlang, Allen-Cunneen, and who goes first.

A machine of ``c`` cores is a queue M/G/c: requests arrive at random (Poisson), each needs a time of
service (mean ``s``, squared coefficient of variation ``v``), ``c`` are served at once.

- How likely a request waits is Erlang's C (A. K. Erlang, 1917), which is exact for exponential
  services and close for others.
- How long it waits in the mean is Allen and Cunneen's approximation (A. O. Allen, Probability,
  Statistics and Queueing Theory, 2nd edition, 1990, section 5.3): that of M/M/c times
  ``(1 + v) / 2``. For ``c = 1`` it is Pollaczek and Khinchine's formula, which is exact.
- The wait of those who do wait is taken to be exponential, as it is in M/M/c.
- Where short requests go first, the wait of the others grows by ``1 / (1 - load of the short)``:
  exact for M/G/1 with preemption, and used for several servers after A. B. Bondi and J. P. Buzen,
  The response times of priority classes under preemptive resume in M/G/m queues, 1984.

Seconds everywhere; rates are requests a second. Nothing here knows what a request is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wait:
    """How long requests wait: the chance that one does, and the mean over all, seconds."""

    chance: float
    mean: float

    @property
    def scale(self) -> float:
        """The mean wait of those who wait, seconds."""
        return self.mean / self.chance if self.chance else 0.0

    def exceeds(self, seconds: float) -> float:
        """Return the chance to wait longer than so many seconds."""
        if seconds < 0:
            return 1.0
        return self.chance * math.exp(-seconds / self.scale) if self.scale else 0.0

    def quantile(self, share: float) -> float:
        """Return the seconds that ``share`` of all requests do not wait longer than."""
        beyond = 1 - share
        return self.scale * math.log(self.chance / beyond) if self.chance > beyond else 0.0

    def plus(self, other: "Wait") -> "Wait":
        """Return the wait of who waits for the one, then for the other."""
        chance = 1 - (1 - self.chance) * (1 - other.chance)
        return Wait(chance, self.mean + other.mean)

    def stretched(self, factor: float) -> "Wait":
        """Return the wait, each so many times as long."""
        return Wait(self.chance, self.mean * factor)


@dataclass(frozen=True, slots=True)
class Service:
    """What a class of requests needs of one server.

    Attributes:
        scv: Squared coefficient of variation of the times: variance over the mean's square.
    """

    rate: float
    mean: float
    scv: float = 0.0


def mixed(services: Sequence[Service]) -> Service:
    """Return several classes as one, its mean and variation those of all requests together."""
    rate = sum(service.rate for service in services)
    if not rate:
        return Service(0.0, 0.0)
    mean = sum(service.rate * service.mean for service in services) / rate
    squares = sum(s.rate * (1 + s.scv) * s.mean**2 for s in services) / rate
    return Service(rate, mean, squares / mean**2 - 1 if mean else 0.0)


def utilisation(servers: int, service: Service) -> float:
    """Return the share of the servers that is busy; 1 and above is more than they can do."""
    return service.rate * service.mean / servers


def erlang_c(servers: int, offered: float) -> float:
    """Return the chance to find all servers busy, in M/M/c.

    Args:
        offered: Rate times service time, under ``servers``.
    """
    assert 0 <= offered < servers
    blocked = 1.0  # Erlang's B, by its recursion, which no number overflows
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def allen_cunneen(servers: int, service: Service) -> Wait:
    """Return how long requests wait in M/G/c, of which ``utilisation`` is under 1."""
    load = utilisation(servers, service)
    assert load < 1
    if not load:
        return Wait(0.0, 0.0)
    chance = erlang_c(servers, load * servers)
    exponential = chance * service.mean / (servers * (1 - load))
    return Wait(chance, exponential * (1 + service.scv) / 2)


def short_first(
    servers: int, short: Sequence[Service], long: Sequence[Service]
) -> tuple[Wait, Wait, float]:
    """Return the waits of short and of long requests where the short ones go first.

    And how many times as long a long one's own service takes, since short ones come between.
    """
    before = mixed(short)
    stretch = 1 / (1 - utilisation(servers, before))
    everybody = allen_cunneen(servers, mixed([*short, *long]))
    return allen_cunneen(servers, before), everybody.stretched(stretch), stretch


def mixed_quantile(classes: Sequence[tuple[float, float, Wait]], share: float) -> float:
    """Return the seconds that ``share`` of all requests together do not take longer than.

    Args:
        classes: Of each its rate, its time of service and its wait.
        share: Over 0, under 1.
    """
    whole = sum(rate for rate, _, _ in classes)

    def beyond(seconds: float) -> float:
        return sum(rate * wait.exceeds(seconds - own) for rate, own, wait in classes) / whole

    low, high = 0.0, max(own for _, own, _ in classes) + 1e-9
    while beyond(high) > 1 - share:
        high *= 2
    for _ in range(60):  # halves: far past the float's own precision
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > 1 - share else (low, middle)
    return high
