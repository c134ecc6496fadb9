"""Questions as tests write them: the fields of their parts as keywords."""

from typing import Any

from condensery.question import AnswerCompression, AnswerIndex, AnswerRerank, Question

COMPRESSION_FIELDS = ("mode", "ratio", "max_context_vectors", "target_ms", "timeout_ms")


def make_question(query: str = "where?", **options: Any) -> Question:
    """Make a question; ``index`` is a name, ``search`` the index's mode."""

    def take(*names: str) -> dict[str, Any]:
        return {name: options.pop(name) for name in names if name in options}

    index = take("index", "top_k", "search", "filter")
    if "index" in index:
        index = {{"index": "name", "search": "mode"}.get(name, name): index[name] for name in index}
        options["index"] = AnswerIndex(**index)
    return Question(
        query,
        rerank=AnswerRerank(**take("top_n")),
        compression=AnswerCompression(**take(*COMPRESSION_FIELDS)),
        **options,
    )
