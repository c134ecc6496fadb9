"""Published directory layouts and their names for things; nothing else knows them.

Sentence-transformers: ``modules.json`` lists Transformer, Pooling and perhaps Normalize, each
with a folder; prompts are in ``config_sentence_transformers.json``. Plain Hugging Face:
``config.json`` beside the weights. What would change the vectors and is not understood is refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from condensery.errors import StoreError, shorten
from condensery.store.manifest import WEIGHTS, Pooling, path_problem
from condensery.store.writing import name_of, parse_json, read_json
from condensery.values import ModelKind

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
VOCABULARIES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model"),
    *("sentencepiece.bpe.model", "tokenizer.model"),
)
# Sentence-transformers' words for pooling; older releases wrote one true flag among several.
POOLING: Mapping[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ENCODER_MODULES = (("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize"))
CLASSIFIER = "SequenceClassification"
# These count positions from behind the padding token's id, so that many are never used.
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer")
CONVERT = (
    "from transformers import AutoModel; "
    "AutoModel.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
)


@dataclass(frozen=True, slots=True)
class Published:
    """What a published directory says, in our words.

    ``files`` are paths by the name to store them under; ``pooling`` and ``normalize`` are None
    where the layout does not say.
    """

    files: dict[str, Path]
    max_tokens: int
    shape: dict[str, Any]
    kind: ModelKind = "encoder"
    pooling: Pooling | None = None
    normalize: bool | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    notes: tuple[str, ...] = ()


def read_sentence_transformers(path: Path) -> Published:
    """Read a directory that has ``modules.json``.

    Raises:
        StoreError: A module, a pooling mode or a file is not one we can serve; it is named.
    """
    folders = read_modules(path, ENCODER_MODULES)
    about = _read_if_there(path / "config_sentence_transformers.json")
    if (kind := about.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise StoreError(f"config_sentence_transformers.json: a {kind} is not a dense encoder")
    network = read_encoder(folders["Transformer"])
    settings = read_settings(folders["Transformer"], "feature-extraction")
    pooled = read_json(folders["Pooling"] / "config.json")
    width = pooled.get("word_embedding_dimension", pooled.get("embedding_dimension"))
    if width not in (None, network.shape["dims"]):
        raise StoreError(
            f"{name_of(folders['Pooling'] / 'config.json')}: Pooling expects {width} dims, the "
            f"network has {network.shape['dims']}"
        )
    prompts = _prompts(about)
    if any(prompts.values()) and not pooled.get("include_prompt", True):
        raise StoreError("Pooling: include_prompt false (prompts left out of the mean) is refused")
    default = about.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise StoreError(f"default_prompt_name {default!r} is not among the prompts")
    return replace(
        network,
        files=network.files | prose_of(path),
        max_tokens=min(network.max_tokens, settings.get("max_seq_length") or network.max_tokens),
        pooling=_pooling(pooled, name_of(folders["Pooling"] / "config.json")),
        normalize="Normalize" in folders,
        prompts=prompts,
        default_prompt=default,
    )


def read_encoder(path: Path, *, classifies: bool = False) -> Published:
    """Read a directory that has ``config.json``, safetensors weights and a tokenizer.

    Args:
        path: The directory.
        classifies: Whether a sequence classifier is wanted, not an encoder.

    Raises:
        StoreError: A file is missing, or the network is not one that transformers itself has.
    """
    config = read_json(path / "config.json")
    tokenizer = _read_if_there(path / "tokenizer_config.json")
    notes = _check_network(config, classifies=classifies)
    if "auto_map" in tokenizer:
        notes += ("The auto_map of tokenizer_config.json was ignored: its code is never run.",)
    names = ("config.json", *TOKENIZER_FILES, *_weights(path))
    files = {name: path / name for name in names if (path / name).is_file()}
    if not any(name in files for name in VOCABULARIES):
        raise StoreError(f"{path.name}: holds no tokenizer (looked for {', '.join(VOCABULARIES)})")
    lengths = config.get("matryoshka_dimensions")
    return Published(
        files=files | prose_of(path),
        max_tokens=longest_input(config, tokenizer),
        shape={
            "architecture": str((config.get("architectures") or ["unknown"])[0]),
            "dims": _first(config, "hidden_size", "dim", "d_model", "n_embd"),
            "layers": _first(config, "num_hidden_layers", "n_layers", "num_layers", "n_layer"),
            **({"matryoshka": lengths} if lengths else {}),
        },
        notes=notes,
    )


def read_licence(card: Path) -> str:
    """Return the ``license`` of a model card's front matter, or "unknown"."""
    try:
        text = card.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    front = re.match(r"\A---\r?\n(.*?)^---", text, re.DOTALL | re.MULTILINE)
    values = {
        key: (value or item).strip("\"' \t")
        for key, value, item in re.findall(
            r"^(license|license_name):[ \t]*([^\r\n#]*)(?:\r?\n\s*-[ \t]*([^\r\n#]+))?",
            front[1] if front else "",
            re.MULTILINE,
        )
    }
    licence: str = values.get("license", "")
    if licence in ("", "other"):
        return values.get("license_name") or licence or "unknown"
    return licence


