import numpy as np
import pytest

from condensery.errors import EmptyInput, InputError, ModelNotFound, PayloadTooLarge
from condensery.jobs.embed import embed
from condensery.values import fill_prompt


async def test_each_text_gets_its_row(services):
    result = await embed(services, ["a", "b", "a"])
    assert result.model == "words"
    assert np.array_equal(result.vectors[0], result.vectors[2])
    assert not np.array_equal(result.vectors[0], result.vectors[1])


async def test_the_empty_text_is_a_text(services):
    assert len((await embed(services, [""])).vectors) == 1


async def test_an_empty_list_names_its_field(services):
    with pytest.raises(EmptyInput, match="inputs: the list is empty") as caught:
        await embed(services, [], field="inputs")
    assert caught.value.field == "inputs"


async def test_too_many_texts_name_count_and_limit(services):
    with pytest.raises(PayloadTooLarge, match="input: 51 items, over the limit of 50"):
        await embed(services, ["a"] * 51)


async def test_a_text_far_too_long_is_named_by_its_place(services):
    at_limit = 16 * 250
    await embed(services, ["a" * at_limit])
    with pytest.raises(InputError, match=r"input\[1\]: 4001 characters, over the limit of 4000"):
        await embed(services, ["a", "a" * (at_limit + 1)])


async def test_half_a_surrogate_pair_is_refused(services):
    with pytest.raises(InputError, match=r"input\[0\]: the character at 1 is half of a surrogate"):
        await embed(services, ["a\ud800"])


async def test_an_unknown_model_is_named(services):
    with pytest.raises(ModelNotFound, match="'nobody'"):
        await embed(services, ["a"], model="nobody")


async def test_other_dimensions_than_the_models_are_refused(services):
    assert (await embed(services, ["a"], dimensions=8)).vectors.shape == (1, 8)
    with pytest.raises(InputError, match="dimensions: 4, but words gives vectors of 8"):
        await embed(services, ["a"], dimensions=4)


async def test_a_prompt_is_found_by_its_name(services, registry):
    await embed(services, ["a"], prompt_name="query", normalize=False)
    assert registry.encoders["words"].asked == [("a", "query: ", False)]
    with pytest.raises(InputError, match="words has no prompt 'haiku'; it has: query"):
        await embed(services, ["a"], prompt_name="haiku")


async def test_a_text_too_long_to_be_left_whole_is_named_as_the_door_calls_it(services):
    with pytest.raises(InputError) as caught:
        await embed(services, ["a", "b " * 20], truncate=False, field="texts")
    assert caught.value.field == "texts[1]"


async def test_an_instruction_needs_a_model_that_reads_one(services, registry):
    with pytest.raises(InputError, match="instruction: words takes no instructions"):
        await embed(services, ["a"], instruction="find it")
    words = registry.encoders["words"]
    words.prompts = {"query": "query: ", "instruction": "{instruction}: {text}?"}
    await embed(services, ["a"], instruction="find it", normalize=False)
    assert words.asked[-1] == ("a", "find it: {text}?", False)
    with pytest.raises(InputError, match="prompt_name: the prompt 'instruction' of words needs"):
        await embed(services, ["a"], prompt_name="instruction")
    with pytest.raises(InputError, match="input_type: give it or instruction; got both"):
        await embed(services, ["a"], instruction="find it", input_type="query")


@pytest.mark.parametrize(
    ("prompt", "whole"),
    [
        ("", "a {b}"),
        ("query: ", "query: a {b}"),
        ("<{text}>{text}", "<a {b}>{text}"),
        ("{", "{a {b}"),
    ],
)
def test_a_prompt_stands_before_a_text_or_round_it(prompt, whole):
    assert fill_prompt(prompt, "a {b}") == whole
