"""Requests with nothing between: what the clients' replies are compared with."""

import json
import os
import urllib.request
from typing import Any

URL = os.environ["SERVER"]


def ask(path: str, body: dict[str, Any]) -> Any:
    """Post JSON; returns the reply's."""
    asked = urllib.request.Request(
        f"{URL}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked) as reply:
        return json.load(reply)
