"""A small load that fills the dashboards: one caller, who asks for a bit of everything.

    python deploy/smoke.py --url http://127.0.0.1:8080 --seconds 60

It makes an index of its own, `smoke`, with one snapshot, and drops both at the end. The load tests
are elsewhere (loadtests/).
"""

import argparse
import contextlib
import time
from pathlib import Path

from condensery.client.rest import Client
from condensery.errors import CondenseryError, ModelNotFound
from condensery.values import Document

INDEX = "smoke"
QUESTION = "How many traits did Mendel study?"
PASSAGES = [
    (
        "Gregor Mendel crossed pea plants in the garden of his abbey in Brno for eight years, "
        "and counted what came of it. He studied seven traits, each of which has two forms: "
        "the shape and the colour of the seeds, the colour of the flowers, the shape and the "
        "colour of the pods, where the flowers sit, and how tall the plants grow."
    ),
    (
        "The warship Vasa left the quay of Stockholm in August 1628 and sank after little "
        "more than a kilometre, when a gust of wind laid her on her side and water came in "
        "through the open gun ports. She was raised in 1961, and stands in a museum today."
    ),
    (
        "The Rhine begins in the Alps of Switzerland, passes through Lake Constance, falls at "
        "Schaffhausen, turns north at Basel and reaches the North Sea in the Netherlands "
        "after more than twelve hundred kilometres."
    ),
]


def prepare(client: Client) -> None:
    """Make the index and its snapshot."""
    client.create_index(INDEX)
    client.upsert(INDEX, [Document(str(n), text) for n, text in enumerate(PASSAGES)])
    client.create_snapshot(INDEX)


def ask(client: Client) -> None:
    """Ask for one thing of each kind; a model that is not there is asked for as well."""
    client.embed([QUESTION, *PASSAGES])
    client.rerank(QUESTION, PASSAGES)
    client.query(INDEX, QUESTION, top_k=2)
    client.answer(QUESTION, documents=PASSAGES, max_tokens=8)
    client.answer(QUESTION, index=INDEX, max_tokens=8)
    client.answer(QUESTION, documents=PASSAGES, min_relevance=1.0)
    client.release(client.compress(QUESTION, PASSAGES).context or "")
    with contextlib.suppress(ModelNotFound):
        client.embed([QUESTION], model="not-here")


def main() -> None:
    parser = argparse.ArgumentParser(description="A small load that fills the dashboards.")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--key-file", type=Path, help="where the server's key is, if it has one")
    parser.add_argument("--seconds", type=float, default=60, help="how long it asks")
    parser.add_argument(
        "--pause", type=float, default=1, help="seconds after each round: idle time, for shadows"
    )
    asked = parser.parse_args()
    key = asked.key_file.read_text().strip() if asked.key_file else None
    rounds, end = 0, time.monotonic() + asked.seconds
    with Client(asked.url, api_key=key, timeout=120) as client:
        prepare(client)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                while time.monotonic() < end:
                    ask(client)
                    rounds += 1
                    time.sleep(asked.pause)
        finally:
            with contextlib.suppress(CondenseryError):
                for snapshot in client.list_snapshots(INDEX).data:
                    client.delete_snapshot(INDEX, snapshot.id)
                client.drop_index(INDEX)
    print(f"asked {rounds} rounds of eight requests; none failed")


if __name__ == "__main__":
    main()
