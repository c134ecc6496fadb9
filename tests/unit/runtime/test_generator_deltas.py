import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_causal import bpe
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from condensery.errors import InputError
from condensery.runtime.generator import (
    REPLACEMENT_CHARACTER,
    DecodingDetokenizer,
    IncrementalDetokenizer,
    StopStrings,
    WordPieceDetokenizer,
)


def byte_tokenizer() -> Tokenizer:
    """A token a byte, as GPT-2, Llama 3 and Qwen write them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def piece_tokenizer() -> Tokenizer:
    """A token a letter, blanks as in Llama 2 and Mistral; a decoder that drops the leading one."""
    letters = ["<unk>", "▁", *"abcdefghijklmnopqrstuvwxyzäé😀"]
    tokenizer = Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


BYTES, PIECES = byte_tokenizer(), piece_tokenizer()


def deltas_of(deltas: IncrementalDetokenizer, ids: list[int]) -> list[str]:
    return [*(deltas.push(token) for token in ids), deltas.rest()]


@given(st.text(max_size=12))
def test_deltas_of_bytes_join_to_the_text_and_are_whole_characters(text: str) -> None:
    text = text.replace(REPLACEMENT_CHARACTER, "").encode(errors="ignore").decode()
    deltas = deltas_of(DecodingDetokenizer(BYTES.decode), BYTES.encode(text).ids)
    assert "".join(deltas) == text
    assert REPLACEMENT_CHARACTER not in "".join(deltas)


@given(st.lists(st.sampled_from(["ab", "c", "äé", "😀"]), min_size=1, max_size=6))
def test_deltas_keep_blanks_that_decoders_drop_at_the_beginning(words: list[str]) -> None:
    text = " ".join(words)
    assert "".join(deltas_of(DecodingDetokenizer(PIECES.decode), PIECES.encode(text).ids)) == text


TOKENIZERS = {kind: bpe(kind) for kind in ("llama", "mistral", "qwen2")}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(st.data())
def test_deltas_join_to_what_the_tokenizer_says_of_all_tokens(
    kind: str, data: st.DataObject
) -> None:
    """Any tokens: cut characters, bytes that are none, special ones, blanks, in any order."""
    tokenizer = TOKENIZERS[kind]
    every = st.integers(0, len(tokenizer.get_vocab()) - 1)
    written = st.text("aé😀 \n▁", max_size=4).map(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    )
    runs = data.draw(st.lists(st.one_of(st.lists(every, max_size=3), written), max_size=8))
    ids = [token for run in runs for token in run]
    deltas = deltas_of(DecodingDetokenizer(tokenizer.decode), ids)
    assert "".join(deltas) == tokenizer.decode(ids)


def test_a_character_is_shown_with_its_last_byte() -> None:
    deltas = deltas_of(DecodingDetokenizer(BYTES.decode), BYTES.encode("a😀b").ids)
    assert deltas == ["a", "", "", "", "😀", "b", ""]


def test_a_character_that_is_never_whole_comes_at_the_end() -> None:
    ids = BYTES.encode("a😀").ids[:-1]
    deltas = deltas_of(DecodingDetokenizer(BYTES.decode), ids)
    assert deltas[:-1] == ["a", "", "", ""]
    assert "".join(deltas) == BYTES.decode(ids)
    assert REPLACEMENT_CHARACTER in deltas[-1]


def test_long_answers_are_not_decoded_from_the_beginning_each_time() -> None:
    lengths = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return BYTES.decode(ids)

    deltas_of(DecodingDetokenizer(decode), BYTES.encode("word " * 100).ids)
    assert max(lengths) <= 2


def test_word_pieces_join_as_a_whole_text_does() -> None:
    pieces = ["the", "mill", "##s", "'", "s", "1", ".", "5"]
    deltas = deltas_of(WordPieceDetokenizer(pieces.__getitem__), list(range(8)))
    assert "".join(deltas) == "the mills's 1.5"


def shown(stops: list[str], text: list[str]) -> tuple[list[str], bool]:
    held, parts = StopStrings(stops), []
    for delta in text:
        part, stopped = held.push(delta)
        parts.append(part)
        if stopped:
            return parts, True
    return [*parts, held.rest()], False


def test_a_text_ends_before_a_stop_string_no_part_of_which_is_shown() -> None:
    assert shown(["END"], ["a", "bE", "N", "Dc"]) == (["a", "b", "", ""], True)
    assert shown(["END"], ["bE", "N", "d!"]) == (["b", "", "ENd!", ""], False)
    assert shown(["END"], ["x", "EN"]) == (["x", "", "EN"], False)
    assert shown(["aab"], ["a", "a", "a", "b"]) == (["", "", "a", ""], True)
    assert shown([], ["E", "ND"]) == (["E", "ND", ""], False)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=3), max_size=12),
)
def test_stop_strings_cut_where_the_first_begins(stops: list[str], deltas: list[str]) -> None:
    parts, stopped = shown(stops, deltas)
    # By hand: the text up to the delta that completes one.
    text, wanted = "", None
    for delta in deltas:
        text += delta
        if any(stop in text for stop in stops):
            wanted = text[: min(text.index(stop) for stop in stops if stop in text)]
            break
    assert stopped == (wanted is not None)
    assert "".join(parts) == (text if wanted is None else wanted)
    sofar = ""
    for part in parts:
        sofar += part
        assert not any(stop in sofar for stop in stops)


@pytest.mark.parametrize(
    ("stops", "field"), [(["a", ""], "stop[1]"), (["a" * 257], "stop[0]"), (["a"] * 17, "stop")]
)
def test_a_stop_string_that_can_not_be_is_refused_by_name(stops: list[str], field: str) -> None:
    with pytest.raises(InputError) as caught:
        StopStrings(stops)
    assert caught.value.field == field
    assert field in caught.value.message
