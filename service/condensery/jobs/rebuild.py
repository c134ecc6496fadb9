"""Rebuilds: an index made anew for another encoder, while the old one serves and is written."""

import asyncio
import contextvars
import logging
from collections.abc import Sequence
from functools import partial

import numpy as np

from condensery.callers import Call, calling
from condensery.errors import (
    CondenseryError,
    EncoderMismatch,
    InputError,
    Overloaded,
    RebuildNotFound,
    RebuildRunning,
    code_of,
)
from condensery.index.kinds import KINDS
from condensery.jobs.checks import check_choice
from condensery.jobs.index_ports import JsonObject, Rebuilding, RebuildStep
from condensery.jobs.index_vectors import encoder_of, prompts_of
from condensery.jobs.indexes import METRICS, split_documents
from condensery.jobs.ports import Encoder
from condensery.jobs.rebuilds import Run
from condensery.jobs.services import Services
from condensery.prompts import index_prompts
from condensery.upkeep import Rebuild, RebuildPlan
from condensery.values import Document, Floats, Passage

# Documents embedded in one step. Once no more than so many are left, it has so many steps to come
# to its end while writes go on; then they wait for the rest.
STEP_DOCUMENTS = 32
LAST_DOCUMENTS = 256
LAST_STEPS = 16
# Texts that are looked for before and after, how much of each, and how many passages are found.
SAMPLE_TEXTS = 32
SAMPLE_CHARS = 300
SAMPLE_TOP_K = 10
CALLER = "rebuild"  # shares the queue with other callers as one of them

Embedding = tuple[list[Passage], Floats]  # of some documents: their passages, and a vector of each
NOTHING: Embedding = ([], np.empty((0, 0), np.float32))

_log = logging.getLogger(__name__)


async def rebuild_index(
    services: Services,
    name: str,
    *,
    encoder: str | None = None,
    metric: str | None = None,
    kind: str | None = None,
    options: JsonObject | None = None,
) -> Rebuild:
    """Begin to make an index anew for another encoder, or go on where that stopped.

    The old one serves, and is written, until the new one holds all that it holds. The new one is
    embedded with the prompts that an index made today gets, though the encoder is the same.

    Args:
        services: The running parts.
        name: The index.
        encoder: The new encoder's name; None is that of the name that the index has now, as it
            runs today.
        metric: As of a new index; None is what it has now.
        kind: Likewise.
        options: The kind's; None is as they are, if the kind is.

    Raises:
        IndexNotFound, ModelNotFound: No such index or encoder.
        InputError: A malformed setting.
        TextsMissing: Of some documents only vectors are known.
        RebuildRunning: It is being rebuilt otherwise.
        StorageFull, StorageReadOnly: The disk refused; nothing has begun.
    """
    info = services.indexes.info(name)
    metric, kind = metric or info.metric, kind or info.kind
    check_choice(metric, "metric", METRICS)
    check_choice(kind, "kind", KINDS)
    running = services.pool.encoder(encoder or info.encoder)
    target = running.info
    if target.dims is None:
        raise InputError(
            f"encoder: {target.name} gives no vectors.", field="encoder", value=encoder
        )
    wanted = partial(
        services.indexes.keeping.rebuild,
        info.name,
        encoder=target.name,
        fingerprint=target.fingerprint,
        dims=target.dims,
        metric=metric,
        kind=kind,
        options=options,
        prompts=index_prompts(running),
    )
    return await services.rebuilds.whole(_begin(services, info.name, running, wanted))


async def _begin(
    services: Services, name: str, encoder: Encoder, begin: "partial[Rebuilding]"
) -> Rebuild:
    async with services.rebuilds.beginning:
        run = services.rebuilds.runs.get(name)
        if run is not None and run.state == "running":
            now = run.plan
            if not _is_as_asked(now, begin.keywords):
                raise RebuildRunning(
                    f"Index {name!r} is being rebuilt for encoder {now.encoder!r}, "
                    f"{now.kind}, {now.metric}; let it finish, or cancel it.",
                    field="index",
                    value=name,
                )
            return run.told()
        await asyncio.to_thread(_give_up_older, services, name, encoder, begin)
        rebuilding = await asyncio.to_thread(begin)
        run = Run(rebuilding.plan, rebuilding, pending=await asyncio.to_thread(rebuilding.pending))
        run.open.set()
        services.rebuilds.runs[name] = run
        # not in the caller's context, whose time will be over
        run.task = asyncio.create_task(_work(services, run), context=contextvars.Context())
        _log.info("rebuild_began", extra={"index": name, "model": run.plan.encoder})
        return run.told()


def _give_up_older(
    services: Services, name: str, encoder: Encoder, begin: "partial[Rebuilding]"
) -> None:
    """Forget what an older version made of an index without prompts that it gets today."""
    keeping, asked = services.indexes.keeping, begin.keywords
    for plan in keeping.unfinished_rebuilds():
        same = plan.index == name and _is_as_asked(plan, asked)
        if same and prompts_of(encoder, plan) != asked["prompts"]:
            _log.warning("rebuild_begun_anew", extra={"index": name, "model": plan.encoder})
            keeping.cancel_rebuild(name)


def _is_as_asked(plan: RebuildPlan, asked: JsonObject) -> bool:
    said = ("encoder", "fingerprint", "metric", "kind")
    same = asked["options"] is None or asked["options"] == plan.options
    return same and all(getattr(plan, one) == asked[one] for one in said)


