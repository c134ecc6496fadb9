"""What a stored model says of itself: ``model.json``, and the values that carry it."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    StringConstraints,
    ValidationInfo,
    computed_field,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from condensery.errors import CorruptModel, ModelNotFound
from condensery.store.base_parts import KEY, BaseParts
from condensery.values import METHODS, MODEL_KINDS, ModelKind

MANIFEST = "model.json"
WEIGHTS = ".safetensors"
# Formats that torch, numpy or joblib unpickle, and code: loading either can run what it holds.
EXECUTABLE = frozenset(
    {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".py", ".so"}
)
# The fingerprint covers every file but prose and what was measured: a mended card, or a longer
# report, must not orphan an index.
PROSE = (".md", ".rst")
# A name alone makes no prose: a LICENSE.safetensors would be read as weights, a LICENSE.py run.
TERMS = re.compile(r"(licen[cs]e|notice)[^.]*(\.txt)?", re.IGNORECASE)
CARD = "card.md"
REPORT = "report.json"
PLOT = re.compile(r"plots/([a-z0-9_-]{1,64})\.png")
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
VERSION_PATTERN = r"^[1-9][0-9]{0,8}$"

Pooling = Literal["mean", "cls", "last"]
EndToken = Literal["tokenizer", "added", "none"]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Fingerprint = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


def path_problem(path: str) -> str | None:
    """Say why ``path`` can't be a stored model's file, or None if it can."""
    if path.startswith("/") or "\\" in path or ".." in PurePosixPath(path).parts:
        return f"{path}: points outside the model's directory"
    if PurePosixPath(path).as_posix() != path or not path.isprintable() or path == MANIFEST:
        return f"{path!r}: is not a file name a model may use"
    if any(part.startswith(".") for part in PurePosixPath(path).parts):
        return f"{path}: is hidden"
    if PurePosixPath(path).suffix.lower() in EXECUTABLE:
        return f"{path}: is a pickle or code, which is never loaded; only {WEIGHTS} weights are"
    return None


def is_prose(path: str) -> bool:
    """Tell whether ``path`` is for people only, so that it can't change a number."""
    name = PurePosixPath(path).name
    return name.lower().endswith(PROSE) or TERMS.fullmatch(name) is not None


def plot_name(path: str) -> str | None:
    """Return the name of the plot that ``path`` holds; None if it is no plot of a report."""
    match = PLOT.fullmatch(path)
    return match[1] if match else None


def changes_numbers(path: str) -> bool:
    """Tell whether a model could do otherwise for having another file at ``path``."""
    return not (is_prose(path) or path == REPORT or plot_name(path) is not None)


class Provenance(BaseModel):
    """Where a model came from, so that it can be made again.

    Attributes:
        command: The command line that made it.
        data: The data sets it was made from, each with its licence.
        seed: The seed of that command.
        source: What it was made or imported from: a package and version, or a directory.
        notes: What an import decided or ignored, one sentence each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str = ""
    data: tuple[str, ...] = ()
    seed: int | None = None
    source: str = ""
    notes: tuple[str, ...] = ()


class Defaults(BaseModel):
    """What a pair does where nothing is asked for; no part of its fingerprint.

    Attributes:
        top_n: Passages that it reads best, as measured; 0 is all, None what the service does.
        min_relevance: Score (0 to 1) under which it should not answer; None is the same.
        rank_weight: How much a passage's place in retrieval counts beside its score; None is 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    top_n: int | None = Field(default=None, ge=0)
    min_relevance: float | None = Field(default=None, ge=0, le=1)
    rank_weight: float | None = Field(default=None, ge=0, le=100)


