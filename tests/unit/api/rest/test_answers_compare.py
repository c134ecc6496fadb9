"""Comparisons over REST: both ways of reading the same passages."""

PATH = "/v1/rag/compare"
QUESTION = {"query": "where?", "documents": ["some words", {"id": "best", "text": "gold"}]}


async def test_both_answers_are_whole_and_what_they_agree_on_is_said(client):
    both = (await client.post(PATH, json=QUESTION)).json()
    compressed, plain = both["compressed"], both["plain"]
    alone = (await client.post("/v1/rag/answer", json=QUESTION)).json()
    assert compressed["answer"] == alone["answer"]
    assert compressed["object"] == plain["object"] == "rag.answer"
    assert (compressed["compression"]["status"], plain["compression"]["status"]) == (
        "applied",
        "off",
    )
    assert [citation["id"] for citation in plain["citations"]] == ["best", "0"]
    assert plain["answer"] == "where? gold some words "
    assert not both["agreement"]["exact"]
    assert 0 < both["agreement"]["f1"] < 1
    assert -1 <= both["agreement"]["cosine"] <= 1
    assert both["speedup"] > 0
    assert both["flops_saved"] == compressed["compression"]["flops_saved"]


async def test_a_comparison_is_not_streamed(client):
    reply = await client.post(PATH, json={**QUESTION, "stream": True})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "stream")
    assert (await client.post(PATH, json={**QUESTION, "stream": False})).status_code == 200


async def test_comparing_is_counted_as_that(client):
    await client.post(PATH, json=QUESTION)
    zero = 'condensery_requests_total{code="ok",model="pair",protocol="rest",task="compare"} '
    assert f"{zero}1.0" in (await client.get("/metrics")).text
