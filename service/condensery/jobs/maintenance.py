"""What is done to whole indexes while they serve: aliases, snapshots, samples, rebuilds.

A rebuild makes an index anew for another encoder, while the old one serves and is written.
"""

import asyncio
import contextvars
import json
import logging
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from condensery.errors import (
    CondenseryError,
    EncoderMismatch,
    IndexExists,
    InputError,
    Overloaded,
    RebuildNotFound,
    RebuildRunning,
    code_of,
)
from condensery.jobs import indexes
from condensery.jobs.indexes import (
    check_index_settings,
    describe_index,
    find_embedder,
    find_index_encoder,
    find_index_prompts,
    log_outdated_prompts,
    make_index_spec,
    retry_on_swap,
    split_documents,
)
from condensery.jobs.interfaces import Encoder, JsonObject
from condensery.jobs.services import RebuildRun, Services
from condensery.jobs.validation import check_count
from condensery.request_context import RequestContext, serving_request
from condensery.values import (
    Alias,
    AliasAction,
    Document,
    Floats,
    IndexInfo,
    IndexSpec,
    Passage,
    Rebuild,
    RebuildPlan,
    Snapshot,
    SnapshotList,
)

if TYPE_CHECKING:  # else the endpoints that call this would load faiss
    from condensery.index.maintenance import IndexMaintenance
    from condensery.index.rebuilding import Step

_log = logging.getLogger(__name__)

SAMPLES_INDEX = "samples"
SAMPLES_BATCH = 64  # documents: a line of progress every second or two on a CPU

# Documents embedded in one step. Once FINAL_DOCUMENTS or fewer are left, a rebuild has FINAL_STEPS
# steps to end while writes go on; then writes wait for the rest.
STEP_DOCUMENTS = 32
FINAL_DOCUMENTS = 256
FINAL_STEPS = 16
# Texts that are searched for before and after, characters of each, and passages retrieved.
OVERLAP_TEXTS = 32
OVERLAP_CHARS = 300
OVERLAP_TOP_K = 10
REBUILD_CALLER = "rebuild"  # shares the queue with other callers as one of them

# Of some documents: their passages, and a vector of each.
EmbeddedPassages = tuple[list[Passage], Floats]
NO_PASSAGES: EmbeddedPassages = ([], np.empty((0, 0), np.float32))


def find_maintenance(services: Services) -> "IndexMaintenance":
    """Return what keeps the indexes' aliases, snapshots and rebuilds.

    Raises:
        InputError: They are in a database that has none for this service to drive.
    """
    maintenance = services.indexes.maintenance
    if maintenance is None:
        raise InputError.at(
            "index",
            "this service can't manage aliases, restores and rebuilds in the database that holds "
            "the indexes; use the database's own tools.",
        )
    return maintenance


# Aliases


async def list_index_aliases(services: Services) -> list[Alias]:
    """List the aliases by name, and where they lead."""
    return find_maintenance(services).aliases()


async def update_index_aliases(services: Services, actions: Sequence[AliasAction]) -> list[Alias]:
    """Make all of these changes, synced on return, or none; returns the aliases then.

    Args:
        actions: Made in this order. A query sees the names of before all of them, or of after.

    Raises:
        InputError: A malformed action; EmptyInput if there is none.
        AliasNotFound: What is to be deleted or renamed is not there.
        AliasToNothing: An alias would point at no index and no alias.
        AliasCircle: Aliases would lead in a circle.
        NameTaken: An alias would have the name of an index, or be renamed to another alias's.
        LimitReached: There would be more than there may be.
        StorageFull, StorageReadOnly: The disk refused; nothing is changed.
    """
    check_count(actions, "actions", services.limits.max_items)
    return await asyncio.to_thread(find_maintenance(services).update_aliases, actions)


# Snapshots


@retry_on_swap
async def create_snapshot(services: Services, name: str) -> Snapshot:
    """Copy an index as it is now, while it goes on; synced on return.

    Raises:
        IndexNotFound: No such index.
        LimitReached: There are as many as there may be.
        StorageFull, StorageReadOnly: The disk refused; nothing is left behind.
    """
    return await asyncio.to_thread(services.indexes.snapshot, name)


