"""A passage that begins after its document's heading is searched and read under it."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.conftest import StandInToken
from tests.unit.jobs.test_maintenance_rebuild import until_over
from tests.unit.questions import make_question

from condensery.jobs import indexes, maintenance, retrieval
from condensery.jobs.answer import answer_whole
from condensery.jobs.contexts import Candidate
from condensery.question import AnswerRerank, CompressedPassage
from condensery.values import Document, Hit, Passage

HEADING = "Mill Notes"
BODY = [
    "The first of them says who built the wheel and when.",
    "A second one names the stream, which is the Aar.",
    "gold: the third has nothing but numbers, 14 and 15.",
]
DOCUMENT = Document("notes", f"\n{HEADING}\n\n{' '.join(BODY)}")
PLAIN = Document("plain", f"No heading stands here. {' '.join(BODY)}")


@pytest.fixture
async def filled(services: Any) -> Any:
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", [DOCUMENT, PLAIN])
    return services


@pytest.fixture
def oscar(registry: Any) -> Any:
    return registry.pairs["pair"]


def say(oscar: Any, *pieces: str) -> None:
    async def tokens(_words: Sequence[str], _max_tokens: int) -> AsyncIterator[StandInToken]:
        for count, piece in enumerate(pieces, 1):
            yield StandInToken(piece, count)
        yield StandInToken("", len(pieces), "stop")

    oscar._say = tokens


async def found(services: Any, text: str) -> dict[str, Hit]:
    hits = await retrieval.query_index(services, "kb", text, top_k=20, mode="bm25")
    return {hit.id: hit for hit in hits}


async def test_passages_after_the_first_are_embedded_and_found_under_the_heading(filled, registry):
    hits = await found(filled, "mill")
    assert set(hits) == {f"notes#{number}" for number in range(len(hits))}
    assert len(hits) > 3
    assert max(hit.end for hit in hits.values()) == len(DOCUMENT.text)
    embedded = {text for text, *_ in registry.encoders[filled.indexes.info("kb").encoder].asked}
    for hit in hits.values():
        assert DOCUMENT.text[hit.start : hit.end] == hit.text
        assert hit.heading.lstrip() == ("" if hit.id == "notes#0" else HEADING)
        assert (f"{HEADING}\n\n{hit.text}" if hit.heading else hit.text) in embedded
        assert len(hit.headed_text.split()) <= 10


async def test_what_has_no_heading_is_as_it_was(filled):
    hits = await found(filled, "wheel stream numbers")
    plain = [hit for hit in hits.values() if hit.document_id == "plain"]
    assert len(plain) > 2
    assert all(hit.heading == "" and hit.headed_text == hit.text for hit in plain)


async def test_a_rebuild_and_a_replacement_leave_no_words_of_a_heading_behind(filled):
    before = await found(filled, "mill")
    await maintenance.rebuild_index(filled, "kb")
    assert (await until_over(filled)).state == "done"
    assert set(await found(filled, "mill")) == set(before)
    await indexes.upsert_documents(filled, "kb", [Document("notes", "Nothing of it.")])
    assert await found(filled, "mill") == {}
    assert set(await found(filled, "nothing")) >= {"notes#0"}


@pytest.mark.parametrize("mode", ["auto", "off"])
async def test_a_pair_reads_a_passage_under_its_heading_as_vectors_and_as_text(filled, oscar, mode):
    await answer_whole(filled, make_question(index="kb", top_k=20, mode=mode))
    hits = await retrieval.query_index(filled, "kb", "where?", top_k=20)
    read = oscar.passes[0] if mode == "auto" else oscar.contexts[0]
    assert set(read) <= {hit.headed_text for hit in hits}
    assert any(text.startswith(f"{HEADING}\n\n") for text in read)


async def test_an_answer_in_the_passage_is_cited_where_it_stands_in_the_document(filled, oscar):
    say(oscar, "numbers")
    whole = await answer_whole(filled, make_question(index="kb", top_k=20, top_n=20))
    holding = [c for c in whole.citations if c.answer_start is not None]
    texts = {document.id: document.text for document in (DOCUMENT, PLAIN)}
    assert {citation.document_id for citation in holding} == {"notes", "plain"}
    for citation in whole.citations:
        text = texts[citation.document_id]
        assert text[citation.start : citation.end] == citation.text
    for citation in holding:
        text = texts[citation.document_id]
        assert text[citation.answer_start : citation.answer_end] == "numbers"
    assert whole.grounded is True


async def test_an_answer_in_the_heading_alone_is_cited_by_the_heading_once(filled, oscar):
    say(oscar, "mill notes")
    # The first passage, which has the heading among its words, is not among those.
    question = make_question("gold?", index="kb", top_k=20, top_n=6)
    passages = [c for c in (await answer_whole(filled, question)).citations if c.start]
    assert len([c for c in passages if c.document_id == "notes"]) > 1
    whole = await answer_whole(filled, replace(question, rerank=AnswerRerank(len(passages))))
    kept = [c for c in whole.citations if c.document_id == "notes"]
    assert (whole.answer, whole.grounded) == ("Mill Notes", True)
    (citation,) = (c for c in whole.citations if c.answer_start is not None)
    assert (citation.id, citation.text) == (kept[0].id, HEADING)
    assert DOCUMENT.text[citation.start : citation.end] == HEADING
    assert DOCUMENT.text[citation.answer_start : citation.answer_end] == "Mill Notes"
    assert HEADING in oscar.quoted[-1]
    assert all(c.text != HEADING for c in whole.citations if c is not citation)


async def test_a_passage_that_has_the_answer_is_cited_before_any_heading(filled, oscar):
    say(oscar, "mill notes")
    whole = await answer_whole(filled, make_question(index="kb", top_k=20, top_n=20))
    (citation,) = (c for c in whole.citations if c.answer_start is not None)
    assert (citation.id, citation.start) == ("notes#0", 1)
    assert all(c.text != HEADING for c in whole.citations)


OLD = "Old Mill Notes"


def pointing(at: tuple[int, int] | None, heading: str = f"\n{OLD}") -> Candidate:
    text = "The wheel is of oak."
    passage = Passage("notes#1", "notes", text, 40, 60, {}, heading)
    read = len(passage.headed_text)
    memory = np.zeros((2, 4), np.float32)
    return Candidate(0, passage, 0.9, CompressedPassage(memory, 1.0, 8, 1, 0, read, pointer=at))


@pytest.mark.parametrize(
    ("at", "pointer", "above"),
    [
        (None, None, None),
        ((0, 8), None, (0, 8)),
        ((4, 20), (0, 4), (4, 14)),
        ((20, 25), (4, 9), None),
        ((14, 16), None, None),  # the blank line between
    ],
)
def test_what_a_pair_points_at_is_of_the_passage_or_of_the_heading(at, pointer, above):
    candidate = pointing(at)
    assert candidate.headed_text[:16] == f"{OLD}\n\n"
    assert (candidate.pointer, candidate.heading_pointer) == (pointer, above)


def test_windows_of_a_passage_count_from_its_own_text():
    candidate = pointing(None)
    cut = replace(candidate.compressed, windows=2, start=10, end=25)
    assert replace(candidate, compressed=cut).text == "The wheel"
    cut = replace(candidate.compressed, windows=2, start=20, end=36)
    assert replace(candidate, compressed=cut).text == "wheel is of oak."
    # Of one that ends within the heading nothing of the passage itself is read.
    cut = replace(candidate.compressed, windows=2, start=0, end=9)
    assert replace(candidate, compressed=cut).text == ""
