"""A model's report over REST: in which form, and what there is not."""

import json

import pytest

from condensery.errors import CorruptModel

REPORT = "/v1/models/pair/report"


async def test_a_report_says_whose_it_is_and_what_else_there_is(client):
    reply = await client.get(REPORT)
    assert reply.status_code == 200
    assert reply.json() == {
        "model": "pair",
        "version": "3",
        "fingerprint": "sha256:pair",
        "report": {"format": 2, "settings": {"gold": {"f1": {"mean": 49.5}}}},
        "card": True,
        "plots": ["cost"],
    }
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["vary"] == "accept"


@pytest.mark.parametrize(
    ("query", "accept", "markdown"),
    [
        ("", "*/*", False),
        ("", "text/*, */*;q=0.1", False),
        ("", "application/json", False),
        ("", "text/markdown", True),
        ("", "TEXT/Markdown;charset=utf-8;q=0.5, */*;q=0.1", True),
        ("", "application/json, text/markdown", False),
        ("", "application/json;q=0.5, text/markdown", True),
        ("", "text/markdown;q=0.2, application/json;q=0.9", False),
        ("", "text/markdown;q=0", False),
        ("", "text/markdown;q=much", False),
        ("", ";;,,q", False),
        ("?format=markdown", "application/json", True),
        ("?format=json", "text/markdown", False),
    ],
)
async def test_the_card_comes_to_whom_asks_for_it(client, query, accept, markdown):
    reply = await client.get(REPORT + query, headers={"accept": accept})
    assert reply.status_code == 200
    if markdown:
        assert reply.headers["content-type"] == "text/markdown; charset=utf-8"
        assert reply.text.startswith("# pair")
    else:
        assert reply.json()["model"] == "pair"
    assert reply.headers["x-content-type-options"] == "nosniff"


async def test_a_plot_is_a_picture(client):
    reply = await client.get(f"{REPORT}/plots/cost.png")
    assert (reply.status_code, reply.content) == (200, b"\x89PNG of cost")
    assert reply.headers["content-type"] == "image/png"
    assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "status", "code", "param", "says"),
    [
        ("/v1/models/words/report", 404, "report_not_found", "model", "'words' was never measured"),
        ("/v1/models/words/report?format=markdown", 404, "report_not_found", "model", "'words'"),
        ("/v1/models/words/report/plots/cost.png", 404, "report_not_found", "model", "'words'"),
        ("/v1/models/nobody/report", 404, "model_not_found", "model", "'nobody'"),
        ("/v1/models/nobody/report/plots/cost.png", 404, "model_not_found", "model", "'nobody'"),
        (f"{REPORT}/plots/nope.png", 404, "report_not_found", "plot", "'nope'"),
        (f"{REPORT}/plots/..%2f..%2fetc%2fpasswd.png", 404, "model_not_found", "model", "passwd"),
        (f"{REPORT}/plots/cost", 404, "model_not_found", "model", "plots/cost"),
        (f"{REPORT}?format=html", 400, "input_error", "format", "'html' is not one of json"),
        (f"{REPORT}?format=", 400, "input_error", "format", "''"),
    ],
)
async def test_what_there_is_not_is_told_in_our_words(client, path, status, code, param, says):
    reply = await client.get(path)
    error = json.loads(reply.content)["error"]
    assert (reply.status_code, error["code"], error["param"]) == (status, code, param)
    assert says in error["message"]


async def test_a_file_that_was_altered_is_no_bug(client, registry, monkeypatch):
    def broken(name):
        raise CorruptModel("model 'pair': report.json: is not the file that was published")

    monkeypatch.setattr(registry, "measurements", broken)
    reply = await client.get(REPORT)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "corrupt_model")


async def test_it_takes_no_other_method(client):
    reply = await client.post(REPORT)
    assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD")
