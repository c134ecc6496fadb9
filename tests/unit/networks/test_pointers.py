import math

import pytest
import torch
from torch import Tensor

from condensery.networks.pointers import (
    FAR,
    LONGEST,
    SURE,
    AnyPointer,
    BoundsPointer,
    Pointer,
    SpanPointer,
    likeliest,
    walked_spans,
)

HIDDEN, STEPS, LENGTHS = 6, 4, (5, 1, 3, 9)


def some(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return states of memory tokens, of passages' tokens, and which of these are real."""
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(len(LENGTHS), STEPS, HIDDEN, generator=generator)
    tokens = torch.randn(len(LENGTHS), max(LENGTHS), HIDDEN, generator=generator)
    return memory, tokens, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def walk_of(seed: int = 1) -> SpanPointer:
    torch.manual_seed(seed)
    walk = SpanPointer(HIDDEN)
    torch.nn.init.normal_(walk.span.weight)
    return walk


def test_a_walk_starts_goes_on_and_stops_as_its_logits_say() -> None:
    memory, tokens, real = some()
    walk = walk_of()
    with torch.inference_mode():
        mixed, gate = walk(memory, tokens, real)
        starts, ends = walk.span(tokens).double().unbind(-1)
    assert torch.allclose(gate, torch.sigmoid(walk.gate(memory)))
    for row, length in enumerate(LENGTHS):
        stop = torch.sigmoid(ends[row]).tolist()
        chances = starts[row, :length].softmax(0).tolist()
        for step in range(STEPS):
            got = mixed[row, step].exp().tolist()
            assert got[:length] == pytest.approx(chances, abs=1e-6)
            assert not any(got[length:])
            after = [0.0] * length
            for at, chance in enumerate(chances):
                if at == length - 1:  # the passage's [SEP], where a walk stays
                    after[at] += chance
                else:
                    after[length - 1] += chance * stop[at]
                    after[at + 1] += chance * (1 - stop[at])
            chances = after


@pytest.mark.parametrize("kind", [Pointer, SpanPointer, BoundsPointer])
def test_padding_changes_nothing_and_gradients_are_finite(kind: type[AnyPointer]) -> None:
    torch.manual_seed(2)
    pointer = kind(HIDDEN)
    memory, tokens, real = some()
    mixed, _ = pointer(memory, tokens, real)
    for row, length in enumerate(LENGTHS):
        alone, _ = pointer(
            memory[row : row + 1], tokens[row : row + 1, :length], real[row : row + 1, :length]
        )
        assert torch.allclose(alone[0], mixed[row, :, :length], atol=1e-5)
    wanted = torch.tensor(LENGTHS)[:, None].expand(-1, STEPS) - 1
    torch.nn.functional.nll_loss(mixed.flatten(0, 1), wanted.flatten()).backward()
    for name, parameter in pointer.named_parameters():
        if parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all(), name


def test_a_certain_walk_says_the_answers_tokens_then_the_end() -> None:
    walk = walk_of()
    tokens = torch.zeros(1, 6, HIDDEN)
    tokens[0, 2, 0], tokens[0, 3, 1] = 1, 1  # an answer of tokens 2 and 3
    with torch.no_grad():
        walk.span.weight.zero_()
        walk.span.bias.copy_(torch.tensor([0.0, -20.0]))
        walk.span.weight[0, 0], walk.span.weight[1, 1] = 30, 40
        mixed, _ = walk(torch.zeros(1, STEPS, HIDDEN), tokens, torch.ones(1, 6, dtype=torch.bool))
    assert mixed.argmax(-1).tolist() == [[2, 3, 5, 5]]


@pytest.mark.parametrize("seed", range(6))
def test_a_sharp_walk_is_the_likeliest_of_all_walks(seed: int) -> None:
    memory, tokens, real = some(seed)
    walk = walk_of(seed)
    walk.sharp = True
    with torch.inference_mode():
        mixed, _ = walk(memory, tokens, real)
        starts, ends = walk.span(tokens).double().unbind(-1)
    assert set(mixed.unique().tolist()) == {0.0, FAR}
    for row, length in enumerate(LENGTHS):
        end = length - 1
        chance = starts[row, :length].softmax(0).tolist()
        stop = torch.sigmoid(ends[row]).tolist()
        walks = {(end,) * STEPS: 2.0 if chance[end] >= SURE else -1.0}
        for first in range(end):
            for count in range(1, STEPS + 1):
                if first + count > end:
                    break
                path = [first + i if i < count else end for i in range(STEPS)]
                taken = chance[first]
                for place in range(first, first + count - 1):
                    taken *= 1 - stop[place]
                if count < STEPS:
                    taken *= stop[first + count - 1]
                walks[tuple(path)] = taken
        best = max(walks, key=lambda path: walks[path])
        assert tuple(mixed[row].argmax(-1).tolist()) == best


@pytest.mark.parametrize(("nothing", "walked"), [(0.85, False), (0.95, True)])
def test_nothing_is_walked_only_where_it_is_sure(nothing: float, walked: bool) -> None:
    """Its probability is over any span's in both: that of an answer lies on many."""
    at = torch.tensor([[(1 - nothing) / 4] * 4 + [nothing]]).log()
    stop, go = torch.full((1, 5), 0.5).log(), torch.full((1, 5), 0.5).log()
    last = torch.tensor([[False] * 4 + [True]])
    path = likeliest(walked_spans(at, stop, go, last, steps=3), 3).argmax(-1)
    assert (path[0, 0].item() == 4) == walked


def bounds_of(seed: int = 1) -> BoundsPointer:
    torch.manual_seed(seed)
    bounds = BoundsPointer(HIDDEN)
    torch.nn.init.normal_(bounds.span.weight)
    return bounds


def spans_by_hand(bounds: BoundsPointer, states: Tensor) -> dict[tuple[int, int], float]:
    """Return the probability of each (first, tokens), (end, 0) being none."""
    starts, ends = bounds.span(states).detach().double().T.tolist()
    end = len(states) - 1
    scores = {(end, 0): starts[end] + ends[end]}
    for first in range(end):
        for count in range(1, min(LONGEST, end - first) + 1):
            scores[first, count] = starts[first] + ends[first + count - 1]
    likely = torch.tensor([*scores.values()]).double().softmax(0).tolist()
    return dict(zip(scores, likely, strict=True))


def path_of(first: int, count: int, end: int) -> list[int]:
    """Its first words, then its last one if it has more; then the end."""
    path = [first + i if i < count else end for i in range(STEPS)]
    return [*path[:-1], first + count - 1] if count > STEPS else path


def long_passages(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return states as ``some``, of passages that hold answers longer than are scored, too."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([5, 1, LONGEST + 9, 2])
    tokens = torch.randn(4, int(lengths.max()), HIDDEN, generator=generator)
    real = torch.arange(int(lengths.max())) < lengths[:, None]
    return torch.randn(4, STEPS, HIDDEN, generator=generator), tokens, real


@pytest.mark.parametrize("seed", range(4))
def test_bounds_are_scored_together_and_mixed_as_likely_as_they_are(seed: int) -> None:
    memory, tokens, real = long_passages(seed)
    bounds = bounds_of(seed)
    with torch.inference_mode():
        mix, gate = bounds(memory, tokens, real)
        spans = bounds.spans(tokens, real)
        bounds.sharp = True
        sharp, _ = bounds(memory, tokens, real)
    assert torch.allclose(gate, torch.sigmoid(bounds.gate(memory)))
    assert set(sharp.unique().tolist()) == {0.0, FAR}
    for row, length in enumerate(real.sum(1).tolist()):
        likely = spans_by_hand(bounds, tokens[row, :length])
        end = length - 1
        wanted = torch.zeros(STEPS, real.shape[1]).double()
        for (first, count), chance in likely.items():
            for step, place in enumerate(path_of(first, count, end)):
                wanted[step, place] += chance
            answers = torch.tensor([[first, count]]).expand(len(tokens), 2)
            assert spans.nll(answers)[row].item() == pytest.approx(-math.log(chance), abs=1e-4)
        assert torch.allclose(mix[row].exp().double(), wanted, atol=1e-6)
        nothing = likely.pop((end, 0))
        best = max(likely, key=lambda span: likely[span]) if nothing < SURE else (end, 0)
        assert sharp[row].argmax(-1).tolist() == path_of(*best, end)


def test_an_answer_longer_than_any_that_is_scored_is_learnt_as_the_longest() -> None:
    _, tokens, real = long_passages(0)
    spans = bounds_of().spans(tokens[2:3], real[2:3])
    longer, longest = (spans.nll(torch.tensor([[3, LONGEST + more]])) for more in (5, 0))
    assert torch.equal(longer, longest)
