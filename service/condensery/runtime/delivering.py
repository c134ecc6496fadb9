"""Results on their way home: from a worker's thread to the loops where their callers wait."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from condensery.errors import CondenseryError
from condensery.runtime.lanes import MISSING, Item, Request, Result, Ticket


def send(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    """Call ``function`` in ``loop``, from any thread."""
    with suppress(RuntimeError):  # the loop has closed: nobody waits there any more
        loop.call_soon_threadsafe(function, *args)


def send_results(
    batch: Sequence[Ticket[Item, Result]], outcomes: Sequence[Result | CondenseryError]
) -> None:
    """Hand each caller its results, from any thread."""
    # One wake-up for each loop, not one an item (only tests have more than one loop).
    homes: dict[asyncio.AbstractEventLoop, list[int]] = {}
    for place, ticket in enumerate(batch):
        homes.setdefault(ticket.request.reply.get_loop(), []).append(place)
    for loop, places in homes.items():
        send(loop, _deliver, [(batch[place], outcomes[place]) for place in places])


def send_error(request: Request[Item, Result], error: CondenseryError) -> None:
    """Fail a whole request, from any thread."""
    send(request.reply.get_loop(), _fail, request.reply, error)


def _deliver(
    outcomes: Sequence[tuple[Ticket[Item, Result], Result | CondenseryError]],
) -> None:
    for ticket, outcome in outcomes:
        request = ticket.request
        if request.reply.done() or request.results[ticket.index] is not MISSING:
            continue  # the second: a worker that was given up has brought its batch home after all
        if isinstance(outcome, CondenseryError) and not request.each:
            request.reply.set_exception(outcome)
            continue
        request.results[ticket.index] = outcome
        request.missing -= 1
        if not request.missing:
            request.reply.set_result(request.results)


def _fail(reply: asyncio.Future[list[Result]], error: CondenseryError) -> None:
    if not reply.done():
        reply.set_exception(error)
