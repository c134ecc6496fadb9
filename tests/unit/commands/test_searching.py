"""What ``condensery index query`` asks, in which order it prints what comes, and how."""

import json
from typing import Any

import pytest

from condensery.cli import main
from condensery.values import Hit, Ranked

FIRST = Hit(
    "rhine#0", "rhine", "It is a river. It rises in the Alps.", 0, 36, {"km": 1230}, score=0.5
)
SECOND = Hit("radium#0", "radium", "Polonium was first.\nRadium was found in 1898. Then?", 0, 51,
             score=0.25)  # fmt: skip
QUERY = "When was radium found?"


@pytest.fixture(autouse=True)
def found(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[Hit]:
    """What the index finds; the reranker has the opposite order."""
    hits = [FIRST, SECOND]

    def rerank(query: str, passages: list[str], **how: Any) -> list[Ranked]:
        client.asked.append(("rerank", (query, passages), how))
        scored = (Ranked(place, 0.9 + place / 100) for place in range(len(passages)))
        return list(scored)[::-1][: how["top_n"]]

    client.reply = hits
    monkeypatch.setattr(client, "rerank", rerank)
    return hits


def query(capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    assert main(["index", "query", "notes", QUERY, *flags]) == 0
    return capsys.readouterr().out.splitlines()


def test_of_each_passage_the_sentence_nearest_to_the_query_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = query(capsys)
    assert lines[0::2] == ["0.500  rhine#0", "0.250  radium#0"]
    assert [line.strip() for line in lines[1::2]] == [
        "It is a river. …",
        "… Radium was found in 1898. …",
    ]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1mRadium\x1b[0m was \x1b[1mfound\x1b[0m in" in query(capsys)[3]


def test_the_headings_above_a_passage_are_not_shown_for_it(
    found: list[Hit], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "Radium > When was radium found?\n\nIn December 1898, by the Curies. It glows."
    headed = {"heading": ["Radium", "When was radium found?"]}
    found[:] = [Hit("a#0", "a", text, 0, len(text), headed, score=0.5)]
    assert query(capsys)[1].strip() == "In December 1898, by the Curies. …"
    found[:] = [Hit("a#0", "a", text, 0, len(text), {}, score=0.5)]
    assert query(capsys)[1].strip().startswith("Radium >")


def test_a_reranker_orders_more_passages_than_are_shown(
    client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert query(capsys, "--rerank", "--model", "pair", "--top-k", "1")[0] == "0.910  radium#0"
    (_, _, searched), (_, asked, how) = client.asked
    assert searched["top_k"] == 50
    assert asked == (QUERY, [FIRST.text, SECOND.text])
    assert how == {"model": "pair", "top_n": 1}
    client.asked.clear()
    query(capsys, "--rerank", "--candidates", "20", "--top-k", "30")
    assert client.asked[0][2]["top_k"] == 30, "no fewer than are wanted"


def test_a_passage_is_reranked_under_its_heading_and_shown_with_it(
    client: Any, found: list[Hit], capsys: pytest.CaptureFixture[str]
) -> None:
    text, heading = "In December 1898, by the Curies.", "Radium\t> When was radium found?"
    found[:] = [Hit("a#1", "a", text, 40, 40 + len(text), {}, heading, score=0.5)]
    assert query(capsys) == [
        "0.500  a#1  under Radium > When was radium found?",
        "       In December 1898, by the Curies.",
    ]
    client.asked.clear()
    query(capsys, "--rerank")
    assert client.asked[1][1] == (QUERY, [f"{heading}\n\n{text}"])


def test_as_json_a_passage_has_the_fields_of_rest_and_the_reranker_s_score_beside_the_search_s(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, _ = map(json.loads, query(capsys, "--json"))
    assert first == {
        "id": "rhine#0", "document_id": "rhine", "text": FIRST.text, "start": 0, "end": 36,
        "metadata": {"km": 1230}, "heading": "", "score": 0.5,
    }  # fmt: skip
    _, last = map(json.loads, query(capsys, "--json", "--rerank"))
    assert last == {**first, "relevance_score": 0.9}


def test_where_nothing_is_found_nothing_is_reranked(
    client: Any, found: list[Hit], capsys: pytest.CaptureFixture[str]
) -> None:
    found.clear()
    assert query(capsys, "--rerank") == []
    assert [name for name, *_ in client.asked] == ["query"]


@pytest.mark.parametrize("flags", [("--candidates", "5"), ("--model", "pair")])
def test_what_is_for_a_reranker_is_refused_without_one(
    client: Any, capsys: pytest.CaptureFixture[str], flags: tuple[str, str]
) -> None:
    assert main(["index", "query", "notes", QUERY, *flags]) == 1
    assert flags[0] in capsys.readouterr().err
    assert client.asked == []
