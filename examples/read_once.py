"""Documents compressed once, questions answered from what the server kept of them, and compared.

    condensery serve                                        # in another terminal
    python examples/read_once.py [--url http://127.0.0.1:8080]

Memory vectors are made for a question: a handle serves that question only, as often as it is asked,
streamed or with other settings, and no document is read again.
"""

import argparse
import sys

from condensery.client.rest import Client
from condensery.question import Delta
from condensery.values import Document

QUESTION = "Which lake does the Rhine pass through?"
DOCUMENTS = [
    Document("rhine", "The Rhine rises in the Alps and passes through Lake Constance."),
    Document("danube", "The Danube rises in the Black Forest and ends in the Black Sea."),
    Document("bread", "Bread rises because yeast makes gas."),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    with Client(parser.parse_args().url) as client:
        read = client.compress(QUESTION, DOCUMENTS, ttl_seconds=60)
        assert read.context is not None  # as it was to be kept
        for document in read.documents:
            print(f"{document.id}: {document.tokens_in} tokens, {document.vectors_out} vectors")

        answer = client.answer(QUESTION, context=read.context)
        print(f"\nfrom the vectors: {answer.text}")
        print("again, streamed:  ", end="")
        for event in client.answer_stream(QUESTION, context=read.context):
            if isinstance(event, Delta):
                print(event.text, end="", flush=True)
        drawn = client.answer(QUESTION, context=read.context, temperature=0.7, seed=1)
        print(f"\ndrawn by chance:  {drawn.text}")

        both = client.compare(QUESTION, context=read.context)
        print(f"from the text:    {both.plain.text}")
        print(f"\nagreement: F1 {both.f1:.2f}; plain took {both.speedup:.2f} times as long")
        client.release(read.context)
    return 0


if __name__ == "__main__":
    sys.exit(main())