async def list_snapshots(services: Services, name: str) -> SnapshotList:
    """List an index's snapshots, the newest first; also of a dropped or broken index."""
    return await asyncio.to_thread(find_maintenance(services).snapshots, name)


async def get_snapshot(services: Services, name: str, snapshot: str) -> Snapshot:
    """Return what a snapshot is.

    Raises:
        SnapshotNotFound, SnapshotDamaged, SnapshotTooNew: As the message says.
    """
    return await asyncio.to_thread(find_maintenance(services).get_snapshot, name, snapshot)


async def delete_snapshot(services: Services, name: str, snapshot: str) -> None:
    """Delete a snapshot, whether it can be used or not; synced on return."""
    await asyncio.to_thread(find_maintenance(services).delete_snapshot, name, snapshot)


async def restore_snapshot(
    services: Services, name: str, snapshot: str, *, into: str | None = None
) -> IndexInfo:
    """Make an index of a snapshot: over its own, which serves until then, or under a new name.

    Args:
        name: Whose snapshot.
        into: The index to make; None is ``name``. One that is there serves until the new one is
            whole, and stays as it is if that fails.

    Raises:
        SnapshotNotFound, SnapshotDamaged, SnapshotTooNew: As the message says.
        InputError: A malformed name; NameTaken if it is an alias.
        LimitReached: It would be an index more than there may be.
        StorageFull, StorageReadOnly: The disk refused.
    """
    maintenance = find_maintenance(services)
    restored = await asyncio.to_thread(maintenance.restore, name, snapshot, into)
    log_outdated_prompts(services, index=restored.name)
    return describe_index(services, restored)


# The sample index: something to search and to answer from, on a fresh install


def sample_documents() -> list[Document]:
    """Read the sample corpus that comes with the package."""
    text = files("condensery.samples").joinpath("passages.jsonl").read_text(encoding="utf-8")
    documents = []
    for line in text.splitlines():
        entry = json.loads(line)
        metadata = {"title": entry["title"], **entry["metadata"]}
        documents.append(Document(entry["id"], entry["text"], metadata))
    return documents


async def ensure_samples(services: Services, report: Callable[[str], None]) -> bool:
    """Make the sample index, or bring it up to date: only what is missing or differs is written.

    An index of that name with other settings (another encoder's) is a user's: it stays as it is.

    Returns:
        Whether the sample index is there.
    """
    documents = sample_documents()
    try:
        info = await indexes.create_index(services, SAMPLES_INDEX)
    except IndexExists as error:
        report(f"index {SAMPLES_INDEX}: left as it is. {error.message}")
        return False
    indexes.find_index_encoder(services, info)
    missing = await _find_missing_samples(services, documents)
    for start in range(0, len(missing), SAMPLES_BATCH):
        await indexes.upsert_documents(
            services, SAMPLES_INDEX, missing[start : start + SAMPLES_BATCH]
        )
        done = min(start + SAMPLES_BATCH, len(missing))
        report(f"index {SAMPLES_INDEX}: {done} of {len(missing)} passages")
    return True


async def _find_missing_samples(services: Services, documents: list[Document]) -> list[Document]:
    stored = await indexes.get_documents(
        services, SAMPLES_INDEX, [document.id for document in documents]
    )
    known = {document.id: (document.text, dict(document.metadata)) for document in stored}
    return [
        document
        for document in documents
        if known.get(document.id) != (document.text, dict(document.metadata))
    ]


# Rebuilds