async def rebuild_status(services: Services, name: str) -> Rebuild:
    """Return how far an index's rebuild has come, or how the last one ended.

    Raises:
        RebuildNotFound: There was none since the server started.
    """
    info = services.indexes.info(name)
    run = services.rebuilds.runs.get(info.name)
    if run is None:
        raise RebuildNotFound(
            f"Index {info.name!r} is not being rebuilt, and was not since the server started.",
            field="index",
            value=name,
        )
    return run.told()


async def cancel_rebuild(services: Services, name: str) -> None:
    """Give up an index's rebuild, and forget what was made; the old index goes on.

    Raises:
        RebuildNotFound: Nothing is to be given up.
    """
    await services.rebuilds.whole(_cancel(services, services.indexes.info(name).name))


async def _cancel(services: Services, name: str) -> None:
    async with services.rebuilds.beginning:
        run = services.rebuilds.runs.get(name)
        if run is not None and run.state != "done":
            await services.rebuilds.stop(name)
        await asyncio.to_thread(services.indexes.keeping.cancel_rebuild, name)


async def resume_rebuilds(services: Services) -> None:
    """At a start, go on with what the last process had begun; what can't go on says why."""
    for plan in services.indexes.keeping.unfinished_rebuilds():
        try:
            _check_same(services, plan)
            await rebuild_index(
                services,
                plan.index,
                encoder=plan.encoder,
                metric=plan.metric,
                kind=plan.kind,
                options=plan.options,
            )
        except CondenseryError as error:
            run = Run(plan)
            run.fail(error.message, code_of(type(error)))
            services.rebuilds.runs[plan.index] = run
            _report(run)


async def _work(services: Services, run: Run) -> None:
    """Make the new index, and let it take the old one's place."""
    try:
        await _steps(services, run)
    except CondenseryError as error:
        run.fail(error.message, code_of(type(error)))
    except Exception:  # a bug must not leave it running for ever
        _log.exception("rebuild_broke", extra={"index": run.plan.index})
        run.fail("an internal error, which the server's log has", "internal_error")
    else:
        run.end("done")
    finally:
        run.open.set()
    _report(run)


async def _steps(services: Services, run: Run) -> None:
    rebuilding = run.rebuilding
    assert rebuilding is not None  # made with the run
    last, compared = 0, False
    while True:
        run.pending = await asyncio.to_thread(rebuilding.pending)
        last += run.pending <= LAST_DOCUMENTS
        if last > LAST_STEPS:  # it does not get there by itself: writes come as fast as it works
            run.open.clear()
        step = await asyncio.to_thread(rebuilding.step, STEP_DOCUMENTS)
        if step.number:
            await _do(services, run, step)
            continue
        if not compared:
            run.overlap, compared = await _overlap(services, run), True
        _check_same(services, run.plan)  # else nobody could search it, as they can the old one
        if await asyncio.to_thread(rebuilding.finish):
            return


async def _do(services: Services, run: Run, step: RebuildStep) -> None:
    assert run.rebuilding is not None
    pieces, vectors = NOTHING
    if step.documents:  # else it has deletions only
        pieces, vectors = await _embed(services, run, step.documents)
    await asyncio.to_thread(run.rebuilding.done, step, pieces, vectors)


async def _embed(services: Services, run: Run, documents: Sequence[Document]) -> Embedding:
    while True:
        try:
            # A call a step: one for all of them would keep an encoder that is unloaded or replaced
            # until its time to drain is over, and end with an index that nobody can search.
            with calling(Call(caller=CALLER)):
                encoder = _encoder(services, run.plan)
                limits = services.limits
                pieces = await asyncio.to_thread(split_documents, encoder, documents, limits)
                texts = [piece.text for piece in pieces]
                if not texts:
                    return NOTHING
                prompt = prompts_of(encoder, run.plan).passage
                return pieces, (await encoder.embed(texts, prompt=prompt)).vectors
        except Overloaded as error:  # who asks for himself goes first
            run.open.set()  # and waits for nothing that waits itself
            await asyncio.sleep(error.retry_after_seconds)


async def _overlap(services: Services, run: Run) -> float | None:
    """Compare what both find, where both encoders run."""
    assert run.rebuilding is not None
    texts = await asyncio.to_thread(run.rebuilding.sample, SAMPLE_TEXTS)
    texts = [text[:SAMPLE_CHARS] for text in texts]
    if not texts:
        return None
    try:
        with calling(Call(caller=CALLER)):
            index = services.indexes.info(run.plan.index)
            both = (
                (encoder_of(services, index), index),
                (_encoder(services, run.plan), run.plan),
            )
            before, after = await asyncio.gather(
                *(one.embed(texts, prompt=prompts_of(one, of).query) for one, of in both)
            )
    except CondenseryError:  # it is only a figure
        return None
    return await asyncio.to_thread(
        run.rebuilding.overlap, before.vectors, after.vectors, SAMPLE_TOP_K
    )


def _encoder(services: Services, plan: RebuildPlan) -> Encoder:
    _check_same(services, plan)
    return services.pool.encoder(plan.encoder)


def _check_same(services: Services, plan: RebuildPlan) -> None:
    """Refuse an encoder that is not the one that the rebuild began with."""
    runs = services.pool.encoder(plan.encoder).info.fingerprint
    if runs != plan.fingerprint:
        raise EncoderMismatch(
            f"Index {plan.index!r} is being rebuilt for encoder {plan.encoder!r} with fingerprint "
            f"{plan.fingerprint}; the one that runs has {runs}.",
            field="index",
            value=plan.index,
        )


def _report(run: Run) -> None:
    fields = {"index": run.plan.index, "model": run.plan.encoder}
    if run.state == "failed":
        _log.error("rebuild_failed", extra={**fields, "code": run.code})
    else:
        _log.info("rebuild_done", extra={**fields, "overlap": run.overlap})
