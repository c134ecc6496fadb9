"""Cohere's second version and NIM's ranking over REST."""

PASSAGES = ["a", "gold gold", "gold"]


async def test_cohere_s_second_version_says_so(client):
    body = {"query": "q", "documents": PASSAGES, "top_n": 2, "max_tokens_per_doc": 4096}
    second = (await client.post("/v2/rerank", json=body)).json()
    assert [result["index"] for result in second["results"]] == [1, 2]
    assert second["meta"]["api_version"]["version"] == "2"
    first = (await client.post("/v1/rerank", json=body)).json()
    assert first["results"] == second["results"]


async def test_nim_gets_logits(client):
    body = {"query": {"text": "q"}, "passages": [{"text": text} for text in PASSAGES]}
    reply = (await client.post("/v1/ranking", json=body)).json()
    assert reply == {
        "rankings": [
            {"index": 1, "logit": 2.0},
            {"index": 2, "logit": 1.0},
            {"index": 0, "logit": 0.0},
        ]
    }


async def test_a_ranking_s_query_is_not_cut_where_nothing_may_be(client):
    long = "word " * 60
    for path, texts in (
        ("/rerank", "texts"),
        ("/", "texts"),
        ("/rerank", "documents"),
        ("/v1/rerank", "documents"),
        ("/v2/rerank", "documents"),
    ):
        body = {"query": long, texts: ["a"]}
        assert (await client.post(path, json=body)).status_code == 200, path
        assert (await client.post(path, json={**body, "truncate": True})).status_code == 200, path
        refused = await client.post(path, json={**body, "truncate": False})
        assert refused.status_code in (400, 422), (path, refused.text)  # by the family
        assert "query" in refused.text, path
        short = {**body, "query": "q", "truncate": False}
        assert (await client.post(path, json=short)).status_code == 200, path


async def test_nim_s_texts_are_cut_only_where_asked(client):
    body = {"query": {"text": "word " * 60}, "passages": [{"text": "a"}]}
    reply = await client.post("/v1/ranking", json=body)
    assert (reply.status_code, "query" in reply.json()["message"]) == (400, True)
    assert (await client.post("/v1/ranking", json={**body, "truncate": "END"})).status_code == 200
    for wrong, says in (
        ({**body, "truncate": "START"}, "truncate: 'START'"),
        ({**body, "passages": []}, "passages: the list is empty"),
        ({**body, "passages": ["a"]}, "passages[0]"),
        ({**body, "query": "q"}, "query"),
    ):
        reply = await client.post("/v1/ranking", json=wrong)
        assert (reply.status_code, says in reply.json()["message"]) == (400, True), reply.text