def read_modules(path: Path, orders: Sequence[tuple[str, ...]]) -> dict[str, Path]:
    """Return each folder of ``modules.json`` by its module's kind.

    Args:
        path: The directory.
        orders: The kinds that we can serve, in their order; the longest names them all.

    Raises:
        StoreError: A module is of another kind, or there is another order; it is named.
    """
    modules = parse_json(path / "modules.json")
    if not isinstance(modules, list):
        raise StoreError("modules.json: is not a list")
    known = max(orders, key=len)
    folders: dict[str, Path] = {}
    for module in modules:
        kind = str(module.get("type", "")) if isinstance(module, dict) else ""
        folder = str(module.get("path", "")) if isinstance(module, dict) else ""
        if not kind.startswith("sentence_transformers."):
            raise StoreError(
                f"modules.json: {shorten(kind)} is code of the model's own, which is never run"
            )
        if folder and path_problem(folder):
            raise StoreError(f"modules.json: path {path_problem(folder)}")
        short = kind.rsplit(".", 1)[-1]
        if short not in known:
            raise StoreError(
                f"modules.json: a {short} module is not supported; only {', '.join(known)}"
            )
        if short in folders:
            raise StoreError(f"modules.json: {short} is there twice")
        folders[short] = path / folder
    if tuple(folders) not in orders:
        raise StoreError(
            f"modules.json: {', '.join(folders) or 'nothing'}; expected "
            f"{' or '.join(', '.join(order) for order in orders)}, in this order"
        )
    return folders


def _pooling(config: Mapping[str, Any], file: str) -> Pooling:
    modes = [mode for flag, mode in FLAGS.items() if config.get(flag)]
    if declared := config.get("pooling_mode"):
        modes = [declared] if isinstance(declared, str) else list(declared)
    if len(modes) != 1 or modes[0] not in POOLING:
        raise StoreError(
            f"{file}: Pooling: mode {' + '.join(map(str, modes)) or 'unknown'} is not supported; "
            f"only {', '.join(POOLING)} are"
        )
    return POOLING[modes[0]]


def read_settings(path: Path, task: str) -> dict[str, Any]:
    """Read ``sentence_bert_config.json``, by its name of this or an earlier release.

    Raises:
        StoreError: It is of another task, or asks for what we don't do; named.
    """
    files = sorted(path.glob("sentence_*_config.json"))
    settings = read_json(files[0]) if files else {}
    if not isinstance(longest := settings.get("max_seq_length"), int | None):
        raise StoreError(f"{files[0].name}: max_seq_length {shorten(longest)} is no number")
    if (own := settings.get("transformer_task", task)) != task:
        raise StoreError(f"{files[0].name}: transformer_task {shorten(own)} is not {task!r}")
    if settings.get("do_lower_case"):
        tokenizer = _read_if_there(path / "tokenizer_config.json")
        if not tokenizer.get("do_lower_case"):
            raise StoreError(
                f"{files[0].name}: do_lower_case true, which the tokenizer does not do itself"
            )
    return settings


