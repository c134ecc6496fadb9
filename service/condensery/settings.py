"""Settings, read once from the command line and the environment."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from condensery.errors import SettingError, shorten

PREFIX = "CONDENSERY_"


def default_data_dir() -> Path:
    """Return where a user's data goes on this platform: ``$XDG_DATA_HOME/condensery``."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "condensery"


class Settings(BaseSettings):
    """How the server runs. Each field is ``--name`` on the command line too."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid"
    )

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="REST port; 0 takes a free one.")
    grpc_port: int = Field(
        default=8081, ge=0, le=65535, description="gRPC port; 0 takes a free one."
    )
    data_dir: Path = Field(
        default_factory=default_data_dir, description="Where indexes and own models live."
    )
    store: Path | None = Field(
        default=None, description="Own model store; by default <data-dir>/models."
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, or cuda:<number>.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="What models compute in."
    )
    workers: int = Field(
        default=0, ge=0, le=1024, description="Threads for forward passes; 0 is one a core."
    )
    max_body_bytes: int = Field(
        default=8 * 2**20, ge=1024, le=2**30, description="Longest request, REST and gRPC."
    )
    max_items: int = Field(
        default=2048, ge=1, le=1_000_000, description="Most texts in one request."
    )
    samples: bool = Field(default=True, description="Make the sample index on first start.")
    grace_seconds: float = Field(
        default=10.0, ge=0, le=3600, description="For requests in flight, at shutdown."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )

    @property
    def own_store(self) -> Path:
        """The root that imported and own models go to."""
        return self.store or self.data_dir / "models"


def read_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Read the environment, and over it the command line.

    Args:
        flags: Fields by name; None is a flag that was not given.

    Raises:
        SettingError: A value is not allowed; the message names the setting, where it was set, the
            value and what is allowed.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        name = name.lower().removeprefix(PREFIX.lower())
        flag = f"--{name.replace('_', '-')}"
        source = flag if name in given else f"{PREFIX}{name.upper()}"
        raise SettingError(
            f"{source}: {shorten(first['input'])} is not allowed. {first['msg']}.",
            field=name,
            value=first["input"],
        ) from error
