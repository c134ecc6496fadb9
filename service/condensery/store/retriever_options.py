"""Which directories are retrievers made of language models, and the options of importing one."""

from dataclasses import dataclass
from pathlib import Path

from condensery.networks.effir_shape import Pruning
from condensery.store.writing import read_json

ADAPTER = "adapter_config.json"
STATES, LATEST = "mp_rank_00_model_states.pt", "latest"  # as DeepSpeed writes them


@dataclass(frozen=True, slots=True)
class RetrieverOptions:
    """What a directory does not say of the retriever that it is.

    Attributes:
        base: Of a LoRA directory, its base model's; the one that it names, if None. Of a
            checkpoint of LLM2Comp's, its language model's, which it does not name.
        query_prompt: Put before queries; None is the published retrievers' for a LoRA directory,
            and none for others.
        max_tokens: Longest input, tokens; None is as many as network and tokenizer allow, of a LoRA
            directory at most the 512 that the published retrievers read.
        add_eos: Whether each text gets the end token where the tokenizer adds none. None is as
            the published code does it: not for a LoRA directory, which is read as its tokenizer
            does; for others, which no code of theirs says how to read, where the vector is the
            last token's.
    """

    base: Path | None = None
    query_prompt: str | None = None
    max_tokens: int | None = None
    add_eos: bool | None = None


def is_retriever(path: Path) -> bool:
    """Tell whether a directory is one of a language model, a pruned one, or an adapter's.

    Raises:
        StoreError: Its ``config.json`` can't be read.
    """
    if (path / ADAPTER).is_file():
        return True
    config = read_json(path / "config.json") if (path / "config.json").is_file() else {}
    architectures = config.get("architectures")
    causal = isinstance(architectures, list) and any(
        str(architecture).endswith("ForCausalLM") for architecture in architectures
    )
    return causal or Pruning.named(config)


def find_states(path: Path) -> Path | None:
    """Return a checkpoint's file of weights: in it, or in the folder that ``latest`` names."""
    folders = [path]
    latest = path / LATEST
    if latest.is_file():
        tag = latest.read_text(encoding="utf-8", errors="replace").strip()
        if tag and Path(tag).name == tag:
            folders.append(path / tag)
    return next((f / STATES for f in folders if (f / STATES).is_file()), None)
