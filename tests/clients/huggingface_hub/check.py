"""huggingface_hub's client, which posts to the URL itself, gets what the server says to others."""

import json
import math
import os
import urllib.request

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

URL = os.environ["SERVER"]
texts = ["an old mill", "the mill is old", "cats sleep"]
asked = urllib.request.Request(
    f"{URL}/embed", json.dumps({"inputs": texts}).encode(), {"content-type": "application/json"}
)
with urllib.request.urlopen(asked) as reply:
    rows = json.load(reply)
client = InferenceClient(URL)
for text, row in zip(texts, rows, strict=True):
    found = client.feature_extraction(text)[0].tolist()
    assert math.dist(found, row) < 0.02, text
cut = client.feature_extraction("word " * 600, truncate=True, truncation_direction="left")
assert cut.shape == (1, 384)
near, far = client.sentence_similarity(texts[0], other_sentences=texts[1:])
assert math.isclose(near, sum(a * b for a, b in zip(rows[0], rows[1], strict=True)), abs_tol=5e-3)
assert near > far
try:  # an encoder has no classes
    client.text_classification(texts[0])
except HfHubHTTPError as error:
    assert error.response.status_code in (404, 422, 424), error
except (KeyError, TypeError, ValueError):
    pass  # it takes the vectors that the URL itself answers with for classes
else:
    raise AssertionError("an encoder classified")
print("ok")
