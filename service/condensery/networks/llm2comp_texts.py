"""Texts as a memory encoder reads them: a start token, if the language model had one, and no end.

Ids of memory tokens are no tokens of the tokenizer: the network puts them after each text.
"""

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from condensery.networks.llm2comp_shape import MEMORY, START, MemoryShape


def start_token(tokenizer: Tokenizer) -> int | None:
    """Return the id that a tokenizer begins each text with by itself; None if there is none.

    It is what the language model was trained with: configurations name start tokens that some
    models (Qwen2) never read, so they are not asked.
    """
    encoded = tokenizer.encode("a")
    first = bool(encoded.ids) and bool(encoded.special_tokens_mask[0])
    return encoded.ids[0] if first and len(encoded.ids) > 1 else None


def begin_texts(tokenizer: Tokenizer, start: int | None) -> Tokenizer:
    """Return a copy that begins each text with this token, and adds no other.

    Args:
        tokenizer: Of the language model; what it adds to texts is left out.
        start: An id; None: nothing is added.

    Raises:
        ValueError: The tokenizer has no such token.
    """
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    if start is None:
        # The only way to have none: a template of the text alone.
        copy.post_processor = TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
        return copy
    token = tokenizer.id_to_token(start)
    if token is None:
        raise ValueError(f"{START} {start} is no token of the tokenizer")
    copy.post_processor = TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B:1", special_tokens=[(token, start)]
    )
    return copy


def check_texts(
    tokenizer: Tokenizer, shape: MemoryShape, first_memory: int, max_tokens: int
) -> None:
    """Check that a tokenizer gives what a memory encoder reads.

    Args:
        tokenizer: As it is stored with the encoder.
        shape: How it reads.
        first_memory: Id of the first memory token.
        max_tokens: Longest input, memory tokens included.

    Raises:
        ValueError: A token has a memory token's id, texts begin with another token than the
            shape's, end with one, or have no room; key and value are named.
    """
    shape.check_length(max_tokens)
    check_ids(tokenizer, shape.memory_tokens, first_memory)
    if not reads(tokenizer, shape):
        raise ValueError(
            f"tokenizer.json: puts the special tokens {_marks(tokenizer)} round a text, but "
            f"shape.{START} is {shape.start_token}, and no other was there in training"
        )


def check_ids(tokenizer: Tokenizer, memory_tokens: int, first_memory: int) -> None:
    """Check that no token of a tokenizer has a memory token's id.

    Raises:
        ValueError: One has; it is named.
    """
    words = tokenizer.get_vocab(with_added_tokens=True)
    last = max(words, key=lambda word: words[word])
    if words[last] >= first_memory:
        raise ValueError(
            f"tokenizer.json: {last!r} has the id {words[last]}, but from {first_memory} on ids are"
            f" those of the {MEMORY} ({memory_tokens})"
        )


def reads(tokenizer: Tokenizer, shape: MemoryShape) -> bool:
    """Tell whether a tokenizer puts the shape's start token before a text, and no other token."""
    start = [] if shape.start_token is None else [shape.start_token]
    return _marks(tokenizer) == start and tokenizer.encode("a").ids[: len(start)] == start


def _marks(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that a tokenizer puts round a text."""
    encoded = tokenizer.encode("a")
    columns = zip(encoded.ids, encoded.special_tokens_mask, strict=True)
    return [token for token, special in columns if special]