async def rebuild_index(
    services: Services,
    name: str,
    *,
    encoder: str | None = None,
    metric: str | None = None,
    kind: str | None = None,
    options: JsonObject | None = None,
) -> Rebuild:
    """Begin to make an index anew for another encoder, while it serves; or go on with that.

    The old one is written, too, until the new one holds all that it holds. The new one is
    embedded with the prompts that an index made today gets, though the encoder is the same.

    Args:
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
    check_index_settings(metric, kind)
    find_maintenance(services)
    running, dims = find_embedder(services, encoder or info.encoder)
    spec = make_index_spec(running, dims, metric, kind, options)
    return await services.rebuilds.run_to_end(_begin_rebuild(services, info.name, running, spec))


async def _begin_rebuild(
    services: Services, name: str, encoder: Encoder, spec: IndexSpec
) -> Rebuild:
    maintenance = find_maintenance(services)
    async with services.rebuilds.lock:
        run = services.rebuilds.runs.get(name)
        if run is not None and run.state == "running":
            plan = run.plan
            if not _same_settings(plan, spec):
                raise RebuildRunning(
                    f"Index {name!r} is being rebuilt for encoder {plan.encoder!r}, "
                    f"{plan.kind}, {plan.metric}; let it finish, or cancel it.",
                    field="index",
                    value=name,
                )
            return run.report()
        await asyncio.to_thread(_cancel_outdated_rebuild, maintenance, name, encoder, spec)
        rebuilding = await asyncio.to_thread(maintenance.rebuild, name, spec)
        run = RebuildRun(
            rebuilding.plan, rebuilding, pending=await asyncio.to_thread(rebuilding.pending)
        )
        run.writable.set()
        services.rebuilds.runs[name] = run
        # In a context of its own: the caller's has a deadline.
        run.task = asyncio.create_task(_run_rebuild(services, run), context=contextvars.Context())
        _log.info("rebuild_began", extra={"index": name, "model": run.plan.encoder})
        return run.report()


def _cancel_outdated_rebuild(
    maintenance: "IndexMaintenance", name: str, encoder: Encoder, spec: IndexSpec
) -> None:
    """Cancel what an older version began without the prompts that the index gets today."""
    for plan in maintenance.unfinished_rebuilds():
        same = plan.index == name and _same_settings(plan, spec)
        if same and find_index_prompts(encoder, plan) != spec.prompts:
            _log.warning("rebuild_begun_anew", extra={"index": name, "model": plan.encoder})
            maintenance.cancel_rebuild(name)


def _same_settings(plan: RebuildPlan, spec: IndexSpec) -> bool:
    planned = (plan.encoder, plan.fingerprint, plan.metric, plan.kind)
    asked = (spec.encoder, spec.fingerprint, spec.metric, spec.kind)
    return planned == asked and spec.options in (None, plan.options)


async def get_rebuild(services: Services, name: str) -> Rebuild:
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
    return run.report()


async def cancel_rebuild(services: Services, name: str) -> None:
    """Cancel an index's rebuild, and delete what was made; the index goes on as it was.

    Raises:
        RebuildNotFound: There is none to cancel.
    """
    await services.rebuilds.run_to_end(_cancel_rebuild(services, services.indexes.info(name).name))


async def _cancel_rebuild(services: Services, name: str) -> None:
    async with services.rebuilds.lock:
        run = services.rebuilds.runs.get(name)
        if run is not None and run.state != "done":
            await services.rebuilds.stop(name)
        await asyncio.to_thread(find_maintenance(services).cancel_rebuild, name)


async def resume_rebuilds(services: Services) -> None:
    """At a start, go on with the rebuilds that the last process began; note why one can't go on."""
    maintenance = services.indexes.maintenance
    for plan in () if maintenance is None else maintenance.unfinished_rebuilds():
        try:
            _check_same_encoder(services, plan)
            await rebuild_index(
                services,
                plan.index,
                encoder=plan.encoder,
                metric=plan.metric,
                kind=plan.kind,
                options=plan.options,
            )
        except CondenseryError as error:
            run = RebuildRun(plan)
            run.fail(error.message, code_of(type(error)))
            services.rebuilds.runs[plan.index] = run
            _log_rebuild_end(run)


async def _run_rebuild(services: Services, run: RebuildRun) -> None:
    """Make the new index, and let it take the old one's place."""
    try:
        await _run_steps(services, run)
    except CondenseryError as error:
        run.fail(error.message, code_of(type(error)))
    except Exception:  # a bug must not leave it `running` for ever
        _log.exception("rebuild_broke", extra={"index": run.plan.index})
        run.fail("an internal error, which the server's log has", "internal_error")
    else:
        run.end("done")
    finally:
        run.writable.set()
    _log_rebuild_end(run)


