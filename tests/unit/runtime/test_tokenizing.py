import asyncio
import threading
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from condensery.errors import CorruptModel, InputError
from condensery.runtime.tokenizing import INLINE_CHARACTERS, TextTokenizer
from condensery.values import TruncationDirection

CLS, SEP = 2, 3


def vocabulary() -> dict[str, int]:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "mill", "river", "un", "##aff", "##able"]
    pieces += [*"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    return {piece: number for number, piece in enumerate(pieces)}


def plain() -> Tokenizer:
    tokenizer = Tokenizer(WordPiece(vocabulary(), unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return tokenizer


def reference(text: str, longest: int, side: TruncationDirection = "right") -> list[int]:
    """What the library itself gives when it is asked to truncate."""
    tokenizer = plain()
    tokenizer.enable_truncation(longest, direction=side)
    ids: list[int] = tokenizer.encode(text).ids
    return ids


@pytest.fixture
def tokenizer() -> TextTokenizer:
    return TextTokenizer(plain(), 10)


def test_the_empty_text_is_the_special_tokens_alone(tokenizer: TextTokenizer) -> None:
    (tokens,) = tokenizer.encode([""])
    assert tokens.ids == [CLS, SEP]
    assert tokens.count == 2
    assert not tokens.truncated
    assert tokenizer.special_tokens == 2


def test_a_text_without_any_token_is_refused_by_its_place() -> None:
    bare = plain()
    bare.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    with pytest.raises(InputError, match=r"texts\[1\] ' ' has no tokens") as caught:
        TextTokenizer(bare, 10).encode(["mill", " "], field="texts")
    assert caught.value.field == "texts[1]"


def test_padding_and_truncation_in_the_file_are_switched_off() -> None:
    stored = plain()
    stored.enable_padding(length=20)
    stored.enable_truncation(4)
    (tokens,) = TextTokenizer(stored, 10).encode(["a b c d e"])
    assert tokens.count == 7


def test_a_long_text_is_cut_at_its_end_and_keeps_its_last_special_token(
    tokenizer: TextTokenizer,
) -> None:
    short, long = tokenizer.encode(["a b", "a " * 30])
    assert not short.truncated
    assert long.truncated
    assert long.ids == [CLS, *[long.ids[1]] * 8, SEP]


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet="ab unafle  .\u00e9\u4e2d", min_size=0, max_size=400),
    longest=st.integers(3, 24),
    side=st.sampled_from(get_args(TruncationDirection)),
)
def test_truncation_equals_the_library_s_own_whatever_is_cut_off_first(
    text: str, longest: int, side: TruncationDirection
) -> None:
    (tokens,) = TextTokenizer(plain(), longest).encode([text], side=side)
    assert tokens.ids == reference(text, longest, side)
    assert tokens.truncated == (len(plain().encode(text).ids) > longest)


@pytest.mark.parametrize("side", get_args(TruncationDirection))
@pytest.mark.parametrize(
    "text",
    [" " * 2000 + "mill river", "mill river" + " " * 2000, "x" * 2000, "unaffable" * 200],
)
def test_a_text_with_few_tokens_for_its_characters_is_read_whole(
    text: str, side: TruncationDirection
) -> None:
    (tokens,) = TextTokenizer(plain(), 10).encode([text], side=side)
    assert tokens.ids == reference(text, 10, side)


def test_the_prompt_goes_before_each_text(tokenizer: TextTokenizer) -> None:
    with_prompt = tokenizer.encode(["b", "c"], prompt="a ")
    assert with_prompt == tokenizer.encode(["a b", "a c"])


def test_a_text_over_the_character_limit_is_refused_by_its_place(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode(["a" * 2500])[0].count == 3
    with pytest.raises(InputError, match=r"input\[1\] has 2501 characters.* 2500") as refused:
        tokenizer.encode(["a", "a" * 2501])
    assert refused.value.field == "input[1]"
    assert refused.value.value == 2501


def test_a_text_too_long_is_refused_with_its_tokens_where_truncate_is_false(
    tokenizer: TextTokenizer,
) -> None:
    assert tokenizer.encode(["a " * 8], truncate=False)[0].count == 10
    with pytest.raises(InputError, match=r"texts\[1\] has 902 tokens, over the model's 10"):
        tokenizer.encode(["a", "a " * 900], truncate=False, field="texts")


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "caf\u00e9 \udc80"])
def test_a_lone_surrogate_is_an_input_error(tokenizer: TextTokenizer, text: str) -> None:
    with pytest.raises(InputError, match=r"input\[1\] holds a lone surrogate"):
        tokenizer.encode(["fine \U0001f600", text])
    with pytest.raises(InputError, match="lone surrogate"):
        tokenizer.offsets(text)


def test_what_is_no_text_is_an_input_error(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InputError, match=r"input\[0\] is 7, not a text"):
        tokenizer.encode([7])


def test_offsets_are_character_spans_of_the_text_without_special_tokens(
    tokenizer: TextTokenizer,
) -> None:
    text = "\u00e9 \U0001f600 unaffable mill"
    spans = [text[start:end] for start, end in tokenizer.offsets(text)]
    assert spans == ["\u00e9", "\U0001f600", "un", "aff", "able", "mill"]
    assert tokenizer.offsets("") == []
    assert len(tokenizer.offsets("a " * 100)) == 100


async def test_short_and_long_texts_come_out_the_same_on_and_off_the_loop() -> None:
    tokenizer = TextTokenizer(plain(), 100)
    for text in ("river mill", "river mill " * INLINE_CHARACTERS):
        assert await tokenizer.tokenise([text]) == tokenizer.encode([text])


async def test_long_texts_leave_the_loop_free(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TextTokenizer(plain(), 4000)
    begun, go_on = threading.Event(), threading.Event()
    encode = tokenizer._encode

    def held(*args: Any) -> Any:
        begun.set()
        assert go_on.wait(30), "the loop has no turn until it ends"
        return encode(*args)

    monkeypatch.setattr(tokenizer, "_encode", held)
    work = asyncio.ensure_future(tokenizer.tokenise(["river mill stone " * 1000] * 10))
    assert await asyncio.to_thread(begun.wait, 30)
    assert not work.done()
    go_on.set()
    assert len(await work) == 10


def test_a_missing_tokenizer_is_a_corrupt_model(tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=r"tokenizer\.json"):
        TextTokenizer.load(tmp_path, 10)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(CorruptModel, match=r"tokenizer\.json"):
        TextTokenizer.load(tmp_path, 10)
