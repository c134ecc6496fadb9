"""What holds of every choice, whatever fails, fits or is asked for."""

import asyncio

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.conftest import StandInReader, info

from condensery.answers import CompressedPassage
from condensery.errors import ContextTooLong, InputError
from condensery.jobs.candidates import Candidate, Gathered
from condensery.jobs.choosing import choose
from condensery.jobs.failures import Failure
from condensery.questions import Question
from condensery.values import PairTraits, Passage

VECTORS = (8, 4, 1)
FAILED = Failure("fault", "ModelFault")


@st.composite
def candidates(draw):
    found, faults = [], draw(st.booleans())
    for place in range(draw(st.integers(0, 8))):
        words = draw(st.integers(1, 12))
        text = " ".join(["word"] * words)
        passage = Passage(str(place), str(place), text, 0, len(text))
        if not faults or draw(st.booleans()):
            logit = draw(st.floats(-20, 20, width=32))
            memory = np.zeros((draw(st.integers(1, 8)), 4), np.float32)
            score = float(1 / (1 + np.exp(-logit)))
            compressed = CompressedPassage(memory, logit, words)
            found.append(Candidate(place, passage, score, compressed))
        else:
            found.append(Candidate(place, passage, failure=FAILED))
    return tuple(found)


@settings(max_examples=400, deadline=None)
@given(
    candidates(),
    st.builds(
        Question,
        st.just("where?"),
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
    found, question, positions
):
    traits = PairTraits(vectors=VECTORS, rates=(16, 32, 128), top_n=0)
    reader = StandInReader(
        info("pair", "oscar-pair"), traits=traits, positions=positions, ms_each=(0, 1, 1, 0)
    )
    try:
        reading = asyncio.run(choose(reader, question, Gathered(found, VECTORS)))
    except ContextTooLong:
        assert question.mode == "required" or positions < 1 + largest(found) + question.max_tokens
        return
    except InputError:
        assert question.max_context_vectors < VECTORS[-1]
        return

    kept = [one.place for one in reading.kept]
    assert len(set(kept)) == len(kept) == len(reading.context)
    assert not set(kept) & set(reading.left_out)
    assert len(kept) + len(reading.left_out) == min(len(found), question.top_n or len(found))

    # Best first, those without a score last and in the order of retrieval.
    logits = [one.logit for one in reading.kept]
    known = [logit for logit in logits if logit is not None]
    assert logits == sorted(known, reverse=True) + [None] * (len(logits) - len(known))
    unscored = [one.place for one in reading.kept if one.logit is None]
    assert unscored == sorted(unscored)
    # Nobody who is left out is better than one who is read.
    for place in reading.left_out:
        if found[place].logit is not None:
            assert all(logit is not None and logit >= found[place].logit for logit in logits)

    # A vector for a memory, text for a failure, and never more than was asked for.
    for one, content in zip(reading.kept, reading.context, strict=True):
        assert isinstance(content, str) == (one.failure is not None)
    vectors = sum(len(one) for one in reading.context if not isinstance(one, str))
    if reading.found:
        if question.max_context_vectors is not None:
            assert vectors <= question.max_context_vectors
        assert reader.room(reading.prompt, question.max_tokens) >= 0
    else:
        assert found == () or max(one.score for one in found) < question.min_relevance

    # What was not done as asked is told.
    assert reading.reasons or (reading.status == "applied" and not reading.left_out)
    assert (reading.status == "off") == (not found)
    if reading.status == "applied":
        assert not any(one.failure for one in found)
    if reading.status == "fallback":
        assert all(one.failure for one in reading.kept)


def largest(found):
    """Return the most positions that one of the passages takes."""
    sizes = [len(one.compressed.memory) if one.compressed else one.passage.text for one in found]
    return max((one if isinstance(one, int) else len(one.split()) for one in sizes), default=0)
