import itertools
import random
import time

import pytest

from condensery.documents.markdown import read_markdown
from condensery.documents.sections import (
    HEADED_CHARS,
    PLAIN_CHARS,
    Section,
    make_documents,
    take_anchor,
)
from condensery.values import Document


def documents(markdown: str) -> list[Document]:
    return list(make_documents("notes/a.md", read_markdown(markdown)))


def test_an_empty_file_has_no_documents() -> None:
    assert documents("") == documents("\n") == []


def test_a_heading_is_context_of_what_is_under_it_and_no_document_of_its_own() -> None:
    text = (
        "# Elements\n\n## Radium\n\nIt *glows*.\n\nStill.\n\n### In `use`\n\n- watches\n\n"
        "Helium\n======\nrises\n"
    )
    assert documents(text) == [
        Document(
            "notes/a.md#radium",
            "Elements > Radium\n\nIt *glows*.\n\nStill.",
            {"heading": ["Elements", "Radium"], "line": 5},
        ),
        Document(
            "notes/a.md#in-use",
            "Elements > Radium > In use\n\n- watches",
            {"heading": ["Elements", "Radium", "In use"], "line": 11},
        ),
        Document("notes/a.md#helium", "Helium\n\nrises", {"heading": ["Helium"], "line": 15}),
    ]


def test_what_only_looks_like_a_heading_is_text() -> None:
    text = "# A\n\n```\n# comment\n```\n\n> # quoted\n\n- # listed\n"
    (document,) = documents(text)
    assert document.text == "A\n\n```\n# comment\n```\n\n> # quoted\n\n- # listed"


def test_front_matter_gives_its_title_and_comments_are_left_out() -> None:
    (document,) = documents("---\ntitle: 'My page'\ntags: [a]\n---\n<!-- secret -->\n\nWords.\n")
    assert document.text == "My page\n\nWords."
    assert document.metadata == {"heading": ["My page"], "line": 7}
    assert documents("---\n---\nWords.")[0].text == "Words."


def test_only_what_is_comments_alone_is_left_out() -> None:
    alone = "<!-- a -->", "<!---->  <!-- -- > -->", "<!---->" * 1000, "<!-- <!-- -->"
    assert [documents(f"{text}\n") for text in alone] == [[]] * len(alone)
    others = "<!-- a --> words <!-- b -->", "<!---->x", "<!-- never ended", "<!-->", "<!--->"
    assert [documents(text)[0].text for text in others] == [*others]


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("title: A: b", "A: b"),
        ("title:\nx: y\ntitle: B", "B"),
        ('title: "it\'s" \t', "it's"),
        ("title: 'open", "'open"),
        ("title: ''", "''"),
        ("subtitle: no\n title: no", None),
    ],
)
def test_a_title_is_what_stands_behind_the_word_without_its_quotes(
    line: str, title: str | None
) -> None:
    (document,) = documents(f"---\n{line}\n---\nWords.\n")
    assert document.metadata.get("heading") == (None if title is None else [title])


def test_comments_and_blanks_without_end_are_read_in_proportion_to_their_length() -> None:
    begun = time.monotonic()
    (document,) = documents("<!---->" * 26 + "x")
    assert time.monotonic() - begun < 5  # seconds; twice as long for each comment, it was over 15
    assert document.text.endswith("x")
    blanks = " " * 10**6  # hours, where each place is tried with each end
    assert documents(f"---\ntitle: a{blanks}b\n---\nx")[0].metadata["heading"] == ["a b"]


def test_each_piece_of_a_long_section_begins_with_its_headings_and_nothing_is_lost() -> None:
    sentences = [f"Sentence {i} says that {i} comes after {i - 1}." for i in range(100)]
    made = documents("# A\n\n## B\n\n" + " ".join(sentences) + "\n\nEnd.\n")
    assert len(made) > 5
    assert all(document.text.startswith("A > B\n\n") for document in made)
    assert all(len(document.text) <= HEADED_CHARS + 100 for document in made)
    body = " ".join(document.text.removeprefix("A > B\n\n") for document in made)
    assert body.split() == [*" ".join(sentences).split(), "End."]
    assert len({document.id for document in made}) == len(made)


def test_headings_of_one_name_have_different_ids() -> None:
    made = documents("# A\n\nx\n\n# A\n\ny\n\n# A-2\n\nz\n\n# !\n\nw\n")
    assert [document.id.split("#")[1] for document in made] == ["a", "a-2", "a-2-2", "text"]


def test_anchors_are_numbered_by_the_first_number_that_is_free() -> None:
    dice = random.Random(1)
    headings = [dice.choice(["a", "a-2", "a-3", "a-2-2", "a-10", "b"]) for _ in range(300)]
    taken: set[str] = set()
    for heading in headings:
        numbers = (f"{heading}-{number}" for number in itertools.count(2))
        taken.add(next(free for free in itertools.chain([heading], numbers) if free not in taken))
    numbered: dict[str, int] = {}
    assert {take_anchor(heading, numbered) for heading in headings} == taken


def test_the_number_of_a_heading_is_not_looked_for_from_the_first_again() -> None:
    class Counted(dict[str, int]):
        asked = 0

        def __contains__(self, key: object) -> bool:
            self.asked += 1
            return super().__contains__(key)

    numbered = Counted()
    assert [take_anchor("a", numbered) for _ in range(1000)][-1] == "a-1000"
    assert numbered.asked < 4000


def test_a_block_that_is_cut_has_the_line_of_each_piece() -> None:
    words = "".join(f"Line {number} says so.\n" for number in range(1, 2001))
    made = documents(f"# A\n\n{words}")
    assert len(made) > 50
    for document in made:
        assert document.text.startswith(f"A\n\nLine {document.metadata['line'] - 2} says")


def test_text_without_headings_is_left_whole_up_to_what_a_request_takes() -> None:
    section = Section(())
    words = "word " * (PLAIN_CHARS // 5)
    (only,) = make_documents("n", [Section((), read_markdown(f"{words[:-50]}\n\nend\n")[0].blocks)])
    assert len(only.text) > PLAIN_CHARS - 100
    several = list(make_documents("n", read_markdown(f"{words}\n\n{words}\n")))
    assert len(several) > 1
    assert list(make_documents("n", [section])) == []


def test_line_ends_within_lines_do_not_shift_the_numbers_of_lines() -> None:
    made = documents("# A\n\nx\u2028y\x0bz\n\n# B\n\nw\n")
    assert [document.metadata["line"] for document in made] == [3, 7]
