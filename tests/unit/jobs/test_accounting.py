import asyncio

import pytest

from condensery.errors import InputError
from condensery.jobs import indexes
from condensery.jobs.accounting import count_request


def counted(services, **labels):
    count = services.metrics.registry.get_sample_value("condensery_requests_total", labels)
    return count or 0


def labels(model, code, task="embed"):
    return {"model": model, "task": task, "protocol": "rest", "code": code}


def test_a_request_is_counted_once_by_its_outcome(services):
    with count_request(services, None, "embed", "rest"):
        pass
    with pytest.raises(InputError), count_request(services, "other", "embed", "rest"):
        raise InputError("no")
    with pytest.raises(asyncio.CancelledError), count_request(services, None, "embed", "rest"):
        raise asyncio.CancelledError
    with pytest.raises(ZeroDivisionError), count_request(services, None, "embed", "rest"):
        raise ZeroDivisionError
    assert counted(services, **labels("words", "ok")) == 1
    assert counted(services, **labels("other", "InputError")) == 1
    assert counted(services, **labels("words", "Cancelled")) == 1
    assert counted(services, **labels("words", "InternalError")) == 1


def test_names_that_callers_make_up_do_not_become_labels(services):
    for made_up in ("one", "two"):
        with count_request(services, made_up, "rerank", "rest"):
            pass
    assert counted(services, **labels("unknown", "ok", "rerank")) == 2


async def test_an_index_counts_for_its_encoder(services):
    await indexes.create_index(services, "kb", encoder="other")
    with count_request(services, None, "index", "rest", index="kb"):
        pass
    with count_request(services, None, "index", "rest", index="nowhere"):
        pass
    assert counted(services, **labels("other", "ok", "index")) == 1
    assert counted(services, **labels("unknown", "ok", "index")) == 1
