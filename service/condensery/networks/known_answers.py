"""A generator that runs elsewhere: its word table, and prompts whose answers are known.

Another server's numbers are trusted once it has said what the pair's own weights say: to a prompt
of tokens, which only the same model does, and to two prompts of vectors. Those two begin
differently and are longer than a block of a paged cache: a server that takes one for the other, as
vLLM has done where it cached prefixes of prompts by their (absent) tokens, fails on the second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from condensery.networks.oscar_causal import CausalGenerator, embed_parts
from condensery.networks.oscar_interface import CompressorNetwork, PairTexts, PromptPart

# Two blocks of the largest that vLLM takes by itself (128, on a CPU), and what follows them.
PROBE_POSITIONS = 2 * 128 + 16
MARGIN = 8  # positions that a probe leaves of the longest prompt
PROBES = (
    ("How long is the river?", "The river is 1,200 kilometres long and ends in a delta."),
    ("Who built the bridge?", "A bridge of stone was built by two brothers from the old town."),
)


class PromptTable(nn.Module):
    """The word table of a generator that runs elsewhere: all that prompts are made of here.

    Args:
        words: The language model's input embeddings.
    """

    def __init__(self, words: nn.Module) -> None:
        super().__init__()
        self.table = words

    @property
    def words(self) -> Tensor:
        """The embedding table, (vocabulary, hidden)."""
        return cast(Tensor, self.table.weight)

    @property
    def dtype(self) -> torch.dtype:
        """Of the embeddings."""
        return self.words.dtype

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.words.device

    @torch.inference_mode()
    def embed(self, parts: Sequence[PromptPart]) -> Tensor:
        """Return a prompt's embeddings, (1, positions, hidden)."""
        return embed_parts(self.table, parts)


@dataclass(frozen=True, slots=True, eq=False)
class KnownAnswer:
    """A prompt, and how likely each token is as the next.

    Attributes:
        parts: Token ids, or memory vectors in the place of some.
        logprobs: Natural logarithms, (vocabulary,), fp32.
    """

    parts: Sequence[PromptPart]
    logprobs: Tensor


@torch.inference_mode()
def known_answers(
    generator: CausalGenerator, compressor: CompressorNetwork, texts: PairTexts
) -> tuple[KnownAnswer, ...]:
    """Ask a pair's own generator what a server with the same weights must say.

    Returns:
        To one prompt of tokens alone, and to each of ``PROBES`` with memory vectors, as long as
        ``PROBE_POSITIONS`` where the pair reads so much.
    """
    question, passage = PROBES[0]
    prompts = [texts.prompt(question, [passage])]
    for question, passage in PROBES:
        ((window, *_),) = texts.make_windows(texts.cut(question)[0], [passage])
        memory = compressor.compress([window]).split()[0].float().cpu()
        prompts.append(_long_prompt(texts, question, passage, memory))
    return tuple(KnownAnswer(parts, _next_token(generator, parts)) for parts in prompts)


def _long_prompt(texts: PairTexts, question: str, passage: str, memory: Tensor) -> list[PromptPart]:
    """Return a prompt of a passage's vectors, and of its text as often as there is room."""
    context: list[Tensor | str] = [memory]
    parts = texts.prompt(question, context)
    while sum(map(len, parts)) < PROBE_POSITIONS:
        longer = texts.prompt(question, [*context, passage])
        if sum(map(len, longer)) > texts.positions - MARGIN:
            break
        context.append(passage)
        parts = longer
    return parts


def _next_token(generator: CausalGenerator, parts: Sequence[PromptPart]) -> Tensor:
    hidden = generator(generator.embed(parts), use_cache=False).last_hidden_state[:, -1]
    return generator.logits(hidden)[0].float().log_softmax(-1).cpu()
