"""What schemathesis loads: it leads generated requests past the first check.

An unknown index, an unknown model, a deadline of a millisecond: most of what a schema's fuzzer
thinks of ends there. Half of such values are replaced by good ones, which ones hangs on the value
alone; the other half stays, and so does whatever is malformed.
"""

import re
import zlib
from typing import Any

import schemathesis

INDEXES = ("fuzz-a", "fuzz-b")
MODELS = ("minilm-l6", "oscar-mini")
KEPT = "samples"  # other tests ask it
PATIENT = "120000"
LONG, MOST, FEW = 100, 2048, 8


def half(value: str) -> bool:
    return zlib.crc32(value.encode("utf-8", "surrogatepass")) % 2 == 0


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    headers = case.headers
    if headers is not None:
        waits = headers.get("x-request-timeout-ms")
        if isinstance(waits, str) and re.fullmatch("0*[1-9][0-9]*", waits):
            # Who gives a service a millisecond gets a 504, and rightly so.
            headers["x-request-timeout-ms"] = PATIENT
    named = case.path_parameters
    if named and isinstance(named.get("name"), str):
        name = named["name"]
        if case.path.endswith("load"):  # it would take a model from the others
            if name in MODELS:  # which replies have told
                named["name"] = "nobody"
        elif name == KEPT or half(name):
            known = INDEXES if case.path.startswith("/v1/indexes") else MODELS
            named["name"] = known[len(name) % 2]
    body = case.body
    if isinstance(body, dict):
        for field in ("model", "encoder", "fingerprint", "prompt_name"):
            if isinstance(body.get(field), str) and half(body[field]):
                body[field] = None
        sources = [name for name in ("documents", "index", "context") if body.get(name) is not None]
        if len(sources) > 1:  # one of them is asked for
            kept = sources[len(str(body)) % len(sources)]
            body.update({name: None for name in sources if name != kept})
        messages = body.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        if isinstance(last, dict) and isinstance(last.get("role"), str) and half(last["role"]):
            last["role"] = "user"
        if isinstance(body.get("index"), dict) and isinstance(body["index"].get("name"), str):
            body["index"]["name"] = INDEXES[0]
        elif isinstance(body.get("index"), str):
            body["index"] = INDEXES[0]
        if body.get("query") is not None and body.get("vector") is not None:
            body["vector"] = None
        # Work that takes seconds shows no more than work that takes none.
        for field in ("input", "inputs", "texts", "documents"):
            if isinstance(body.get(field), list) and LONG < len(body[field]) <= MOST:
                del body[field][LONG:]
        for field in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(body.get(field), int) and body[field] > FEW:  # a chat's is clamped
                body[field] = FEW
