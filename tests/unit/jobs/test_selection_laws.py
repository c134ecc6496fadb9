"""What holds of every choice, whatever fails, fits or is asked for."""

import asyncio

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.conftest import StandInOscarModel, info
from tests.unit.questions import make_question

from condensery.errors import ContextTooLong, InputError
from condensery.jobs.contexts import Candidate, PassageFailure, RetrievedContext
from condensery.jobs.selection import select_context
from condensery.question import CompressedPassage
from condensery.values import PairTraits, Passage

VECTORS = (8, 4, 1)
FAILED = PassageFailure("fault", "ModelFault")


@st.composite
def candidates(draw):
    candidates, faults = [], draw(st.booleans())
    for place in range(draw(st.integers(0, 8))):
        words = draw(st.integers(1, 12))
        text = " ".join(["word"] * words)
        passage = Passage(str(place), str(place), text, 0, len(text))
        if not faults or draw(st.booleans()):
            logit = draw(st.floats(-20, 20, width=32))
            memory = np.zeros((draw(st.integers(1, 8)), 4), np.float32)
            score = float(1 / (1 + np.exp(-logit)))
            compressed = CompressedPassage(memory, logit, words)
            candidates.append(Candidate(place, passage, score, compressed))
        else:
            candidates.append(Candidate(place, passage, failure=FAILED))
    return tuple(candidates)


@settings(max_examples=400, deadline=None)
@given(
    candidates(),
    st.builds(
        make_question,
        mode=st.sampled_from(["auto", "required"]),
        top_n=st.integers(0, 9),
        max_context_vectors=st.none() | st.integers(1, 40),
        target_ms=st.none() | st.floats(1, 60),
        min_relevance=st.just(0.0) | st.floats(0, 1),
        max_tokens=st.integers(1, 4),
    ),
    st.integers(2, 120),
)
def test_a_choice_keeps_to_what_was_asked_and_accounts_for_every_passage(
    candidates, question, positions
):
    traits = PairTraits(vectors=VECTORS, rates=(16, 32, 128), top_n=0)
    oscar = StandInOscarModel(
        info("pair", "oscar-pair"), traits=traits, positions=positions, ms_each=(0, 1, 1, 0)
    )
    try:
        selected = asyncio.run(
            select_context(oscar, question, RetrievedContext(candidates, VECTORS))
        )
    except ContextTooLong:
        assert (
            question.compression.mode == "required"
            or positions < 1 + largest(candidates) + question.max_tokens
        )
        return
    except InputError:
        assert question.compression.max_context_vectors < VECTORS[-1]
        return

    kept = [candidate.place for candidate in selected.kept]
    assert len(set(kept)) == len(kept)
    assert not set(kept) & set(selected.left_out)
    assert len(kept) + len(selected.left_out) == min(
        len(candidates), question.rerank.top_n or len(candidates)
    )

    # Best first, those without a score last and in the order of retrieval.
    logits = [candidate.logit for candidate in selected.kept]
    known = [logit for logit in logits if logit is not None]
    assert logits == sorted(known, reverse=True) + [None] * (len(logits) - len(known))
    unscored = [candidate.place for candidate in selected.kept if candidate.logit is None]
    assert unscored == sorted(unscored)
    # No passage that is left out is better than one that is read.
    for place in selected.left_out:
        if candidates[place].logit is not None:
            assert all(logit is not None and logit >= candidates[place].logit for logit in logits)

    # A vector for a memory, text for a failure, and never more than was asked for.
    if selected.may_answer:
        for passage, content in zip(selected.kept, selected.prompt.context, strict=True):
            assert isinstance(content, str) == (passage.failure is not None)
        vectors = sum(len(item) for item in selected.prompt.context if not isinstance(item, str))
        if question.compression.max_context_vectors is not None:
            assert vectors <= question.compression.max_context_vectors
        assert oscar.free_positions(selected.prompt, question.max_tokens) >= 0
    else:
        assert (
            candidates == ()
            or max(candidate.score for candidate in candidates) < question.min_relevance
        )

    # What was not done as asked is reported.
    assert selected.reasons or (selected.status == "applied" and not selected.left_out)
    assert (selected.status == "off") == (not candidates)
    if selected.status == "applied":
        assert not any(candidate.failure for candidate in candidates)
    if selected.status == "fallback":
        assert all(candidate.failure for candidate in selected.kept)


def largest(candidates):
    """Return the most positions that one of the passages takes."""
    sizes = [
        len(candidate.compressed.memory) if candidate.compressed else candidate.passage.text
        for candidate in candidates
    ]
    return max((size if isinstance(size, int) else len(size.split()) for size in sizes), default=0)
