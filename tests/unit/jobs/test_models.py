from typing import Any

import pytest
from tests.unit.questions import make_question

from condensery.errors import (
    CondenseryError,
    ContextLost,
    ContextNotFound,
    EncoderMismatch,
    IndexNotFound,
    InputError,
    ModelInUse,
)
from condensery.jobs import models
from condensery.jobs.answer import answer_whole
from condensery.jobs.compression import compress_documents
from condensery.jobs.indexes import create_index, upsert_documents
from condensery.jobs.services import Services
from condensery.request_context import RequestContext, serving_request
from condensery.values import Document, ModelIndex


def change_fingerprint(registry: Any, name: str) -> None:
    from dataclasses import replace

    model = registry.encoders.get(name) or registry.pairs[name]
    model.info = replace(model.info, fingerprint="sha256:another")


def tell(registry: Any) -> None:
    for watcher in registry.watchers:
        watcher()


async def test_a_default_an_indexs_encoder_and_what_an_alias_names_are_each_refused(
    services: Services, registry: Any
) -> None:
    with pytest.raises(ModelInUse, match="'words' is not unloaded: it is the default encoder"):
        await models.unload_model(services, "words")
    await create_index(services, "kb", encoder="other")
    with pytest.raises(ModelInUse, match="it is the encoder of kb"):
        await models.unload_model(services, "other")
    await models.set_model_aliases(services, {"best": "other", "words-too": "words"})
    for name, alias in (("other", "best"), ("words", "words-too")):
        for force in (False, True):
            with pytest.raises(ModelInUse, match=f"aliases lead to it .{alias}.") as caught:
                await models.unload_model(services, name, force=force)
            assert (caught.value.field, caught.value.value) == ("model", name)
    await models.set_model_aliases(services, {"best": None, "words-too": None})
    gone = await models.unload_model(services, "other", force=True)
    assert gone.stranded_indexes == ("kb",)
    assert (await models.unload_model(services, "words", force=True)).stranded_indexes == ()


async def test_an_index_that_another_encoder_of_the_name_made_does_not_need_this_one(
    services: Services, registry: Any
) -> None:
    await create_index(services, "kb", encoder="other")
    change_fingerprint(registry, "other")
    assert (await models.unload_model(services, "other")).stranded_indexes == ("kb",)


async def test_a_load_says_which_indexes_can_not_be_used_with_it_and_they_refuse(
    services: Services, registry: Any
) -> None:
    await create_index(services, "kb", encoder="other")
    await create_index(services, "mine", encoder="words")
    assert (await models.load_model(services, "other")).stranded_indexes == ()
    change_fingerprint(registry, "other")
    assert (await models.load_model(services, "other")).stranded_indexes == ("kb",)
    with pytest.raises(EncoderMismatch, match="sha256:another"):
        await upsert_documents(services, "kb", [Document("a", "some text")])


async def test_readiness_follows_the_default_models(services: Services, registry: Any) -> None:
    models.watch_models(services)
    registry.lacks = "words"
    tell(registry)
    assert not services.health.ready
    assert services.health.reason == "the default model words is not loaded"
    services.health.fault("a device worker hangs")
    registry.lacks = None
    tell(registry)
    assert services.health.reason == "a device worker hangs"
    services.health.fault(None)
    assert services.health.ready


async def test_contexts_of_a_pair_that_went_are_lost_and_say_so_to_their_caller_only(
    services: Services, registry: Any
) -> None:
    models.watch_models(services)
    question = "what is gold?"
    with serving_request(RequestContext(caller="alice")):
        made = await compress_documents(
            services, question, [Document("a", "gold"), Document("b", "tin")]
        )
        assert made.context is not None
        asked = make_question(question, context=made.context)
        assert (await answer_whole(services, asked)).text
        tell(registry)  # others came or went: this pair still serves
        assert (await answer_whole(services, asked)).text
        change_fingerprint(registry, "pair")
        tell(registry)
        with pytest.raises(ContextLost, match="the pair pair that made it was unloaded or rep"):
            await answer_whole(services, asked)
    with serving_request(RequestContext(caller="bob")), pytest.raises(ContextNotFound) as caught:
        await answer_whole(services, asked)
    assert type(caught.value) is ContextNotFound
    assert services.metrics.registry.get_sample_value("condensery_context_bytes") == 0


async def test_an_alias_that_carries_an_index_is_listed_with_it_and_holds_its_pair(
    services: Services,
) -> None:
    await create_index(services, "kb", encoder="words")
    await models.set_model_aliases(services, {"best": "pair", "docs": "best@kb?top_k=5"})
    docs = {info.name: info for info in models.list_models(services)}["docs"]
    assert (docs.alias_of, docs.kind, docs.index) == ("pair", "oscar-pair", ModelIndex("kb", 5))
    with pytest.raises(ModelInUse, match=r"best, docs"):
        await models.unload_model(services, "pair", force=True)


@pytest.mark.parametrize(
    ("target", "error", "says"),
    [
        ("pair@gone", IndexNotFound, "'pair@gone': There is no index 'gone'"),
        ("other@kb", InputError, "'other@kb': 'other' answers no questions"),
        ("pair@kb?top_k=100000", InputError, "top_k 100000 is over the limit"),
        ("pair@kb?mode=words", InputError, "mode 'words'"),
    ],
)
async def test_an_alias_carries_no_index_that_could_not_be_answered_from(
    services: Services, target: str, error: type[CondenseryError], says: str
) -> None:
    await create_index(services, "kb", encoder="words")
    with pytest.raises(error, match=says) as caught:
        await models.set_model_aliases(services, {"docs": target})
    assert (caught.value.field, caught.value.value) == ("aliases", target)
    assert not services.registry.aliases.targets


async def test_aliases_are_listed_as_models_after_them(services: Services) -> None:
    await models.set_model_aliases(services, {"best": "other", "answers": "pair"})
    by_name = {info.name: info for info in models.list_models(services)}
    assert list(by_name) == ["words", "other", "pair", "answers", "best"]
    assert by_name["best"].alias_of == "other"
    assert by_name["best"].fingerprint == by_name["other"].fingerprint
    assert by_name["answers"].pair == by_name["pair"].pair is not None
    assert by_name["other"].alias_of is None


async def test_models_and_aliases_report_whether_they_serve(
    services: Services, registry: Any
) -> None:
    await models.set_model_aliases(services, {"best": "other"})
    serving = {
        name: models.is_serving(services, name) for name in ("other", "best", "broken", "nobody")
    }
    assert serving == {"other": True, "best": True, "broken": False, "nobody": None}
    del registry.encoders["other"]
    assert models.is_serving(services, "best") is False
