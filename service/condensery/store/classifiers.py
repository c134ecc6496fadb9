"""Published sequence classifiers: Hugging Face's directories and sentence-transformers'.

A cross-encoder is a sequence classifier of one label. Newer releases of sentence-transformers put
``modules.json`` beside it, which then lists a Transformer alone.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from condensery.errors import StoreError, shorten
from condensery.store.layouts import (
    CLASSIFIER,
    Published,
    read_encoder,
    read_modules,
    read_settings,
)
from condensery.store.writing import read_json

ABOUT = "config_sentence_transformers.json"
MULTI_LABEL = "multi_label_classification"


def is_classifier(path: Path) -> bool:
    """Tell whether a directory says that it holds a sequence classifier."""
    config = path / "config.json"
    if not config.is_file():
        return False
    names = read_json(config).get("architectures") or ()
    return any(str(name).endswith(f"For{CLASSIFIER}") for name in names)


def read_classifier(path: Path) -> Published:
    """Read a directory that ``is_classifier`` knows.

    Raises:
        StoreError: A file is missing, or asks for what we don't do; named.
    """
    network = read_encoder(path, classifies=True)
    config = read_json(path / "config.json")
    longest = None
    if (path / "modules.json").is_file():
        read_modules(path, [("Transformer",)])
        longest = read_settings(path, "sequence-classification").get("max_seq_length")
    about = read_json(path / ABOUT) if (path / ABOUT).is_file() else {}
    if about.get("default_prompt_name") is not None:
        raise StoreError(f"{ABOUT}: default_prompt_name: a classifier's prompts are not supported")
    labels = _labels(config)
    shape = network.shape | {
        "labels": labels,
        # What is likely of each label by itself, not of one among all.
        "independent": len(labels) == 1 or config.get("problem_type") == MULTI_LABEL,
    }
    return replace(
        network,
        kind="reranker" if len(labels) == 1 else "classifier",
        max_tokens=min(network.max_tokens, longest or network.max_tokens),
        shape=shape,
    )


def _labels(config: dict[str, Any]) -> list[str]:
    """Return the labels in the order of their logits.

    Raises:
        StoreError: They are numbered with gaps, or one is no text.
    """
    named = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}  # transformers' own
    if not isinstance(named, dict) or set(named) != {str(i) for i in range(len(named))}:
        raise StoreError(f"config.json: id2label {shorten(named)} does not number labels from 0")
    labels = [named[str(i)] for i in range(len(named))]
    if not all(isinstance(label, str) for label in labels):
        raise StoreError(f"config.json: id2label {shorten(named)} holds what is no text")
    return labels
