import math
from pathlib import Path

import pytest
import torch
from tiny_pair import tiny_tokenizer, write_base
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer

from condensery.errors import InputError
from condensery.methods.lm.model import (
    LmShape,
    LmTokenizer,
    lm_loss,
    new_model,
    open_lm_tokenizer,
    perplexity,
    save_model,
    train_lm_tokenizer,
)
from condensery.methods.lm.text import pack, tokenise

SHAPE = LmShape(width=16, layers=2, heads=2, mlp_width=24, length=32)
TEXTS = ["The mill was sold in 1912.", "It stands on the river.", "Maria teller: a river of tea."]


@pytest.fixture
def words() -> LmTokenizer:
    return train_lm_tokenizer(TEXTS * 20, 300)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packed_documents_have_the_loss_that_transformers_gives_each_alone(
    words: LmTokenizer, attention: str
) -> None:
    torch.manual_seed(0)
    model = new_model(SHAPE, words).eval()
    model.set_attn_implementation(attention)
    stream = tokenise(TEXTS, words.tokenizer, words.start, words.end)
    nats = tokens = 0.0
    for text in TEXTS:
        ids = [words.start, *words.tokenizer.encode(text).ids, words.end]
        alone = torch.tensor([ids])
        nats += model(input_ids=alone, labels=alone).loss.item() * (len(ids) - 1)
        tokens += len(ids) - 1
    with torch.no_grad():
        loss = lm_loss(model, pack(stream, [0], len(stream.ids)))
    assert loss.weight == tokens
    assert float(loss.total) * tokens == pytest.approx(nats, rel=1e-5)
    figures = perplexity(model, stream, 10_000, rows=1)
    assert figures["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert figures["tokens"] == tokens
    size = sum(len(text.encode()) for text in TEXTS)
    assert figures["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)


def test_perplexity_does_not_depend_on_how_windows_are_batched(words: LmTokenizer) -> None:
    model = new_model(SHAPE, words).eval()
    stream = tokenise(TEXTS * 5, words.tokenizer, words.start, words.end)
    single, three = (perplexity(model, stream, 16, rows) for rows in (1, 3))
    assert single == pytest.approx(three, rel=1e-5)
    few = perplexity(model, stream, 16, rows=3, most=2)
    assert few["tokens"] < single["tokens"]


def test_a_saved_model_is_read_by_transformers_and_says_the_same(
    words: LmTokenizer, tmp_path: Path
) -> None:
    model = new_model(SHAPE, words).eval()
    save_model(tmp_path, model, words)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert type(read).__name__ == "LlamaForCausalLM"
    assert tokenizer.decode(tokenizer(TEXTS[2])["input_ids"]) == TEXTS[2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (words.start, words.end)
    assert tokenizer.pad_token_id == words.padding
    ids = torch.tensor([words.tokenizer.encode(TEXTS[0]).ids])
    assert torch.equal(read(ids).logits, model(ids).logits)
    assert read.config.use_cache


def test_word_pieces_are_read_with_their_marks(tmp_path: Path) -> None:
    folder = write_base(tmp_path)
    words = open_lm_tokenizer(folder)
    tokenizer = tiny_tokenizer()
    marks = [tokenizer.token_to_id(mark) for mark in ("[CLS]", "[SEP]", "[PAD]")]
    assert [words.start, words.end, words.padding] == marks
    assert open_lm_tokenizer(folder / "tokenizer.json").start == words.start


def test_a_tokenizer_that_is_none_or_has_no_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer: .*none"):
        open_lm_tokenizer(tmp_path / "none")
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="has neither"):
        open_lm_tokenizer(tmp_path)


def test_a_trained_tokenizer_has_the_size_asked_for_and_gives_any_text_back(
    words: LmTokenizer,
) -> None:
    assert words.tokenizer.get_vocab_size() <= 300
    text = "Straße, 東京 \t x"
    assert words.tokenizer.decode(words.tokenizer.encode(text).ids) == text
    with pytest.raises(InputError, match="vocabulary=258: must be at least 259"):
        train_lm_tokenizer(TEXTS, 258)


def test_the_default_shape_is_of_the_size_it_says() -> None:
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(30_522)}, unk_token="w0"))
    with torch.device("meta"):
        model = new_model(LmShape(), LmTokenizer(tokenizer, 1, 2, 0))
    assert 21.5e6 < sum(p.numel() for p in model.parameters()) < 22.5e6


@pytest.mark.parametrize(
    ("field", "value"), [("width", 0), ("layers", 0), ("heads", 3), ("mlp_width", 0), ("length", 1)]
)
def test_a_shape_that_is_none_names_field_and_value(field: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{field}={value}: ") as caught:
        LmShape(**{"width": 16, "heads": 2, field: value})
    assert caught.value.field == field
