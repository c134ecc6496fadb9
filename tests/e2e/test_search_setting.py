"""``--search``: how a server searches its indexes where a request does not say."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import serving


def test_the_setting_is_what_a_request_gets_that_names_no_mode(
    store_with_pair: Path, tmp_path: Path
) -> None:
    asked = {"query": "How many traits did Mendel study?", "top_k": 3}
    with serving(store_with_pair, tmp_path, "--search", "bm25") as server:

        def query(**more: Any) -> Any:
            url = f"{server.url}/v1/indexes/samples/query"
            reply = httpx.post(url, json={**asked, **more}, trust_env=False)
            assert reply.status_code == 200, reply.text
            return reply.json()

        unnamed = [one["score"] for one in query()["results"]]
        assert unnamed == pytest.approx([one["score"] for one in query(mode="bm25")["results"]])
        assert unnamed[0] > 1  # no cosine
        assert query(mode="dense")["results"][0]["score"] < 1
