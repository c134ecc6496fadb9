"""How the composition root imports what is heavy, and gives back what is free."""

import asyncio
import gc
import subprocess
import sys

import pytest

from condensery import server
from condensery.runtime import device
from condensery.server import kept_for_good

IMPORTS = """
import gc
from condensery.server import kept_for_good
with kept_for_good():
    import xml.dom.expatbuilder
found = {id(one) for one in gc.get_objects()}
print(gc.isenabled(), id(xml.dom.expatbuilder.__dict__) in found)
"""


def test_what_is_imported_for_good_is_not_looked_through_for_garbage_again() -> None:
    # In a process of its own: what is kept is kept for all that comes after.
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_an_import_that_fails_leaves_garbage_to_be_collected() -> None:
    with pytest.raises(ModuleNotFoundError), kept_for_good():
        import there_is_no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()


async def test_what_is_free_is_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trims, twice = 0, asyncio.Event()
    loop = asyncio.get_running_loop()

    def trim() -> None:
        nonlocal trims
        trims += 1
        if trims == 2:
            loop.call_soon_threadsafe(twice.set)

    monkeypatch.setattr(device, "trim_memory", trim)
    monkeypatch.setattr(server, "TRIM_SECONDS", 0.01)
    task = asyncio.create_task(server._trim_regularly())
    try:
        await asyncio.wait_for(twice.wait(), 60)
    finally:
        task.cancel()
