from dataclasses import dataclass, field
from typing import Any

import pytest

from condensery.index.prompts import PROMPT_PURPOSES, make_index_prompts, make_older_index_prompts
from condensery.jobs.embed import INPUT_TYPES, choose_prompt
from condensery.values import IndexPrompts

NOMIC = {
    "search_query": "search_query: ",
    "search_document": "search_document: ",
    "classification": "classification: ",
    "clustering": "clustering: ",
}


@dataclass
class Model:
    """What is asked of a model here."""

    prompts: dict[str, str]
    default_prompt: str | None = None
    info: object = field(default=None)


def test_an_index_and_every_door_find_the_same_prompts() -> None:
    asked, read = PROMPT_PURPOSES["search_query"], PROMPT_PURPOSES["search_document"]
    models = [Model({}), Model(NOMIC), Model(NOMIC, "clustering"), Model({"odd": "o: "}, "odd")]
    models += [Model({name: "q: ", other: "d: "}) for name in asked for other in read]
    models += [Model({name: f"{name}: "}) for name in (*asked, *read)]
    models += [Model({**dict.fromkeys(read, "no: "), "document": "", "query": "q: "}, "query")]
    services: Any = None  # asked for instructions alone
    for model in models:
        prompts = make_index_prompts(model)
        for input_type in ("search_query", "query"):
            assert choose_prompt(services, model, None, input_type, None) == prompts.query, model
        for input_type in ("search_document", "document", "passage"):
            assert choose_prompt(services, model, None, input_type, None) == prompts.passage, model
    assert {"search_query", "search_document"} < set(INPUT_TYPES)


@pytest.mark.parametrize(
    ("model", "now", "before"),
    [
        (Model(NOMIC), ("search_query: ", "search_document: "), ("", "")),
        (Model({"query": "q: ", "corpus": "c: "}), ("q: ", "c: "), ("q: ", "")),
        (Model({"query": "q: ", "passage": "p: "}), ("q: ", "p: "), ("q: ", "p: ")),
        (Model({"query": "q: ", "document": ""}), ("q: ", ""), ("q: ", "")),
        (Model({"odd": "o: "}, "odd"), ("o: ", "o: "), ("", "")),
        (Model({}), ("", ""), ("", "")),
    ],
)
def test_what_an_index_gets_today_and_what_it_got_before(model, now, before) -> None:
    assert make_index_prompts(model) == IndexPrompts(*now)
    assert make_older_index_prompts(model) == IndexPrompts(*before)
