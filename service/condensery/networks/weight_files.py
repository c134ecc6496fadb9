"""A model's weights as files hold them: plain, int8, and those that another model's files hold.

What is neither quantised nor cast stays mapped from its file (copied on write), so that a model
too large for the memory can still be read piece by piece.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from condensery.errors import CorruptModel

SCALE = ".scale"
INT8 = "I8"  # as safetensors calls it
WORDS = ("word_embeddings.weight", "embed_tokens.weight")  # how names of word tables end


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A directory in transformers' layout, and the base that has what is not in it.

    Attributes:
        path: The directory, with ``config.json``.
        name: For messages.
        files: Its weight files; none: those that transformers would look for.
        base: The base's directory.
        from_base: Names of weights that are the base's, each with its name there.
        words: Name of the weight that is the base's word embeddings, standardised; "": none is.
    """

    path: Path
    name: str
    files: tuple[Path, ...] = ()
    base: "ModelFolder | None" = None
    from_base: Mapping[str, str] = field(default_factory=dict)
    words: str = ""

    @classmethod
    def of(cls, model: "Path | ModelFolder") -> "ModelFolder":
        """Return a directory that has all of its weights itself."""
        return model if isinstance(model, ModelFolder) else cls(model, model.name)

    @property
    def plain(self) -> bool:
        """Whether transformers itself could read it: all of its weights are there, none is int8.

        Raises:
            CorruptModel: There is no file, or one can't be read.
        """
        if self.from_base or self.words:
            return False
        with ExitStack() as stack:
            places = _places(self, stack)
            return not any(place.is_int8(name) for name, place in places.items())


def weight_files(path: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a directory: the whole one, or all shards.

    Raises:
        CorruptModel: There is none.
    """
    whole = path / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(path.glob("model-*.safetensors"))
    if not files:
        raise CorruptModel(f"{path.name}: holds no model.safetensors")
    return tuple(files)


def read_weights(
    model: Path | ModelFolder, wanted: Callable[[str], bool] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors one at a time, by their names in its files; the base's last.

    Args:
        model: Its directory.
        wanted: Tells which names to read; None is all.

    Yields:
        Names and tensors on the CPU, as stored; int8 ones are float32, their scales used up.

    Raises:
        CorruptModel: A file can't be read, a name is there twice, a scale does not fit its tensor,
            or the base lacks a tensor; named.
    """
    folder = ModelFolder.of(model)
    with ExitStack() as stack:
        places = _places(folder, stack)
        for name in places:
            owner = name.removesuffix(SCALE)
            if owner != name and owner in places and places[owner].is_int8(owner):
                continue
            if wanted is None or wanted(name):
                yield name, _restored(folder.name, name, places)
    names = {own: base for own, base in folder.from_base.items() if wanted is None or wanted(own)}
    if twice := sorted(set(folder.from_base) & set(places)):
        raise CorruptModel(f"{folder.name}: {twice[0]} is there, and said to be its base's")
    if names and folder.base is not None:
        yield from _read_base(folder, names, folder.base)
    if folder.words and (wanted is None or wanted(folder.words)):
        yield folder.words, _read_words(folder)


def _read_base(
    folder: ModelFolder, names: Mapping[str, str], base: ModelFolder
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that are the base's, by the model's own names.

    Raises:
        CorruptModel: The base lacks one.
    """
    own = {theirs: mine for mine, theirs in names.items()}
    for name, tensor in read_weights(base, own.__contains__):
        yield own.pop(name), tensor
    if own:
        raise CorruptModel(f"{folder.name}: its base {base.name} has no {min(own)}")


def _read_words(folder: ModelFolder) -> Tensor:
    """Return the word embeddings of a model's base, standardised.

    Raises:
        CorruptModel: The base has none.
    """
    # Late: it takes transformers, and few models share their base's words.
    from condensery.networks.oscar_generator import standardised

    assert folder.base is not None
    for _, tensor in read_weights(folder.base, lambda name: name.endswith(WORDS)):
        return standardised(tensor)
    raise CorruptModel(f"{folder.name}: its base {folder.base.name} has no word embeddings")


def check_finite(model: Path | ModelFolder) -> None:
    """Read all weights of a model once.

    Raises:
        CorruptModel: One holds NaN or infinity; the first is named.
    """
    folder = ModelFolder.of(model)
    for name, tensor in read_weights(folder):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CorruptModel(f"{folder.name}: {name}: holds values that are not finite")


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each output row symmetrically to int8: ``scale = absmax / 127``.

    Each weight comes back within half a scale.

    Args:
        weight: (outputs, inputs), any float dtype, finite.

    Returns:
        The int8 weight, (outputs, inputs), and its float32 scale, (outputs,).
    """
    scale = (weight.double().abs().amax(dim=1) / 127).float()
    scale[scale == 0] = 1.0  # an empty row: any scale restores its zeros
    rounded = (weight.double() / scale.double()[:, None]).round().clamp(-127, 127)
    return rounded.to(torch.int8), scale


def dequantise(weight: Tensor, scale: Tensor) -> Tensor:
    """Undo ``quantise``, in float32: (outputs, inputs) int8 and (outputs,) to (outputs, inputs)."""
    return weight.float() * scale.float()[:, None]


def tell_tensor(tensor: Tensor) -> str:
    """Return a tensor's dtype and shape, for messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


class _Place(NamedTuple):
    """The open file that holds a tensor; safetensors' type has no stubs."""

    shard: Any

    def is_int8(self, name: str) -> bool:
        return bool(self.shard.get_slice(name).get_dtype() == INT8)


def _places(folder: ModelFolder, stack: ExitStack) -> dict[str, _Place]:
    """Open a folder's files until the stack closes; returns where each name is.

    Raises:
        CorruptModel: A file can't be read, or a name is there twice.
    """
    places: dict[str, _Place] = {}
    for path in folder.files or weight_files(folder.path):
        try:
            shard = stack.enter_context(safe_open(path, framework="pt"))
        except SafetensorError as error:
            raise CorruptModel(f"{folder.name}/{path.name}: {error}") from error
        for name in shard.keys():  # noqa: SIM118  # a shard can be iterated in no other way
            if name in places:
                raise CorruptModel(f"{folder.name}: {path.name}: {name} is there twice")
            places[name] = _Place(shard)
    return places


def _restored(model: str, name: str, places: Mapping[str, _Place]) -> Tensor:
    tensor: Tensor = places[name].shard.get_tensor(name)
    if tensor.dtype != torch.int8 or name + SCALE not in places:
        return tensor
    scale: Tensor = places[name + SCALE].shard.get_tensor(name + SCALE)
    if tensor.ndim != 2 or scale.shape != tensor.shape[:1]:
        raise CorruptModel(
            f"{model}: {name}{SCALE}: {tell_tensor(scale)} is no scale for {tell_tensor(tensor)}"
        )
    return dequantise(tensor, scale)
