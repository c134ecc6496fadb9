"""Queries with passages as a cross-encoder reads them: ``[CLS] query [SEP] passage [SEP]``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PASSAGE_SHARE = 2  # a query is cut so that at least this part of a pair is its passage's


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and a passage.

    Attributes:
        ids: Token ids, special ones included.
        types: 0 at the query's, 1 at the passage's; empty for tokenizers without.
    """

    ids: list[int]
    types: list[int]


class PairTokenizer:
    """Tokenises pairs.

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

    def read(self, queries: Sequence[str], passages: Sequence[str]) -> list[Pair]:
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
        return [Pair(*pair) for pair in zip(encoded["input_ids"], types, strict=True)]

    def collate(self, pairs: Sequence[Pair], device: torch.device) -> Mapping[str, Tensor]:
        """Pad pairs at their ends to the longest: what a network is called with."""
        longest = max(len(pair.ids) for pair in pairs)
        ids = torch.full((len(pairs), longest), self._padding, dtype=torch.long)
        mask = torch.zeros_like(ids)
        types = torch.zeros_like(ids)
        for row, pair in enumerate(pairs):
            ids[row, : len(pair.ids)] = torch.tensor(pair.ids)
            types[row, : len(pair.types)] = torch.tensor(pair.types, dtype=torch.long)
            mask[row, : len(pair.ids)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        if pairs[0].types:
            inputs["token_type_ids"] = types
        return {name: value.to(device) for name, value in inputs.items()}

    def _cut(self, query: str) -> str:
        most = self.length // PASSAGE_SHARE
        encoded = self.tokenizer(
            query, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        spans = encoded["offset_mapping"]
        return query[: spans[most - 1][1]] if len(spans) > most else query
