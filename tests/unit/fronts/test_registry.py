"""What a front process knows of the engine's models, and what it leaves to the engine."""

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from condensery.cluster.messages import Call, ModelId, Reply
from condensery.errors import DeadlineExceeded, InputError, ModelCannot, ModelNotFound
from condensery.fronts.channel import EngineState, OtherVersion, ServedModel
from condensery.fronts.registry import FrontRegistry, NotHere, RefusingRegistry, _read_tokenizer
from condensery.metrics import Metrics
from condensery.request_context import RequestContext, serving_request
from condensery.runtime.tokenizing import TOKENIZER
from condensery.values import Embedded, ModelInfo, ModelRole


class Engine:
    """Notes the calls, and gives a reply."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.calls: list[Call] = []
        self.dropped = False

    def check(self) -> None:
        pass

    async def call(self, call: Call) -> Reply:
        self.calls.append(call)
        if self.reply.value == "late":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.dropped = True
                raise
        return self.reply

    def stream(self, call: Call) -> AsyncGenerator[Reply, None]:
        raise AssertionError("nothing streams")

    def close(self, model: ModelId) -> None:
        pass


def served(name: str, *roles: ModelRole, tokenizer: Path | None = None) -> ServedModel:
    own = ModelId(name, "1", "sha256:1")
    info = ModelInfo(
        id=name, kind="encoder", method="none", fingerprint="sha256:1", dims=2, max_tokens=16,
        dtype="float32", device="cpu", licence="MIT", created=0,
    )  # fmt: skip
    return ServedModel(own, info, frozenset(roles), {"query": "q: "}, None, tokenizer)


def state(*models: ServedModel) -> EngineState:
    return EngineState(
        models=models,
        aliases={"other": "small"},
        defaults={"encoder": "small", "classifier": "judge"},
        missing={"reranker": ModelNotFound("'gone' was unloaded", field="model", value="gone")},
        refusals={"broken": "a file is damaged"},
        keys=(),
        draining=False,
        refusing=False,
        reason="ready",
    )


def registry(engine: Engine, tokenizer: Path | None = None) -> FrontRegistry:
    made = FrontRegistry(engine)
    small = served("small", "encoder", tokenizer=tokenizer)
    made.update(state(small, served("judge", "classifier", "reranker")), Metrics())
    return made


EMBEDDED = Embedded("small", "sha256:1", np.ones((1, 2), np.float32), 3)


async def test_models_are_found_by_name_alias_and_role_and_called_by_their_own_name() -> None:
    engine = Engine(Reply(EMBEDDED))
    found = registry(engine)
    for name in (None, "small", "other"):
        result = await found.encoder(name).embed(["a"], prompt="q: ", field="inputs")
        assert result is EMBEDDED
    assert {call.model.name for call in engine.calls} == {"small"}
    assert engine.calls[0].method == "embed"
    assert engine.calls[0].args == (["a"],)
    options = {"normalize": None, "dimensions": None, "prompt": "q: ", "field": "inputs"}
    assert engine.calls[0].options == options
    assert found.scorer("judge").info.name == found.classifier().info.name == "judge"
    assert [info.name for info in found.models("encoder")] == ["small"]
    assert [info.name for info in found.models()] == ["small", "judge"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda found: found.encoder("nobody"),
        lambda found: found.encoder("judge"),
        lambda found: found.pair(None),
        lambda found: found.aliases.targets,
        lambda found: found.lifecycle.load("small"),
        lambda found: found.encoder().pieces("a"),
    ],
)
def test_all_else_is_the_engines(ask: Any) -> None:
    with pytest.raises(NotHere):
        ask(registry(Engine(Reply())))


async def test_the_engines_errors_are_raised_here_and_its_time_counts_as_the_requests() -> None:
    engine = Engine(Reply(error=InputError.at("input[0]", "it is too long.", "x")))
    with serving_request(RequestContext()), pytest.raises(InputError) as refused:
        await registry(engine).encoder().embed(["x"])
    assert refused.value.field == "input[0]"


async def test_a_call_whose_time_is_over_is_dropped() -> None:
    engine = Engine(Reply("late"))
    request = RequestContext()
    request.deadline = request.started + 0.01
    with serving_request(request), pytest.raises(DeadlineExceeded):
        await registry(engine).encoder().embed(["x"])
    assert engine.dropped


async def test_models_that_the_engine_names_no_more_are_its_own_again() -> None:
    found = registry(Engine(Reply(EMBEDDED)))
    found.update(state(), Metrics())
    with pytest.raises(NotHere):
        found.encoder("small")
    assert found.models() == []


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A tokenizer of three words."""
    vocabulary = {"[UNK]": 0, "a": 1, "mill": 2, "q": 3}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / TOKENIZER))
    return tmp_path


