"""The file that says which models a Ray cluster runs, where, and how many of each.

YAML: a name, an address, and groups. A group is the models that one process holds, how many such
processes there are (replicas), and what each of them needs.
"""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from condensery.errors import SettingError, shorten

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$"
MAX_REPLICAS = 1000

Share = Annotated[float, Field(ge=0, le=1024, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Scaling(_Part):
    """How many replicas a group has, by the tokens that they have taken and not answered."""

    min: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    max: int = Field(ge=1, le=MAX_REPLICAS)
    tokens: int = Field(default=16_384, ge=1, description="In hand, for each replica.")
    up_seconds: Seconds = Field(default=10.0, description="For so long more were needed.")
    down_seconds: Seconds = Field(default=300.0, description="For so long fewer were enough.")
    look_back_seconds: Seconds = Field(default=10.0, description="Over which tokens are averaged.")

    @model_validator(mode="after")
    def _in_order(self) -> "Scaling":
        if self.max < self.min:
            raise ValueError(f"max is {self.max}, below min, {self.min}")
        return self


class Group(_Part):
    """Models that share a process, and what each such process needs of a machine.

    Attributes:
        models: Their names; "*" is every model that no group names.
        replicas: A number, or bounds between which their load decides.
        cpus: Of each replica, as Ray counts them; forward passes have as many threads.
        gpus: Of each replica; a fraction shares a GPU with others.
        memory_gib: That Ray sets aside for each.
        resources: Of the cluster's own, for each: ``{"a100": 0.5}``.
        labels: Of the nodes that it may be on: ``{"zone": "eu-1"}``.
        max_per_node: Replicas on one node; None does not limit them.
        device: What its models run on; None is a GPU where ``gpus`` is not 0, else a CPU.
    """

    models: tuple[str, ...] = Field(min_length=1)
    replicas: int | Scaling = 1
    cpus: Share = 1.0
    gpus: Share = 0.0
    memory_gib: Share = 0.0
    resources: dict[str, Share] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    max_per_node: int | None = Field(default=None, ge=1, le=100)
    device: str | None = Field(default=None, min_length=1)

    @field_validator("replicas")
    @classmethod
    def _enough(cls, replicas: int | Scaling) -> int | Scaling:
        if isinstance(replicas, int) and not 1 <= replicas <= MAX_REPLICAS:
            raise ValueError(f"it must be 1 to {MAX_REPLICAS}, or min and max")
        return replicas

    @field_validator("gpus")
    @classmethod
    def _whole_or_part(cls, gpus: float) -> float:
        if gpus > 1 and gpus != int(gpus):
            raise ValueError("it must be a fraction up to 1, or a whole number")
        return gpus

    @field_validator("models")
    @classmethod
    def _once(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        if EVERY_OTHER in models and len(models) > 1:
            raise ValueError(f"{EVERY_OTHER!r} stands alone")
        return models


EVERY_OTHER = "*"


class ClusterConfig(_Part):
    """A cluster, and what runs on it.

    Attributes:
        name: Of what is deployed, before the groups' own; one a door process.
        address: Of a running Ray: "auto" is the one of this machine; None starts one that ends
            with this process.
        ready_seconds: For replicas to be ready, from the moment they are asked for; below the
            setting ``start_timeout_seconds``.
        lost_seconds: Without an answer of the cluster, after which this process ends, for its
            supervisor to start it anew.
        local_cpus: Of a Ray that is started, as it counts them; None is what the machine has.
        local_object_store_mib: Of such a Ray, for its own uses: calls of ours do not go through it.
        groups: In which models run; a model that is in none is not loaded.
    """

    name: str = Field(default="condensery", pattern=NAME)
    address: str | None = Field(default=None, min_length=1)
    ready_seconds: Seconds = 240.0
    lost_seconds: Seconds = 60.0
    local_cpus: float | None = Field(default=None, gt=0, le=4096)
    local_object_store_mib: int = Field(default=256, ge=80, le=1_000_000)
    groups: tuple[Group, ...] = Field(default=(Group(models=(EVERY_OTHER,)),), min_length=1)

    @model_validator(mode="after")
    def _named_once(self) -> "ClusterConfig":
        seen: set[str] = set()
        for model in (model for group in self.groups for model in group.models):
            if model in seen:
                raise ValueError(f"model {model!r} is named twice")
            seen.add(model)
        if self.address is not None and self.local_cpus is not None:
            raise ValueError("local_cpus is for a Ray that is started here; address names another")
        return self

    def names(self, stored: Iterable[str]) -> list[str]:
        """Return which of the stored models are to run, and those named that are not stored."""
        named = [m for group in self.groups for m in group.models if m != EVERY_OTHER]
        rest = [m for m in stored if m not in named] if self._of(EVERY_OTHER) else []
        return [*named, *rest]

    def deployed(self, names: Iterable[str]) -> list[Group]:
        """Return the groups, that of all others with the names that are in no other."""
        named = {model for group in self.groups for model in group.models}
        rest = tuple(name for name in names if name not in named)
        groups = [
            group if group.models != (EVERY_OTHER,) else group.model_copy(update={"models": rest})
            for group in self.groups
        ]
        return [group for group in groups if group.models]

    def alone(self, model: str) -> Group:
        """Return how a model runs by itself: as its group does, or that of all others."""
        group = self._of(model) or self._of(EVERY_OTHER) or Group(models=(model,))
        return group.model_copy(update={"models": (model,)})

    def _of(self, model: str) -> Group | None:
        return next((group for group in self.groups if model in group.models), None)


def read_config(path: Path) -> ClusterConfig:
    """Read a cluster's file.

    Raises:
        SettingError: It can't be read, is no YAML, or a value is not allowed; the message names
            the file, the field and the value.
    """
    import yaml  # late: the command line's --help needs it not

    try:
        content = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise SettingError(f"{path}: it can't be read: {error.strerror}", field="CONFIG") from error
    except yaml.YAMLError as error:
        reason = str(error).replace("\n", " ")
        raise SettingError(f"{path}: it is no YAML: {reason}", field="CONFIG") from error
    if content is None:
        content = {}
    if not isinstance(content, Mapping):
        raise SettingError(f"{path}: it must hold fields, not {shorten(content)}", field="CONFIG")
    try:
        return ClusterConfig.model_validate(content)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # Of a union's alternatives the one that was meant: no mapping was meant as a number.
        first = next(
            (e for e in errors if not (e["loc"][-1:] == ("int",) and _is_mapping(e["input"]))),
            errors[0],
        )
    # The kind that a union was tried as is no part of the file.
    loc = [str(part) for part in first["loc"] if part != "int" and "Scaling" not in str(part)]
    field = ".".join(loc)
    problem = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        problem = f"there is no such field{_hint(str(first['loc'][-1]))}"
        raise SettingError(f"{path}: {field}: {problem}", field=field)
    value = "" if first["type"] == "missing" or not field else f" {shorten(first['input'])}"
    raise SettingError(
        f"{path}: {field or 'the whole'}{value} is not allowed: {problem}",
        field=field or None,
        value=_plain(first["input"]),
    )


def _hint(word: str) -> str:
    known = [*ClusterConfig.model_fields, *Group.model_fields, *Scaling.model_fields]
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) else None
