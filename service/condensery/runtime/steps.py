"""One step: embed, run, choose. What it changes is in the cache, so it can be run again."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from condensery.errors import CondenseryError, InputError, ModelFault
from condensery.networks.caching import Cache, Step
from condensery.networks.decoding import Decoder
from condensery.networks.stepping import Stepper
from condensery.runtime.sampling import Choice, choose
from condensery.runtime.sequences import Generation, Member

# None where a prompt is not read to its end yet.
Outcome: TypeAlias = Choice | CondenseryError | None


@torch.inference_mode()
def run_step(
    stepper: Stepper,
    cache: Cache,
    members: Sequence[Member],
    model: str,
    decoder: Decoder | None = None,
) -> list[Outcome]:
    """Run a step; returns an outcome for each member, in order.

    Args:
        stepper: The model.
        cache: Its.
        members: Whose step it is.
        model: Name in messages.
        decoder: Runs a step of single tokens, if there is one.

    Raises:
        Exception: Whatever a forward pass raises.
    """
    outcomes: list[Outcome] = [None] * len(members)
    going: list[int] = []
    for place, member in enumerate(members):
        outcomes[place] = _prepare(stepper, member, model)
        if outcomes[place] is None:
            going.append(place)
    if not going:
        return outcomes
    # Tokens to look up first, then prompts' single rows, then their longer pieces (``Step``).
    going.sort(
        key=lambda place: (members[place].generation.embeds is not None, members[place].count > 1)
    )
    ordered = [members[place] for place in going]
    choosing = [row for row, member in enumerate(ordered) if member.chooses]
    scores = _scores(stepper, cache, ordered, choosing, decoder)
    if scores is None:
        return outcomes
    wishes = [ordered[row].generation.order.sampling for row in choosing]
    chosen = choose(scores, wishes, [ordered[row].draw for row in choosing])
    for row, choice in zip(choosing, chosen, strict=True):
        outcomes[going[row]] = choice or ModelFault(
            f"{model}: the next token's scores are NaN or infinite"
        )
    return outcomes


def _scores(
    stepper: Stepper,
    cache: Cache,
    members: Sequence[Member],
    choosing: Sequence[int],
    decoder: Decoder | None,
) -> Tensor | None:
    """Run members' rows; returns the scores of those that choose, (choosing, vocabulary)."""
    spans = [member.span for member in members]
    rows = _rows(stepper, members)
    if decoder is not None and all(member.generation.embeds is None for member in members):
        scores = decoder.run(rows, spans)
        if scores is not None:
            return scores
    step = Step(cache, spans)
    last = step.last if len(choosing) == len(members) else step.last[choosing]
    step.wanted = last
    hidden = stepper.run(rows, step)
    return stepper.logits(hidden.index_select(0, last)) if choosing else None


def _prepare(stepper: Stepper, member: Member, model: str) -> CondenseryError | None:
    """Embed a prompt before its first step; only then is its size known."""
    generation = member.generation
    if generation.done or generation.embeds is not None:
        return None
    generation.embeds = stepper.embed(generation.order.parts)
    size, order = len(generation.embeds), generation.order
    if size > order.prompt:
        return ModelFault(f"{model}: a prompt of {size} positions, over the {order.prompt} it has")
    if size + order.max_tokens > stepper.longest + 1:
        return InputError(
            f"max_tokens={order.max_tokens} and a prompt of {size} positions are over the "
            f"{stepper.longest} that {model} reads",
            field="max_tokens",
            value=order.max_tokens,
        )
    generation.size = size
    member.count = min(member.count, size)
    return None


def _rows(stepper: Stepper, members: Sequence[Member]) -> Tensor:
    """Return the rows of a step, (total, hidden)."""
    words = [one.generation.last for one in members if one.generation.embeds is None]
    rows = [_piece(one.generation, one) for one in members if one.generation.embeds is not None]
    if words:
        rows.insert(0, stepper.embed([words]))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _piece(generation: Generation, member: Member) -> Tensor:
    assert generation.embeds is not None
    return generation.embeds[member.start : member.start + member.count]
