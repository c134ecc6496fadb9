"""What memory vectors copy: where each memory token points in its passage.

The values are the generator's word embeddings, so what a memory vector points at is a word the
generator can say. A small generator needs this (docs/decisions/0001).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Least probability of nothing at which the likeliest walk is none. Nothing is one event, while an
# answer's probability lies on many spans: one by one, nothing won wherever the bounds were open.
# Whether a passage answers at all is the relevance score's to say.
SURE = 0.9
FAR = -1e4  # a log-probability of nothing; -inf would make gradients NaN
LONGEST = 24  # tokens of the longest answer that bounds are scored for


class Pointer(nn.Module):
    """Attention of the memory tokens over the passage's own tokens, each by itself."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.gate = nn.Linear(hidden_size, 1)

    def forward(self, memory: Tensor, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (passages, l, longest) and gates (passages, l, 1).

        Args:
            memory: Memory tokens' states, (passages, l, hidden).
            tokens: Passage tokens' states, the passage's [SEP] last, (passages, longest, hidden).
            real: True where ``tokens`` is not padding, (passages, longest).
        """
        scores = self.query(memory) @ self.key(tokens).mT / math.sqrt(memory.shape[-1])
        scores = scores.float().masked_fill(~real[:, None, :], -math.inf)
        return F.log_softmax(scores, dim=-1), torch.sigmoid(self.gate(memory))


class SpanHead(nn.Module):
    """What points with the logits of an extractive reader's head, of starts and of ends."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.span = nn.Linear(hidden_size, 2)
        self.gate = nn.Linear(hidden_size, 1)
        self.sharp = False


class SpanPointer(SpanHead):
    """A walk along the passage, a token for each memory token: an extractive reader's head.

    Memory token 0 points where an answer starts. From token ``j`` the next one points at ``j + 1``,
    or, with the probability that the answer ends at ``j``, at the passage's [SEP], where the walk
    stays. So the pointer can start from a span head (Devlin et al., arXiv:1810.04805, section 4.2),
    and where the answer starts is learnt once, not for every memory token anew.
    """

    def forward(self, memory: Tensor, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Do what ``Pointer`` does, with the same arguments; of the likeliest walk if ``sharp``."""
        starts, ends = self.span(tokens).float().unbind(-1)
        last = torch.arange(real.shape[1], device=real.device) == real.sum(1, keepdim=True) - 1
        at = F.log_softmax(starts.masked_fill(~real, FAR), dim=-1)
        stop, go = F.logsigmoid(ends), F.logsigmoid(-ends)
        if self.sharp:
            spans = walked_spans(at, stop, go, last, steps=memory.shape[1])
            return likeliest(spans, memory.shape[1]), torch.sigmoid(self.gate(memory))
        places = [at]
        for _ in range(memory.shape[1] - 1):
            moved = F.pad((at + go).masked_fill(last, FAR)[:, :-1], (1, 0), value=FAR)
            ended = torch.where(last, at, at + stop).logsumexp(1, keepdim=True)
            at = torch.where(last, torch.logaddexp(moved, ended), moved)
            places.append(at)
        return torch.stack(places, dim=1), torch.sigmoid(self.gate(memory))


@dataclass(frozen=True, slots=True)
class Spans:
    """How likely each span is the answer.

    Attributes:
        table: Log-probabilities of spans of 1, 2, .. tokens that begin at each token,
            (passages, lengths, longest).
        nothing: Of none, (passages,).
        end: The place of each passage's [SEP], (passages,).
    """

    table: Tensor
    nothing: Tensor
    end: Tensor

    def odds(self) -> Tensor:
        """Return the log-odds that a passage has an answer, (passages,), at most 20 either way."""
        return (self.table.flatten(1).logsumexp(1) - self.nothing).clamp(-20, 20)

    def every(self) -> Tensor:
        """Return all log-probabilities of a passage in a row, none's first, (passages, spans)."""
        return torch.cat([self.nothing[:, None], self.table.flatten(1)], dim=1)

    def only(self, rows: Tensor) -> "Spans":
        """Return those of some passages."""
        return Spans(self.table[rows], self.nothing[rows], self.end[rows])

    def nll(self, answers: Tensor) -> Tensor:
        """Return -log of the probability of an answer a passage, (passages,).

        Args:
            answers: Its first token and how many it has (cut to the longest); 0 of them: none
                answers, (passages, 2).
        """
        first, count = answers.unbind(1)
        row = torch.arange(len(answers), device=answers.device)
        of_length = (count - 1).clamp(0, self.table.shape[1] - 1)
        return -torch.where(count > 0, self.table[row, of_length, first], self.nothing)


class BoundsPointer(SpanHead):
    """An extractive reader's head: where an answer begins and where it ends, scored together.

    The probability of a span is in proportion to exp(start_i + end_j), as a reader's best span has
    it (Devlin et al., arXiv:1810.04805, section 4.2), and that of none to exp(start + end) of the
    passage's [SEP]. Memory token ``i`` points at the answer's token ``i``; the last one at the
    answer's last, however long it is; those that are left at the [SEP].
    """

    def spans(self, tokens: Tensor, real: Tensor) -> Spans:
        """Return the log-probabilities of all spans of at most ``LONGEST`` tokens.

        Args:
            tokens: Passage tokens' states, the passage's [SEP] last, (passages, longest, hidden).
            real: True where ``tokens`` is not padding, (passages, longest).
        """
        starts, ends = self.span(tokens).float().unbind(-1)
        return bounded_spans(starts, ends, real)

    def forward(self, memory: Tensor, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Do what ``Pointer`` does, with the same arguments; of the likeliest span if ``sharp``."""
        return self.point(self.spans(tokens, real), memory)

    def point(self, spans: Spans, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Do the same with spans that are scored already."""
        pointed = (likeliest if self.sharp else mixed)(spans, memory.shape[1])
        return pointed, torch.sigmoid(self.gate(memory))


def bounded_spans(starts: Tensor, ends: Tensor, real: Tensor) -> Spans:
    """Return the log-probabilities of all spans of at most ``LONGEST`` tokens, and of none.

    Args:
        starts: Logits of beginning at a token, (passages, longest); at a passage's last real
            place, its [SEP]'s, of there being none.
        ends: Likewise of ending there.
        real: True where there is a token or the [SEP], (passages, longest).
    """
    end = real.sum(1) - 1
    longest = real.shape[1]
    places = torch.arange(longest, device=real.device)
    last = places + torch.arange(min(LONGEST, longest), device=real.device)[:, None]
    scores = starts[:, None] + ends[:, last.clamp(max=longest - 1)]
    scores = scores.masked_fill(last >= end[:, None, None], FAR)
    at_end = end[:, None]
    nothing = starts.gather(1, at_end) + ends.gather(1, at_end)
    every = torch.cat([nothing, scores.flatten(1)], dim=1).log_softmax(1)
    return Spans(every[:, 1:].view_as(scores), every[:, 0], end)


def walked_spans(at: Tensor, stop: Tensor, go: Tensor, last: Tensor, *, steps: int) -> Spans:
    """Return the log-probabilities of walks of up to ``steps`` tokens, by where they end.

    Args:
        at: Log-probabilities of where it begins, (passages, longest).
        stop: Of ending at a token, and
        go: of going on from it, both (passages, longest).
        last: True at each passage's [SEP], (passages, longest).
        steps: Memory tokens.
    """
    longest = at.shape[1]
    places = torch.arange(longest, device=at.device)
    end = last.long().argmax(1)  # the [SEP]'s place, at which a walk stays
    gone = F.pad(go.cumsum(1), (1, 0))  # of going on from all tokens before
    scores = []
    for tokens in range(1, steps + 1):
        final = places + tokens - 1  # an answer's last token, if it begins at a place
        inside = final[None] < end[:, None]
        final = final.clamp(max=longest - 1)
        taken = at + gone[:, final] - gone[:, :longest]
        if tokens < steps:  # else nothing says how it goes on
            taken = taken + stop[:, final]
        scores.append(taken.masked_fill(~inside, 2 * FAR))
    nothing = torch.where(last, at, 2 * FAR).amax(1)  # begins at the end
    return Spans(torch.stack(scores, dim=1), nothing, end)


def likeliest(spans: Spans, steps: int) -> Tensor:
    """Return where the one likeliest span points, as log-probabilities: 0 there, ``FAR`` elsewhere.

    A mix of several spans spells several answers at once, each at its own place; the likeliest one
    spells one, as an extractive reader's best span does. It is none where none has a probability of
    ``SURE``.

    Args:
        spans: How likely each is.
        steps: Memory tokens.

    Returns:
        (passages, steps, longest).
    """
    longest = spans.table.shape[2]
    places = torch.arange(longest, device=spans.table.device)
    sure = spans.nothing >= math.log(SURE)
    best = spans.table.flatten(1).argmax(1)
    length = torch.where(sure, 0, best // longest + 1)
    first = best % longest
    step = torch.arange(steps, device=best.device)
    path = torch.where(step < length[:, None], first[:, None] + step, spans.end[:, None])
    final = torch.where(length >= steps, first + length - 1, path[:, -1])
    path = torch.cat([path[:, :-1], final[:, None]], dim=1)
    return torch.where(places == path[..., None], 0.0, FAR)


def mixed(spans: Spans, steps: int) -> Tensor:
    """Return where all spans together point, as log-probabilities, (passages, steps, longest)."""
    lengths, longest = spans.table.shape[1:]
    likely = spans.table.exp()
    at_least = likely.flip(1).cumsum(1).flip(1)  # of so many tokens or more
    ended = spans.nothing.exp()  # nothing to point at any more
    rows = []
    for step in range(steps - 1):
        if step < lengths:
            rows.append(_at_end(F.pad(at_least[:, step], (step, 0))[:, :longest], ended, spans.end))
            ended = ended + likely[:, step].sum(1)
        else:
            rows.append(_at_end(torch.zeros_like(likely[:, 0]), ended, spans.end))
    final = torch.zeros_like(likely[:, 0])
    for length in range(steps, lengths + 1):
        final = final + F.pad(likely[:, length - 1], (length - 1, 0))[:, :longest]
    rows.append(_at_end(final, ended, spans.end))
    return torch.stack(rows, dim=1).clamp_min(math.exp(-80.0)).log()


def _at_end(pointed: Tensor, ended: Tensor, end: Tensor) -> Tensor:
    """Add what has ended at each passage's [SEP], (passages, longest)."""
    return pointed.scatter_add(1, end[:, None], ended[:, None])


AnyPointer = Pointer | SpanPointer | BoundsPointer
