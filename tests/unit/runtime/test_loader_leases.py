import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from condensery.request_context import RequestContext
from condensery.runtime.loader import LoadedModel, ModelLease


def serving() -> tuple[ModelLease, Any]:
    """Return a model that is lent, and what says whether something waits in it."""
    model: Any = SimpleNamespace(busy=False)
    stored: Any = SimpleNamespace(path=Path())
    return ModelLease(LoadedModel(model, stored, 0.0, {})), model


async def test_a_model_is_drained_once_no_call_uses_it_and_nothing_waits_in_it() -> None:
    lent, model = serving()
    assert await lent.drained(30)
    first, second = RequestContext(), RequestContext()
    lent.lend(first, ("a",))
    lent.lend(first, ("a", "alias"))  # by another name: it is one user
    lent.lend(second, ("a",))
    assert not await lent.drained(0)
    for call in (first, second):
        waiting = asyncio.create_task(lent.drained(30))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        for ending in call.endings:
            ending()
    assert await asyncio.wait_for(waiting, 30)
    model.busy = True  # what a call has left behind runs on, and needs it
    assert not await lent.drained(0)
    waiting = asyncio.create_task(lent.drained(30))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    model.busy = False
    assert await asyncio.wait_for(waiting, 30)


def test_a_call_keeps_what_it_was_lent_by_each_of_its_names() -> None:
    (lent, _), (newer, _) = serving(), serving()
    call = RequestContext()
    lent.lend(call, ("a", "alias"))
    assert call.leases == {"a": lent, "alias": lent}
    newer.lend(call, ("b",))
    assert call.leases == {"a": lent, "alias": lent, "b": newer}
    assert len(call.endings) == 2
