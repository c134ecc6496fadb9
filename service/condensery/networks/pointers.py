"""What memory vectors copy: where each memory token points in its passage.

The values are the generator's word embeddings, so what a memory vector points at is a word the
generator can say. A small generator needs this (docs/decisions/0001).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Least probability of nothing at which the likeliest walk is none. Nothing is one event, while an
# answer's probability lies on many spans: one by one, nothing won wherever the bounds were open.
# Whether a passage answers at all is the relevance score's to say.
SURE = 0.9
FAR = -1e4  # a log-probability of nothing; -inf would make gradients NaN


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


class SpanPointer(nn.Module):
    """A walk along the passage, a token for each memory token: an extractive reader's head.

    Memory token 0 points where an answer starts. From token ``j`` the next one points at ``j + 1``,
    or, with the probability that the answer ends at ``j``, at the passage's [SEP], where the walk
    stays. So the pointer can start from a span head (Devlin et al., arXiv:1810.04805, section 4.2),
    and where the answer starts is learnt once, not for every memory token anew.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.span = nn.Linear(hidden_size, 2)
        self.gate = nn.Linear(hidden_size, 1)
        self.sharp = False

    def forward(self, memory: Tensor, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Do what ``Pointer`` does, with the same arguments; of the likeliest walk if ``sharp``."""
        starts, ends = self.span(tokens).float().unbind(-1)
        last = torch.arange(real.shape[1], device=real.device) == real.sum(1, keepdim=True) - 1
        at = F.log_softmax(starts.masked_fill(~real, FAR), dim=-1)
        stop, go = F.logsigmoid(ends), F.logsigmoid(-ends)
        if self.sharp:
            walked = likeliest_span(at, stop, go, last, steps=memory.shape[1])
            return walked, torch.sigmoid(self.gate(memory))
        places = [at]
        for _ in range(memory.shape[1] - 1):
            moved = F.pad((at + go).masked_fill(last, FAR)[:, :-1], (1, 0), value=FAR)
            ended = torch.where(last, at, at + stop).logsumexp(1, keepdim=True)
            at = torch.where(last, torch.logaddexp(moved, ended), moved)
            places.append(at)
        return torch.stack(places, dim=1), torch.sigmoid(self.gate(memory))


def likeliest_span(at: Tensor, stop: Tensor, go: Tensor, last: Tensor, *, steps: int) -> Tensor:
    """Return the one likeliest walk, as log-probabilities: 0 where it is, ``FAR`` elsewhere.

    A mix of several walks spells several answers at once, each at its own place; the likeliest walk
    spells one, as an extractive reader's best span does. It is none where none has a probability of
    ``SURE``.

    Args:
        at: Log-probabilities of where it begins, (passages, longest).
        stop: Of ending at a token, and
        go: of going on from it, both (passages, longest).
        last: True at each passage's [SEP], (passages, longest).
        steps: Memory tokens.

    Returns:
        (passages, steps, longest).
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
    empty = torch.where(last, at, 2 * FAR).amax(1, keepdim=True)  # begins at the end
    nothing = torch.where(empty >= math.log(SURE), 1.0, 2 * FAR)  # above any walk's, or below
    table = torch.cat([nothing, torch.cat(scores, dim=1)], dim=1)
    best = table.argmax(1)
    length = torch.where(best == 0, 0, (best - 1) // longest + 1)
    first = torch.where(best == 0, end, (best - 1) % longest)
    step = torch.arange(steps, device=at.device)
    path = torch.where(step < length[:, None], first[:, None] + step, end[:, None])
    return torch.where(places == path[..., None], 0.0, FAR)