async def _run_steps(services: Services, run: RebuildRun) -> None:
    rebuilding = run.rebuilding
    assert rebuilding is not None  # made with the run
    final_steps, compared = 0, False
    while True:
        run.pending = await asyncio.to_thread(rebuilding.pending)
        final_steps += run.pending <= FINAL_DOCUMENTS
        if final_steps > FINAL_STEPS:  # writes come as fast as it works them off
            run.writable.clear()
        step = await asyncio.to_thread(rebuilding.next_step, STEP_DOCUMENTS)
        if step.number:
            await _run_step(services, run, step)
            continue
        if not compared:
            run.overlap, compared = await _measure_overlap(services, run), True
        # If its encoder has changed, nobody could search the new index.
        _check_same_encoder(services, run.plan)
        if await asyncio.to_thread(rebuilding.finish):
            return


async def _run_step(services: Services, run: RebuildRun, step: "Step") -> None:
    assert run.rebuilding is not None
    passages, vectors = NO_PASSAGES
    if step.documents:  # else it has deletions only
        passages, vectors = await _embed_documents(services, run, step.documents)
    await asyncio.to_thread(run.rebuilding.write, step, passages, vectors)


async def _embed_documents(
    services: Services, run: RebuildRun, documents: Sequence[Document]
) -> EmbeddedPassages:
    while True:
        try:
            # A call a step: one for all of them would keep an encoder that is unloaded or replaced
            # until its time to drain is over, and end with an index that nobody can search.
            with serving_request(RequestContext(caller=REBUILD_CALLER)):
                encoder = _find_new_encoder(services, run.plan)
                limits = services.limits
                passages = await asyncio.to_thread(split_documents, encoder, documents, limits)
                texts = [passage.headed_text for passage in passages]
                if not texts:
                    return NO_PASSAGES
                prompt = find_index_prompts(encoder, run.plan).passage
                return passages, (await encoder.embed(texts, prompt=prompt)).vectors
        except Overloaded as error:  # callers' own requests go first
            run.writable.set()  # writes must not wait for what waits itself
            await asyncio.sleep(error.retry_after_seconds)


async def _measure_overlap(services: Services, run: RebuildRun) -> float | None:
    """Compare what both indexes retrieve, where both encoders run."""
    assert run.rebuilding is not None
    texts = await asyncio.to_thread(run.rebuilding.sample, OVERLAP_TEXTS)
    texts = [text[:OVERLAP_CHARS] for text in texts]
    if not texts:
        return None
    try:
        with serving_request(RequestContext(caller=REBUILD_CALLER)):
            index = services.indexes.info(run.plan.index)
            old, new = find_index_encoder(services, index), _find_new_encoder(services, run.plan)
            before, after = await asyncio.gather(
                old.embed(texts, prompt=find_index_prompts(old, index).query),
                new.embed(texts, prompt=find_index_prompts(new, run.plan).query),
            )
    except CondenseryError:  # it is only a figure
        return None
    return await asyncio.to_thread(
        run.rebuilding.overlap, before.vectors, after.vectors, OVERLAP_TOP_K
    )


def _find_new_encoder(services: Services, plan: RebuildPlan) -> Encoder:
    _check_same_encoder(services, plan)
    return services.registry.encoder(plan.encoder)


def _check_same_encoder(services: Services, plan: RebuildPlan) -> None:
    """Refuse an encoder that is not the one that the rebuild began with."""
    running = services.registry.encoder(plan.encoder).info.fingerprint
    if running != plan.fingerprint:
        raise EncoderMismatch(
            f"Index {plan.index!r} is being rebuilt for encoder {plan.encoder!r} with fingerprint "
            f"{plan.fingerprint}; the one that runs has {running}.",
            field="index",
            value=plan.index,
        )


def _log_rebuild_end(run: RebuildRun) -> None:
    fields = {"index": run.plan.index, "model": run.plan.encoder}
    if run.state == "failed":
        _log.error("rebuild_failed", extra={**fields, "code": run.code})
    else:
        _log.info("rebuild_done", extra={**fields, "overlap": run.overlap})