async def with_tokenizer(found: FrontRegistry) -> None:
    async with asyncio.timeout(30):
        while found.encoder().tokenizer is None:  # noqa: ASYNC110  of a thread
            await asyncio.sleep(0.001)


async def test_short_texts_go_as_tokens_and_long_ones_as_they_are(words: Path) -> None:
    engine = Engine(Reply(EMBEDDED))
    found = registry(engine, words)
    await with_tokenizer(found)
    request = RequestContext()
    with serving_request(request):
        await found.encoder().embed(["a mill", "a"], prompt="q ", truncate=True, field="inputs")
    (call,) = engine.calls
    assert call.method == "embed_tokenized"
    assert call.args == ([([3, 1, 2], False), ([3, 1], False)], 11)
    assert request.stats.tokenizing > 0
    await found.encoder().embed(["a mill " * 100])
    assert engine.calls[-1].method == "embed"
    # Too long for the model, and not to be cut: refused here, in the model's words.
    with pytest.raises(InputError, match=r"inputs\[1\] has 20 tokens, over the model's 16"):
        await found.encoder().embed(["a", "a " * 20], truncate=False, field="inputs")
    assert len(engine.calls) == 2


async def test_tokens_of_a_version_that_is_gone_are_sent_again_as_text(words: Path) -> None:
    class Moved(Engine):
        async def call(self, call: Call) -> Reply:
            self.calls.append(call)
            if call.method == "embed_tokenized":
                return Reply(error=OtherVersion("another one"))
            return self.reply

    engine = Moved(Reply(EMBEDDED))
    found = registry(engine, words)
    await with_tokenizer(found)
    assert await found.encoder().embed(["a mill"], prompt="q ") is EMBEDDED
    assert [call.method for call in engine.calls] == ["embed_tokenized", "embed"]
    assert engine.calls[1].args == (["a mill"],)
    assert engine.calls[1].options["prompt"] == "q "


async def test_a_tokenizer_that_cannot_be_read_leaves_it_to_the_engine(tmp_path: Path) -> None:
    engine = Engine(Reply(EMBEDDED))
    found = registry(engine, tmp_path)
    found._threads.shutdown(wait=True)
    _read_tokenizer(found.encoder())
    assert found.encoder().tokenizer is None
    await found.encoder().embed(["a"])
    assert engine.calls[0].method == "embed"


async def test_a_model_that_stays_keeps_its_tokenizer(words: Path) -> None:
    found = registry(Engine(Reply(EMBEDDED)), words)
    await with_tokenizer(found)
    kept = found.encoder()
    found.update(state(served("small", "encoder", tokenizer=words)), Metrics())
    assert found.encoder() is kept


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("nobody", ModelNotFound, "model 'nobody' does not serve; encoders that serve: ['small']"),
        ("judge", ModelCannot, "model 'judge' is no encoder"),
        ("broken", ModelNotFound, "was refused: a file is damaged"),
    ],
)
def test_a_door_that_cannot_pass_on_refuses_by_name(
    name: str, kind: type[Exception], words: str
) -> None:
    refusing = RefusingRegistry(registry(Engine(Reply())))
    assert refusing.encoder("other").info.name == "small"
    assert [info.name for info in refusing.models("encoder")] == ["small"]
    with pytest.raises(kind, match=re.escape(words)) as refused:
        refusing.encoder(name)
    assert type(refused.value) is kind


def test_a_default_that_does_not_serve_is_told_as_the_engine_told_it() -> None:
    refusing = RefusingRegistry(registry(Engine(Reply())))
    for _ in range(2):
        with pytest.raises(ModelNotFound, match=r"^'gone' was unloaded$"):
            refusing.scorer()
    with pytest.raises(ModelNotFound, match="model 'gone' was unloaded; rerankers that serve"):
        refusing.scorer("gone")
