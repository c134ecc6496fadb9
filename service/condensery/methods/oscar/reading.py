"""Greedy answers for evaluation: whole batches, no cache, straight from the networks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from condensery.methods.oscar.batches import Item, Row, collate
from condensery.methods.oscar.data import Ids
from condensery.methods.oscar.losses import prompt_embeds
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_packing import Specials
from condensery.runtime.windows import windows


@dataclass(frozen=True, slots=True)
class Reading:
    """A question's answer ids, and the relevance of each of its passages."""

    answer: list[int]
    relevance: list[float]


@torch.inference_mode()
def read(
    pair: OscarPair,
    specials: Specials,
    questions: Sequence[Ids],
    passages: Sequence[Sequence[Ids]],
    *,
    keep: int | None = None,
    plain: bool = False,
    most: int = 24,
) -> list[Reading]:
    """Answer each question from its passages.

    Args:
        pair: The networks, in evaluation mode.
        specials: Special token ids.
        questions: Word pieces of each question.
        passages: Word pieces of each question's passages; long ones are read in windows, of
            which the best scored one stands for the passage.
        keep: How many of the best passages the generator gets; None for all.
        plain: Let the generator read the passages' tokens instead (no compression).
        most: Longest answer, tokens.
    """
    shape = pair.shape
    positions = pair.compressor.backbone.config.max_position_embeddings
    items, relevance = [], []
    for whole, texts in zip(questions, passages, strict=True):
        question = whole[: shape.query_tokens]
        rows, scores = [], []
        for text in texts:
            cut = [
                Row(question, text[a:b], None) for a, b in windows(len(text), shape.passage_tokens)
            ]
            if plain:
                rows.append(Row(question, text, None))
                scores.append(0.0)
                continue
            given = collate(
                [Item(question, tuple(cut), question[:0])], shape, specials, positions
            ).given
            assert given is not None
            found = pair.compressor(given, pair.generator.words).relevance
            best = int(found.argmax())
            rows.append(cut[best])
            scores.append(float(found[best]))
        order = sorted(range(len(rows)), key=lambda i: -scores[i])[:keep]
        items.append(Item(question, tuple(rows[i] for i in order), question[:0], plain=plain))
        relevance.append(scores)
    batch = collate(items, shape, specials, positions)
    memory = None
    if batch.given is not None:
        memory = pair.compressor(batch.given, pair.generator.words).memory
    answers = greedy(pair, prompt_embeds(pair, batch, memory), batch.labels_at, specials, most)
    return [Reading(a, r) for a, r in zip(answers, relevance, strict=True)]


def greedy(
    pair: OscarPair, embeds: Tensor, last_at: Tensor, specials: Specials, most: int
) -> list[list[int]]:
    """Continue each prompt greedily until [SEP]; ``last_at`` is each prompt's last position."""
    count, width, hidden = embeds.shape
    embeds = torch.cat([embeds, embeds.new_zeros(count, most, hidden)], dim=1)
    at = last_at - torch.arange(count) * width
    answers: list[list[int]] = [[] for _ in range(count)]
    done = [False] * count
    rows = torch.arange(count)
    for _ in range(most):
        states = pair.generator(embeds[:, : int(at.max()) + 1]).last_hidden_state
        chosen = pair.generator.logits(states[rows, at]).argmax(dim=-1)
        at = at + 1
        embeds[rows, at] = pair.generator.words[chosen]
        for i, token in enumerate(chosen.tolist()):
            done[i] = done[i] or token == specials.end
            if not done[i]:
                answers[i].append(token)
        if all(done):
            break
    return answers
