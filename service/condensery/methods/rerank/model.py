"""A cross-encoder: BERT with a head of one logit, and the pairs that it reads."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from condensery.errors import InputError, StoreError
from condensery.methods.trainer.batching import Tokens, collate
from condensery.methods.trainer.publishing import model_folder
from condensery.store.checking import sha256_of
from condensery.store.writing import read_json

PASSAGE_SHARE = 2  # a query is cut so that at least this part of a pair is its passage's
START, END, PADDING, UNKNOWN, MASK = "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"
PADDED_TO = 128  # vocabularies are rounded up to at most this, for speed
NEW = ("classifier.", "bert.pooler.")  # weights that a base may be without


class PairTokenizer:
    """Tokenises pairs: ``[CLS] query [SEP] passage [SEP]``.

    The passage is cut where a pair is too long, as transformers does it (``only_second``). The
    query is cut only where it has more than half of the length: transformers refuses such.

    Args:
        tokenizer: A fast one of transformers.
        length: Most tokens of a pair, special ones included.
    """

    def __init__(self, tokenizer: Any, length: int) -> None:
        self.tokenizer = tokenizer
        self.length = length
        self._padding: int = tokenizer.pad_token_id or 0

    def read(self, queries: Sequence[str], passages: Sequence[str]) -> list[Tokens]:
        """Tokenise each query with the passage beside it."""
        if not queries:
            return []
        cut = {query: self._cut(query) for query in dict.fromkeys(queries)}
        encoded = self.tokenizer(
            [cut[query] for query in queries],
            list(passages),
            truncation="only_second",
            max_length=self.length,
            return_attention_mask=False,
        )
        types = encoded.get("token_type_ids", [[]] * len(queries))
        return [Tokens(*pair) for pair in zip(encoded["input_ids"], types, strict=True)]

    def collate(self, pairs: Sequence[Tokens], device: torch.device) -> Mapping[str, Tensor]:
        """Pad pairs at their ends to the longest: what a network is called with."""
        return collate(pairs, self._padding, device)

    def _cut(self, query: str) -> str:
        most = self.length // PASSAGE_SHARE
        encoded = self.tokenizer(
            query, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        spans = encoded["offset_mapping"]
        return query[: spans[most - 1][1]] if len(spans) > most else query


def open_base(
    path: Path, length: int, seed: int
) -> tuple[BertForSequenceClassification, PairTokenizer]:
    """Open a BERT directory, and put a head of random weights on it.

    Args:
        path: Holds ``config.json``, safetensors and ``tokenizer.json``.
        length: Tokens of a pair.
        seed: For the new weights.

    Raises:
        InputError: It is no BERT, lacks weights, has another's tokenizer, or reads fewer tokens.
    """
    try:
        about = read_json(path / "config.json")
    except (OSError, StoreError) as error:
        raise _refusal(path, str(error)) from error
    if (kind := about.get("model_type")) != "bert":
        raise _refusal(path, f"config.json: model_type is {kind!r}, not 'bert'")
    config = BertConfig.from_dict(about)
    if length > config.max_position_embeddings:
        raise InputError(
            f"length={length}: {path} has positions for {config.max_position_embeddings} tokens",
            field="length",
            value=length,
        )
    pair_tokenizer = PairTokenizer(_open_tokenizer(path, config, length), length)
    torch.manual_seed(seed)
    try:
        opened: Any = BertForSequenceClassification.from_pretrained(
            path, num_labels=1, dtype=torch.float32, use_safetensors=True, local_files_only=True,
            output_loading_info=True,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:
        raise _refusal(path, " ".join(str(error).split())) from error
    model, loading = opened
    if missing := sorted(n for n in loading["missing_keys"] if not n.startswith(NEW)):
        raise _refusal(path, f"weights are missing: {', '.join(missing[:5])}")
    return model, pair_tokenizer


def fingerprint(path: Path) -> str:
    """Return the sha256 of a base's weights and tokenizer."""
    digest = hashlib.sha256()
    for file in (*sorted(path.glob("*.safetensors")), path / "tokenizer.json"):
        digest.update(sha256_of(file).encode())
    return digest.hexdigest()


def _open_tokenizer(path: Path, config: Any, length: int) -> PreTrainedTokenizerFast:
    """Open ``tokenizer.json`` and check that its tokens are those that the network has.

    Raises:
        InputError: They are not.
    """
    file = path / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise _refusal(path, f"tokenizer.json: {error}") from error
    size = tokenizer.get_vocab_size()
    if not size <= config.vocab_size < size + PADDED_TO:
        raise InputError(
            f"tokenizer: {file} has {size} tokens, the network {config.vocab_size}",
            field="tokenizer",
            value=size,
        )
    marks = {mark: tokenizer.token_to_id(mark) for mark in (START, END, PADDING, UNKNOWN)}
    if absent := [mark for mark, number in marks.items() if number is None]:
        raise InputError(f"tokenizer: {file} has no {', '.join(absent)}", field="tokenizer")
    if marks[PADDING] != config.pad_token_id:
        raise InputError(
            f"tokenizer: {file} pads with {marks[PADDING]}, the network with {config.pad_token_id}",
            field="tokenizer",
            value=marks[PADDING],
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # BERT's form, whatever the file says: some are of encoders, which never see pairs.
    tokenizer.post_processor = TemplateProcessing(
        single=f"{START} $A {END}",
        pair=f"{START} $A {END} $B:1 {END}:1",
        special_tokens=[(mark, marks[mark]) for mark in (START, END)],
    )
    names = {"cls_token": START, "sep_token": END, "pad_token": PADDING, "unk_token": UNKNOWN}
    if tokenizer.token_to_id(MASK) is not None:
        names["mask_token"] = MASK
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def write_model(
    out: Path, model: BertForSequenceClassification, tokenizer: Any, card: Mapping[str, Any]
) -> None:
    """Write what transformers reads as ``out/model``, in place of a folder that is there."""
    with model_folder(out, card) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _refusal(path: Path, why: str) -> InputError:
    return InputError(f"base: {path}: {why}", field="base", value=str(path))