class Manifest(BaseModel):
    """What ``model.json`` holds.

    Attributes:
        format: Of this file; a reader refuses one it does not know.
        version: A whole number; publishing under a taken name makes the next one.
        base: Name of the stored model that this one shares files with (oscar-mini: its word
            embeddings are minilm-l6's). What an encoder or classifier takes from it, ``shape``
            says (``base_parts``).
        base_fingerprint: Of that model; filled in by ``publish``.
        prompts: Text put before an input, by the prompt's name; or round it, which has ``{text}``
            where the input goes. One called ``instruction`` has ``{instruction}`` where a request's
            own goes.
        default_prompt: Name of the prompt used when the caller names none.
        max_tokens: Longest input, tokens, special ones included.
        end_token: Of a retriever made of a language model, what ends a text: the end token that
            its published tokenizer adds, the one that its import made it add, or none. None is
            unknown. It only describes: ``tokenizer.json`` does it, and is in the fingerprint.
        dtype: Of the stored weights (most of their elements).
        shape: The method's dimensions: dropped layers, widths, experts, memory tokens.
        defaults: What a pair does where nothing is asked for; see ``Defaults``.
        files: Relative path to sha256 (hex) of each file but ``model.json``.
        quality: Measured figures, and what they were measured on.
        cost: Parameters, bytes, FLOPs.
        created: Unix seconds; filled in by ``publish``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    name: str = Field(pattern=NAME_PATTERN)
    version: str = Field(default="1", pattern=VERSION_PATTERN)
    kind: ModelKind
    method: str = "none"
    base: str | None = Field(default=None, pattern=NAME_PATTERN)
    base_fingerprint: Fingerprint | None = None
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    pooling: Pooling | None = None
    normalize: bool = False
    max_tokens: int = Field(ge=1)
    end_token: EndToken | None = None
    dtype: str = "float32"
    shape: dict[str, JsonValue] = {}
    defaults: Defaults = Defaults()
    files: dict[str, Sha256] = {}
    licence: str = "unknown"
    provenance: Provenance = Provenance()
    quality: dict[str, JsonValue] = {}
    cost: dict[str, JsonValue] = {}
    created: int = Field(default=0, ge=0)

    @field_validator("kind", "method")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        known = MODEL_KINDS if info.field_name == "kind" else METHODS
        if name not in known:
            raise PydanticCustomError(
                "unknown_name", "Input should be one of {known}", {"known": sorted(known)}
            )
        return name

    @field_validator("files")
    @classmethod
    def _stay_inside(cls, files: dict[str, str]) -> dict[str, str]:
        for path in files:
            if problem := path_problem(path):
                raise ValueError(problem)
        return dict(sorted(files.items()))

    @model_validator(mode="wrap")
    @classmethod
    def _agree(cls, data: Any, handler: ModelWrapValidatorHandler["Manifest"]) -> "Manifest":
        # The computed fingerprint is written too, for people; one that does not match says that
        # something which changes the numbers was edited by hand.
        claimed = None
        if isinstance(data, dict):
            claimed = data.get("fingerprint")
            data = {key: value for key, value in data.items() if key != "fingerprint"}
        manifest = handler(data)
        if manifest.default_prompt is not None and manifest.default_prompt not in manifest.prompts:
            raise ValueError(f"default_prompt {manifest.default_prompt!r} is not among the prompts")
        _check_base(manifest)
        fingerprint = manifest.fingerprint  # raises on NaN
        if claimed not in (None, fingerprint):
            raise ValueError(f"fingerprint {claimed} is not that of the content")
        return manifest

    @computed_field  # type: ignore[prop-decorator]  # mypy does not support decorated properties
    @property
    def fingerprint(self) -> str:
        """``sha256:`` and the hash of all that changes the numbers, and of nothing else."""
        content = {
            "recipe": 1,
            "kind": self.kind,
            "method": self.method,
            "shape": self.shape,
            "pooling": self.pooling,
            "normalize": self.normalize,
            "max_tokens": self.max_tokens,
            "prompts": self.prompts,
            "default_prompt": self.default_prompt,
            "base": self.base_fingerprint,
            "files": {path: sha for path, sha in self.files.items() if changes_numbers(path)},
        }
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"

    @property
    def base_parts(self) -> BaseParts | None:
        """What is not among the files, for the base has it; None for most."""
        return BaseParts.from_shape(self.shape)

    @property
    def shares_words(self) -> bool:
        """Whether it is a language model whose word embeddings are its base's, standardised."""
        return self.kind == "language-model" and self.base is not None


def _check_base(manifest: Manifest) -> None:
    """Check what a manifest says to be its base's.

    Raises:
        ValueError: It is no table of names, names files that are its own, or there is no base.
    """
    parts = manifest.base_parts
    if parts is None:
        return
    if manifest.base is None:
        raise ValueError(f"shape.{KEY} needs a base")
    for name in parts.files:
        if problem := path_problem(name):
            raise ValueError(f"shape.{KEY}: {problem}")
        if name in manifest.files:
            raise ValueError(f"shape.{KEY}: {name} is among the model's own files")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A whole model on disk; its own files are ``path / name`` for each name in the manifest.

    Attributes:
        manifest: What ``model.json`` says.
        path: Its directory.
        base: The model that has what this one takes from a base (``Manifest.base_parts``, or
            ``shares_words``), found by the store; None where it takes nothing, or the base is not
            there.
    """

    manifest: Manifest
    path: Path
    base: "StoredModel | None" = None

    @property
    def name(self) -> str:
        """The model's name in the store."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """The model's version, a whole number."""
        return self.manifest.version

    @property
    def root(self) -> Path:
        """The store's root that holds it."""
        return self.path.parent.parent

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files, the base's that are its own too included."""
        parts = self.manifest.base_parts
        return (*self.manifest.files, *(() if parts is None else parts.files))

    def file(self, name: str) -> Path:
        """Return where a file is: in its directory, or in its base's.

        Raises:
            ModelNotFound: The base is not in the store.
            CorruptModel: The base has no such file.
        """
        parts = self.manifest.base_parts
        if parts is None or name not in parts.files:
            return self.path / name
        base = self.require_base()
        if name not in base.files:
            raise CorruptModel(f"{self.name}: its base {base.name!r} has no {name}")
        return base.file(name)

    def require_base(self) -> "StoredModel":
        """Return the base.

        Raises:
            ModelNotFound: The store has none of the fingerprint that the manifest names.
        """
        if self.base is None:
            raise missing_base(self.manifest)
        return self.base

    @property
    def weights(self) -> tuple[Path, ...]:
        """Its own weight files, in the order of their names."""
        return tuple(self.path / name for name in self.manifest.files if name.endswith(WEIGHTS))


def missing_base(manifest: Manifest) -> ModelNotFound:
    """Return the error of a model whose base is not in the store."""
    return ModelNotFound(
        f"model {manifest.name!r} needs {manifest.base!r} with fingerprint "
        f"{manifest.base_fingerprint}, which is not in the store",
        field="model",
        value=manifest.base,
    )


@dataclass(frozen=True, slots=True)
class BrokenModel:
    """A directory in a store that is not a whole model, and the reason, naming the file."""

    name: str
    path: Path
    reason: str
