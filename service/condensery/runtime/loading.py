"""The models that a server starts with."""

import asyncio
from collections.abc import Callable

from condensery.durable import PRIVATE, umask
from condensery.errors import CondenseryError, StartError
from condensery.metrics import Metrics
from condensery.runtime.device import choose_common_dtype, choose_device, prepare_process
from condensery.runtime.pool import RunningModels
from condensery.runtime.room import Bounds
from condensery.settings import Settings
from condensery.store.aliases import FILE, Aliases
from condensery.store.importing import MINILM, import_minilm
from condensery.store.store import ModelStore, shipped_store

# No request outlives its time by more, so that a model that goes is never taken from one.
DRAIN_MARGIN_SECONDS = 30.0


async def load_models(
    settings: Settings,
    metrics: Metrics,
    say: Callable[[str], None],
    *,
    usual_umask: int = PRIVATE,
) -> RunningModels:
    """Open the store, load what it holds as the settings say, and warm it up.

    Args:
        settings: The server's.
        metrics: Where the models count.
        say: Called with a line for each step.
        usual_umask: For the own store, if it is outside the data directory: it may be shared.

    Raises:
        StartError: No model serves.
        SettingError: A device is not there, or has no such precision.
        StoreError: The store can't be read, or the aliases.
    """
    prepare_process()
    aliases = Aliases(settings.data_dir / FILE)
    store = ModelStore(shipped_store(), settings.own_store)
    if MINILM not in store.names():
        say(f"importing {MINILM} into {settings.own_store} (the first time only)")
    try:  # every time: it costs little where the model is whole, and mends it where it is not
        # nothing else is written meanwhile
        with umask(PRIVATE if settings.store_is_private else usual_umask):
            await asyncio.to_thread(import_minilm, store)
    except CondenseryError as error:  # others may serve
        say(f"{MINILM}: not imported: {error.message}")
    device = choose_device(settings.device)
    halves = [
        choose_device(named, field) if named else device
        for field, named in (
            ("compressor_device", settings.compressor_device),
            ("generator_device", settings.generator_device),
        )
    ]
    dtype = choose_common_dtype([device, *halves], settings.dtype)
    places = ", ".join(dict.fromkeys(map(str, [device, *halves])))
    say(f"loading models on {places} in {str(dtype).removeprefix('torch.')}")
    pool = await asyncio.to_thread(
        RunningModels.load,
        store,
        device=device,
        dtype=dtype,
        compressor=halves[0],
        generator=halves[1],
        bounds=Bounds(settings.generator_sequences, settings.generator_cache_mib),
        workers=settings.workers or None,
        queue_tokens=settings.max_queue_tokens,
        queue_seconds=settings.max_queue_seconds,
        aliases=aliases,
        drain_seconds=settings.request_timeout_seconds + DRAIN_MARGIN_SECONDS,
        metrics=metrics,
        say=say,
    )
    say("warming up")
    await pool.warm_up(say)
    serving = {info.name for info in pool.models()}
    for alias in aliases.targets:
        if (target := aliases.resolve(alias)) not in serving:
            say(f"alias {alias}: leads to {target}, which does not serve")
    if not pool.models():
        reasons = "; ".join(f"{name}: {reason}" for name, reason in pool.refused().items())
        pool.close(0)
        raise StartError(f"No model serves. {reasons or 'The store is empty.'}")
    return pool