def _check_network(config: Mapping[str, Any], *, classifies: bool) -> tuple[str, ...]:
    """Refuse what is no encoder, or no classifier; return notes on what was ignored."""
    # Late: it takes a second, and only importing needs it.
    from transformers import CONFIG_MAPPING

    kind = str(config.get("model_type"))
    if kind not in CONFIG_MAPPING:
        reason = "is not one that transformers has"
        if "auto_map" in config:
            reason += "; the code that its auto_map names is never run"
        raise StoreError(f"config.json: model_type {kind!r} {reason}")
    if config.get("is_encoder_decoder"):
        raise StoreError(f"config.json: {kind!r} is an encoder-decoder, which is not supported")
    for architecture in map(str, config.get("architectures") or ()):
        match = re.search(r"For(SequenceClassification|TokenCl|QuestionAns)", architecture)
        if match and not (classifies and match[1] == CLASSIFIER):
            raise StoreError(f"config.json: {architecture} is not an encoder")
    if "auto_map" in config:
        return ("The auto_map of config.json was ignored: its code is never run.",)
    return ()


def _weights(path: Path) -> Iterator[str]:
    if (path / "model.safetensors").is_file():
        yield "model.safetensors"
    elif (index := path / "model.safetensors.index.json").is_file():
        yield index.name
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise StoreError(f"{index.name}: holds no weight_map")
        for name in sorted({str(shard) for shard in weight_map.values()}):
            if path_problem(name) or not (path / name).is_file():
                raise StoreError(f"{index.name}: names {name}, which is missing")
            yield name
    elif (path / "adapter_config.json").is_file():
        raise StoreError("adapter_model: is a LoRA adapter; merge it into its base first")
    elif pickles := sorted(path.glob("pytorch_model*.bin")):
        raise StoreError(
            f"{pickles[0].name}: is a pickle, which is never loaded, and there is no "
            f"model{WEIGHTS}. Where you trust the file, convert it: python -c '{CONVERT}'"
        )
    else:
        raise StoreError(f"{path.name}: holds no model{WEIGHTS}")


def _prompts(about: Mapping[str, Any]) -> dict[str, str]:
    prompts = about.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise StoreError("config_sentence_transformers.json: prompts is not a map of texts")
    return prompts


def prose_of(path: Path) -> dict[str, Path]:
    """Return the model card, as card.md, and the licence's own text, if there."""
    names = {"README.md": "card.md"} | {n: n for n in ("LICENSE", "LICENSE.txt", "NOTICE")}
    files = {stored: path / name for name, stored in names.items() if (path / name).is_file()}
    return {stored: file for stored, file in files.items() if file.stat().st_size}


def text_positions(kind: str | None, positions: int, padding: int | None) -> int:
    """Return how many of a network's positions texts have.

    Args:
        kind: Its ``model_type``.
        positions: All that it has.
        padding: The id of its padding token.
    """
    return positions - ((padding or 0) + 1 if kind in OFFSET_POSITIONS else 0)


def longest_input(config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> int:
    """Return the longest input, tokens, that both the network and the tokenizer allow."""
    limits = []
    if isinstance(positions := _first(config, "max_position_embeddings", "n_positions"), int):
        padding = _first(config, "pad_token_id")
        limits.append(text_positions(config.get("model_type"), positions, padding))
    # Tokenizers without a limit say 1e30.
    if isinstance(declared := tokenizer.get("model_max_length"), int) and declared < 10**9:
        limits.append(declared)
    return min(limits, default=512)


def _first(config: Mapping[str, Any], *keys: str) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
