import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tiny_causal import bpe, causal_shape, with_specials
from tiny_pair import pair_files, text_of, tiny_pair, tiny_shape
from torch import Tensor

from condensery.errors import ContextTooLong, InputError
from condensery.networks.oscar_interface import PairTexts, PassageWindow, PromptPart
from condensery.networks.oscar_loading import open_texts
from condensery.networks.oscar_texts import CausalTexts, CompressorTexts, GeneratorTexts
from condensery.runtime.oscar_pair import CheckedTexts, context_too_long
from condensery.runtime.tokenizing import INLINE_CHARACTERS


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> PairTexts:
    directory = pair_files(tmp_path_factory.mktemp("pair"), tiny_pair())
    return open_texts(Path(directory), tiny_shape().to_dict())


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, thread_name_prefix="texts") as registry:
        yield registry


def causal(text_tokens: int = 64) -> CausalTexts:
    shape = causal_shape(text_tokens=text_tokens)
    return CausalTexts(
        CompressorTexts(bpe("llama"), shape.compressor),
        GeneratorTexts(with_specials(bpe("mistral")), shape.generator),
        shape,
    )


class Watched:
    """Texts that note in which thread they are tokenised."""

    def __init__(self, texts: PairTexts) -> None:
        self._texts = texts
        self.seen: list[str] = []
        self.stop, self.positions, self.scores = texts.stop, texts.positions, texts.scores
        self.query_tokens, self.text_tokens = texts.query_tokens, texts.text_tokens
        self.vectors, self.rates = texts.vectors, texts.rates
        self.cut, self.decode = texts.cut, texts.decode

    def make_windows(self, question: str, passages: Sequence[str]) -> list[list[PassageWindow]]:
        self.seen.append(threading.current_thread().name)
        return self._texts.make_windows(question, passages)

    def prompt(self, question: str, context: Sequence[Tensor | str]) -> list[PromptPart]:
        self.seen.append(threading.current_thread().name)
        return self._texts.prompt(question, context)


async def test_long_texts_are_tokenised_in_a_thread_of_their_own_and_short_ones_are_not(
    bert: PairTexts, threads: ThreadPoolExecutor
) -> None:
    watched = Watched(bert)
    texts = CheckedTexts(watched, 1, threads)
    long = text_of(200)
    assert len(long) > INLINE_CHARACTERS
    for passages, wanted in ((["the mill"], "MainThread"), ([long], "texts_0")):
        watched.seen.clear()
        await texts.read("who?", passages, "documents")
        await texts.prompt("who?", passages)
        assert watched.seen == [wanted, wanted]


async def test_a_text_that_is_none_is_named_by_its_field(
    bert: PairTexts, threads: ThreadPoolExecutor
) -> None:
    texts = CheckedTexts(bert, 1, threads)
    over = "a" * (texts.max_characters + 1)
    for question, passages, field in (
        ("\ud800", ["the mill"], "query"),
        (over, ["the mill"], "query"),
        ("who?", ["the mill", "\ud800"], "passages[1]"),
        ("who?", [over], "passages[0]"),
        ("who?", [3], "passages[0]"),
    ):
        with pytest.raises(InputError) as caught:
            await texts.read(question, passages, "passages")  # type: ignore[arg-type]
        assert caught.value.field == field
        assert caught.value.message.startswith(field)
    with pytest.raises(InputError, match=r"documents\[2\]"):
        await texts.prompt("who?", [np.zeros((3, 32), np.float32), "the mill", over])


async def test_a_question_of_any_length_leaves_room_for_a_passage_and_is_told_to_be_cut(
    threads: ThreadPoolExecutor,
) -> None:
    texts = CheckedTexts(causal(text_tokens=18), 0, threads)
    asked, _ = await texts.read("Who?", ["The mill stands by the river."], "documents")
    assert asked.read == asked.tokens
    asked, ((window,),) = await texts.read("xyz " * 30, ["A."], "documents")
    assert asked.read == asked.limit == 12 < asked.tokens
    assert window.tokens > 0


async def test_with_no_room_for_any_question_that_is_the_question_s_fault(
    threads: ThreadPoolExecutor,
) -> None:
    texts = CheckedTexts(causal(text_tokens=3), 0, threads)
    with pytest.raises(InputError, match="leaves no room") as caught:
        await texts.read("xyz " * 30, ["A."], "documents")
    assert caught.value.field == "query"


@pytest.mark.parametrize("family", ["bert", "causal"])
def test_a_prompt_is_counted_in_text_vectors_and_positions(
    bert: PairTexts, threads: ThreadPoolExecutor, family: str
) -> None:
    separators = 1 if family == "bert" else 0
    texts = CheckedTexts(bert if family == "bert" else causal(), separators, threads)
    memory = np.zeros((3 if family == "bert" else 8, 32), np.float32)
    prompt = texts.make_prompt("who is in the mill?", [memory, "the old mill", memory])
    assert prompt.vectors == 2 * len(memory)
    assert prompt.text + prompt.vectors == sum(map(len, prompt.parts))
    between = len(prompt.parts) - 1 if family == "bert" else 0
    assert prompt.size == prompt.text + prompt.vectors + between


def test_what_is_too_long_is_told_with_what_to_ask_less_of(
    bert: PairTexts, threads: ThreadPoolExecutor
) -> None:
    prompt = CheckedTexts(bert, 1, threads).make_prompt("who?", ["the old mill"])
    error = context_too_long(prompt, 1, 90, -4)
    assert isinstance(error, ContextTooLong)
    assert error.field == "rerank.top_n"
    assert f"takes {prompt.size} positions" in error.message
    assert f"has {prompt.size + 86}" in error.message
    assert context_too_long(prompt, 0, 90, -4).field == "max_tokens"
