"""What the command lines of all methods have: where to run, models, a recipe's fields as flags."""

import argparse
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from condensery.errors import InputError
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.processes import joined, own_device
from condensery.runtime.device import choose_device, choose_dtype, tune_allocator

if TYPE_CHECKING:  # the store needs pydantic, which is absent where runs are only trained
    from condensery.store.manifest import StoredModel
    from condensery.store.store import ModelStore

T = TypeVar("T")


def add_machine(
    parser: argparse.ArgumentParser, *, dtype: str = "auto", every: int | None = None
) -> None:
    """Add ``--device``, ``--dtype`` and ``--threads``, and ``--every`` of what trains.

    Args:
        parser: To add them to.
        dtype: The default.
        every: Steps between checkpoints, by default; None adds no flag.
    """
    parser.add_argument("--device", default="auto", help="cpu, cuda (auto)")
    parser.add_argument("--dtype", default=dtype, help=f"float32, bfloat16 ({dtype})")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    if every is not None:
        parser.add_argument(
            "--every", type=int, default=every, help=f"steps between checkpoints ({every})"
        )


def begin(args: argparse.Namespace) -> torch.device:
    """Prepare the process as ``add_machine``'s flags say, and return its device.

    Raises:
        SettingError: There is no such device.
    """
    torch.set_num_threads(args.threads)
    tune_allocator()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    return own_device(choose_device(args.device))


@contextmanager
def open_setup(args: argparse.Namespace, command: str) -> Iterator[TrainingSetup]:
    """Prepare the process as ``add_machine``'s flags say, and join those started beside it.

    Args:
        args: The flags, ``--every`` among them.
        command: The command line, for the card.

    Raises:
        SettingError: There is no such device or dtype.
    """
    device = begin(args)
    dtype = choose_dtype(device, args.dtype)
    with joined(device) as processes:
        yield TrainingSetup(device, dtype, args.every, command, processes)


def open_model(store: "ModelStore", name: str, kind: str, field: str = "model") -> "StoredModel":
    """Open the stored model that a flag names.

    Raises:
        ModelNotFound: The store has no such model.
        InputError: It is of another kind; names the flag.
    """
    stored = store.open(name)
    if stored.manifest.kind != kind:
        raise InputError(
            f"{field}: {name!r} is of kind {stored.manifest.kind!r}, not {kind!r}",
            field=field,
            value=name,
        )
    return stored


def add_fields(
    parser: argparse._ActionsContainer,  # a parser, or a group of one
    values: object,
    choices: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Add a flag for each field of a dataclass with plain defaults."""
    add_flags(parser, asdict(values), choices)  # type: ignore[call-overload]  # any dataclass
    parser.set_defaults(**asdict(values))  # type: ignore[call-overload]


def add_flags(
    parser: argparse._ActionsContainer,
    defaults: Mapping[str, Any],
    choices: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Add a flag for each name; one that is not given stays None, to tell that it is not."""
    for name, default in defaults.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=f"({default})")
        else:
            kind = float if default is None else type(default)
            allowed = (choices or {}).get(name)
            parser.add_argument(flag, type=kind, choices=allowed, help=f"({default})")


def given_flags(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return those of ``add_flags``'s flags that were given."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def read_fields(args: argparse.Namespace, kind: type[T]) -> T:
    """Build the dataclass whose fields ``add_fields`` added."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # any dataclass
    values: dict[str, Any] = {name: getattr(args, name) for name in names}
    return kind(**values)
