"""The REST door under 17,000 generated requests, good and bad, against the real process.

None gets a status that is not described, a body that is not, or a 5xx.
"""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from tests.fuzz.rest_mutations import Asked, Door, meddled

HERE = Path(__file__).parent
FROM_THE_SCHEMA = 5_000
MEDDLED = 14_000
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def goes_on(live_server: Any) -> Any:
    """Hold the server to serving on, and to having met no bug."""
    yield
    with httpx.Client(base_url=live_server.url, timeout=60) as door:
        assert door.get("/readyz").status_code == 200
        assert door.post("/embed", json={"inputs": "a"}).status_code == 200
    assert "internal_error" not in live_server.log.read_text()
    assert "Traceback" not in live_server.log.read_text()


def test_what_a_fuzzer_makes_of_the_description(live_server: Any, tmp_path: Path) -> None:
    operations = 60  # most of those that there are; the rest take nothing that could vary
    report = tmp_path / "report.json"
    command = [str(Path(sys.executable).with_name("schemathesis")), "run"]
    command += [f"{live_server.url}/openapi.json", "--checks", ",".join(CHECKS)]
    command += ["--phases", "coverage,fuzzing", "--generation-deterministic", "--no-shrink"]
    command += ["--max-examples", str(FROM_THE_SCHEMA // operations), "--continue-on-failure"]
    command += ["--warnings", "off", "--request-timeout", "60", "--workers", "2"]
    command += ["--report", "json", "--report-json-path", str(report)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": str(HERE / "rest_hooks.py")},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    content = json.loads(report.read_text())
    assert content["complete"]
    assert content["operations"]["tested"] == content["operations"]["total"]
    assert content["failures"] == content["errors"] == []
    cases = content["test_cases"]["generated"]
    print(f"{cases} cases from the description")
    assert cases >= FROM_THE_SCHEMA


def test_what_becomes_of_good_requests_that_are_meddled_with(live_server: Any) -> None:
    described = httpx.get(f"{live_server.url}/openapi.json").json()
    schemas = Schemas(described)
    httpx.put(f"{live_server.url}/v1/indexes/fuzz-a").raise_for_status()
    statuses: collections.Counter[int] = collections.Counter()
    door = Door(live_server.url)
    for asked in meddled(MEDDLED, seed=7):
        status, headers, content = door.ask(asked)
        statuses[status] += 1
        schemas.check(asked, status, headers.get_content_type(), content)
        assert "x-request-id" in headers
    door.close()
    print(dict(statuses))
    assert statuses.total() == MEDDLED
    assert {200, 400, 404, 405, 422} <= statuses.keys()


class Schemas:
    """Holds replies against a description."""

    def __init__(self, described: Any) -> None:
        self._described = described
        self._validators: dict[str, Any] = {}

    def check(self, asked: Asked, status: int, media: str, content: bytes) -> None:
        assert status < 500, (asked, status, content)
        if asked.method == "HEAD":
            return
        if asked.template:
            operation = self._described["paths"][asked.template][asked.method.lower()]
            responses = operation["responses"]
            assert str(status) in responses, (asked, status, content)
            by_media = self._resolve(responses[str(status)])["content"]
            assert media in by_media, (asked, media)
            schema = by_media[media]["schema"]
        else:
            errors = ("TeiError", "OpenAIError", "RerankError", "KServeError")
            references = [{"$ref": f"#/components/schemas/{name}"} for name in errors]
            schema = {"anyOf": references} if status >= 400 else {}
        if media == "application/json":
            problem = next(iter(self._validator(schema).iter_errors(json.loads(content))), None)
            assert problem is None, (asked, status, content, problem)

    def _resolve(self, response: Any) -> Any:
        if "$ref" not in response:
            return response
        return self._described["components"]["responses"][response["$ref"].rpartition("/")[2]]

    def _validator(self, schema: Any) -> Any:
        key = json.dumps(schema)
        if key not in self._validators:
            whole = {**schema, "components": self._described["components"]}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole)
        return self._validators[key]
