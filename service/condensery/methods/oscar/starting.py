"""What a pair starts from: an encoder, and perhaps a language model or another pair."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from condensery.errors import InputError
from condensery.methods.oscar.prefixes import PREFIXED
from condensery.methods.trainer.checkpoints import latest
from condensery.methods.trainer.texts import open_tokenizer
from condensery.networks.attention import PACKED
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_generator import TwoWayGenerator
from condensery.networks.oscar_shape import OscarShape
from condensery.networks.pointers import SpanHead, SpanPointer

State = dict[str, Tensor]
COMMAND = "command.txt"  # of a run: the command lines that made it, the first first
DATA = "data.json"  # of a run or a published pair: the sets it read, with their counts
GENERATOR = "generator."
# A span head's end logits compete with each other; read as odds to stop they are too high. Of 0, 3,
# 4 and 5 less, 4 answered best before any training (EM 17, 26, 34, 29 of 80 to 150 questions).
END_OFFSET = 4.0
NEEDED = (
    *("model_type", "hidden_size", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads"),
)


def new_pair(base: Path, shape: OscarShape) -> OscarPair:
    """Build a pair whose compressor is the encoder at ``base`` and whose generator is random."""
    encoder = BertModel.from_pretrained(
        base,
        add_pooling_layer=False,
        local_files_only=True,
        use_safetensors=True,
        dtype=torch.float32,
    )
    words = encoder.embeddings.word_embeddings.weight.detach()
    pair = empty_pair(encoder.config, shape, words)
    pair.compressor.backbone.load_state_dict(encoder.state_dict())
    pair.compressor.backbone.embeddings.word_embeddings.weight.requires_grad_(False)
    nn.init.normal_(pair.compressor.slots.weight, std=encoder.config.initializer_range)
    return pair


def empty_pair(config: BertConfig, shape: OscarShape, words: Tensor) -> OscarPair:
    """Build a pair with random weights that reads packed input, to train it."""
    config.attention_probs_dropout_prob = config.hidden_dropout_prob = 0.0  # crops vary enough
    pair = OscarPair(config, shape, words)
    # As when it serves: nothing is padded, which took a third of a step.
    pair.compressor.backbone.set_attn_implementation(PACKED)
    pair.generator.backbone.set_attn_implementation(PREFIXED if shape.two_way else PACKED)
    return pair


def language_model_shape(folder: Path) -> dict[str, int]:
    """Return the fields of ``OscarShape`` that a language model decides.

    Raises:
        InputError: Its ``config.json`` can't be read.
    """
    return _sizes(_config(folder))


def encoder_shape(folder: Path) -> dict[str, int]:
    """Return the fields of ``OscarShape`` that are an encoder's where the generator is two-way.

    Raises:
        InputError: Its ``config.json`` can't be read.
    """
    return _sizes(_config(folder, "base"))


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    return {
        "generator_layers": config["num_hidden_layers"],
        "generator_heads": config["num_attention_heads"],
        "generator_mlp_size": config["intermediate_size"],
    }


def start_two_way(pair: OscarPair, separator: int) -> None:
    """Give a two-way generator what the compressor has, so that it can read.

    As many of its first layers; positions, token types and the first norm; and the scale and mean
    of the words, which it reads standardised.

    Args:
        pair: With its compressor's weights.
        separator: The word that separates question and passage for the compressor.

    Raises:
        InputError: It has more layers than the compressor, or of another size or number of heads.
    """
    generator, backbone = pair.generator, pair.compressor.backbone
    assert isinstance(generator, TwoWayGenerator)
    own = generator.backbone.state_dict()
    theirs = backbone.state_dict()
    odd = [n for n in own if n not in theirs or theirs[n].shape != own[n].shape]
    if odd:
        raise InputError(
            f"two_way: its layers are not the encoder's: {_differing(odd, own, theirs)}",
            field="two_way",
        )
    heads, wanted = (m.config.num_attention_heads for m in (generator.backbone, backbone))
    if heads != wanted:
        raise InputError(
            f"generator_heads={heads}: the encoder's layers, which a two-way generator starts "
            f"from, have {wanted}",
            field="generator_heads",
            value=heads,
        )
    generator.backbone.load_state_dict({n: theirs[n] for n in own})
    given = backbone.embeddings
    words = given.word_embeddings.weight.detach().float()
    with torch.no_grad():
        generator.positions.weight.copy_(given.position_embeddings.weight)
        generator.kinds.weight.copy_(given.token_type_embeddings.weight)
        generator.norm.load_state_dict(given.LayerNorm.state_dict())
        generator.word_mean.copy_(words.mean(0))
        generator.word_scale.copy_((words - words.mean(0)).pow(2).mean(-1).sqrt().mean())
        generator.separator.copy_(generator.words[separator])


def start_generator(pair: OscarPair, folder: Path, tokenizer: Tokenizer) -> None:
    """Give the generator the weights of a Llama over the pair's own word table.

    Its logits are then the Llama's: the projection is the identity, the scale 1, the bias 0.

    Args:
        pair: As ``new_pair`` made it.
        folder: What ``condensery train lm --words`` wrote: its weights, config and tokenizer.
        tokenizer: The pair's.

    Raises:
        InputError: It is of another architecture or shape, reads other word pieces, or has
            another table of words; names what differs.
    """
    _check_config(_config(folder), pair)
    if open_tokenizer(folder).get_vocab() != tokenizer.get_vocab():
        raise _refused(folder, "its tokenizer has other word pieces than the encoder's")
    weights = _read(folder)
    generator = pair.generator
    table = weights.pop("model.embed_tokens.weight", None)
    head = weights.pop("lm_head.weight", table)
    if table is None or head is None or table.shape != generator.words.shape:
        shape = "none" if table is None else tuple(table.shape)
        raise _refused(folder, f"its words are {shape}, the pair's {tuple(generator.words.shape)}")
    for name, its in (("embed_tokens", table), ("lm_head", head)):
        if rows := _far(its, generator.words):
            raise _refused(
                folder, f"{rows} of {len(its)} rows of {name} are not the encoder's, standardised"
            )
    state = {name.removeprefix("model."): value for name, value in weights.items()}
    _load(generator.backbone, state, folder)
    with torch.no_grad():
        nn.init.eye_(generator.output.weight)
        generator.output_bias.zero_()
        generator.output_scale.fill_(1.0)


def start_encoder(pair: OscarPair, folders: Sequence[Path], share: float = 1.0) -> None:
    """Give the compressor the layers of extractive readers over the same words: their mean.

    Readers that started alike end near each other, and their mean reads better than each (Wortsman
    et al., arXiv:2203.05482); so does that of a pair that started from a reader, and the reader. A
    pointer that walks, or scores bounds, takes their span heads as well; another leaves them aside.

    Args:
        pair: As ``new_pair`` made it, or with another pair's weights.
        folders: What ``condensery train extractive-reader`` wrote.
        share: Of the readers in each weight; the rest is what the pair has.

    Raises:
        InputError: One holds no such layers, or has other words; names what differs.
    """
    states = [_reader_layers(pair, folder) for folder in folders]
    own = pair.compressor.state_dict()
    mean = _mean(states)
    mixed = {n: (1 - share) * own[n].float() + share * mean[n] for n in mean}
    pair.compressor.load_state_dict({n: t.to(own[n].dtype) for n, t in mixed.items()}, strict=False)


def _reader_layers(pair: OscarPair, folder: Path) -> State:
    """Return a reader's layers, and its span head for a pointer with one, by the pair's names."""
    backbone, words = pair.compressor.backbone, "embeddings.word_embeddings.weight"
    own = backbone.state_dict()
    weights = _read(folder, "reader")
    state = {n.removeprefix("bert."): t for n, t in weights.items()}
    odd = [n for n in own if n not in state or state[n].shape != own[n].shape]
    if odd:
        differing = _differing(odd, own, state)
        raise _refused(folder, f"not the encoder's layers: {differing}", "reader")
    if far := _far(state[words], own[words]):
        raise _refused(folder, f"{far} of {len(own[words])} words are not the encoder's", "reader")
    layers = {f"backbone.{n}": state[n] for n in own if n != words}
    if isinstance(pointer := pair.compressor.pointer, SpanHead):
        for name, value in pointer.span.state_dict().items():
            head = weights.get(f"qa_outputs.{name}")
            if head is None or head.shape != value.shape:
                raise _refused(folder, f"no span head: qa_outputs.{name}", "reader")
            layers[f"pointer.span.{name}"] = head
        if isinstance(pointer, SpanPointer):
            layers["pointer.span.bias"] = layers["pointer.span.bias"] - torch.tensor(
                [0.0, END_OFFSET]
            )
    return layers


def start_only_generator(pair: OscarPair, state: Mapping[str, Tensor], name: str) -> None:
    """Give the pair the generator of another, and nothing else.

    Args:
        pair: As ``new_pair`` made it.
        state: The other pair's own weights.
        name: What a message calls it.

    Raises:
        InputError: The generator is of another shape; names the tensors.
    """
    own = {n: t for n, t in pair.own_state().items() if n.startswith(GENERATOR)}
    wanted = {n: t for n, t in state.items() if n.startswith(GENERATOR)}
    odd = sorted(own.keys() ^ wanted.keys())
    odd += [n for n in own if n in wanted and wanted[n].shape != own[n].shape]
    if odd:
        differing = _differing(odd, own, wanted)
        raise InputError(
            f"start_generator: {name}: another generator: {differing}",
            field="start_generator",
            value=name,
        )
    pair.load_state_dict(wanted, strict=False)


def start_from(pair: OscarPair, state: Mapping[str, Tensor], name: str) -> bool:
    """Give the pair the compressor of another, and its generator if that is of the same shape.

    Args:
        pair: As ``new_pair`` made it.
        state: The other pair's own weights.
        name: What a message calls it.

    Returns:
        Whether the generator was taken too.

    Raises:
        InputError: The compressor is of another shape; names the tensors.
    """
    own = pair.own_state()
    odd = [n for n in own if n not in state or state[n].shape != own[n].shape]
    wrong = [n for n in odd if n.startswith("compressor.")]
    if wrong:
        differing = _differing(wrong, own, state)
        raise InputError(
            f"start: {name}: another compressor: {differing}", field="start", value=name
        )
    same = not odd and set(state) == set(own)
    taken = {n: state[n] for n in own if same or n.startswith("compressor.")}
    pair.load_state_dict(taken, strict=False)
    return same


def mean_of(states: Sequence[State]) -> State:
    """Return the mean of runs' weights, each tensor in the dtype of the first run's.

    Runs that began alike and saw other batches end near each other, and their mean is better than
    each (Wortsman et al., arXiv:2203.05482).

    Raises:
        InputError: They are of different pairs; names the tensors.
    """
    _check_alike(states)
    return {n: value.to(states[0][n].dtype) for n, value in _mean(states).items()}


def between(first: State, second: State, share: float) -> State:
    """Return what lies between two pairs' weights, ``share`` of the way to the second.

    Of a pair and what further training made of it, this keeps most of what was learnt and most of
    what was known (Wortsman et al., arXiv:2109.01903).

    Raises:
        InputError: They are of different pairs; names the tensors.
    """
    _check_alike((first, second))
    mixed = {n: (1 - share) * t.float() + share * second[n].float() for n, t in first.items()}
    return {n: t.to(first[n].dtype) for n, t in mixed.items()}


def _check_alike(states: Sequence[State]) -> None:
    first, *others = states
    for other in others:
        odd = [n for n in {**first, **other} if _size(first.get(n)) != _size(other.get(n))]
        if odd:
            differing = _differing(odd, first, other)
            raise InputError(f"start: runs of different pairs: {differing}", field="start")


def _mean(states: Sequence[State]) -> State:
    """Return the mean of states of the same names and shapes, in fp32."""
    return {n: torch.stack([state[n].float() for state in states]).mean(0) for n in states[0]}


def run_weights(path: Path) -> State:
    """Return the weights of a run's last checkpoint, or of a safetensors file.

    Raises:
        InputError: There are none that can be read.
    """
    checkpoint = latest(path) if path.is_dir() else None
    try:
        return checkpoint.weights() if checkpoint else _tensors(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"start: {path} is neither a run with a checkpoint nor weights: {error}",
            field="start",
            value=str(path),
        ) from error


@dataclass(frozen=True, slots=True)
class Past:
    """What went into weights before: the command lines that made them, and what data.json says."""

    commands: tuple[str, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, commands: str) -> "Past":
        """Read it, of a run or a stored pair; a folder without ``data.json`` read nothing.

        Raises:
            InputError: ``data.json`` can't be read, or is no JSON object.
        """
        lines = tuple(line for line in commands.splitlines() if line.strip())
        text = _read_text(folder / DATA)
        try:
            data = {} if text is None else json.loads(text)
        except ValueError as error:
            raise _unreadable(folder / DATA, error) from error
        if not isinstance(data, dict):
            raise _unreadable(folder / DATA, "is no object")
        return cls(lines, data)

    @classmethod
    def of_run(cls, folder: Path) -> "Past":
        """Read it of a run; of what is no run there is none.

        Raises:
            InputError: A file of it can't be read.
        """
        return cls.of(folder, _read_text(folder / COMMAND) or "")

    def then(self, commands: Sequence[str], data: Mapping[str, Any]) -> "Past":
        """Return this with what came later.

        Of a set that was read twice the later counts stand, unless its file was another one: then
        the earlier ones stay, as ``<set>-before``.
        """
        earlier, later = self.data.get("sources", {}), data.get("sources", {})
        sources = dict(later)
        for name, counts in earlier.items():
            same = name in later and counts.get("sha256") == later[name].get("sha256")
            kept = name
            while not same and kept in sources:
                kept += "-before"
            sources.setdefault(kept, counts)
        merged = {**self.data, **data} | ({"sources": sources} if sources else {})
        return Past(tuple(dict.fromkeys((*self.commands, *commands))), merged)


def _read_text(file: Path) -> str | None:
    """Return what a file of a run says; None where there is none."""
    try:
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, why: object) -> InputError:
    folder = file.parent.name
    return InputError(f"start: {folder}/{file.name}: {why}", field="start", value=folder)


def _tensors(path: Path) -> State:
    tensors: State = load_file(path)
    return tensors


def _differing(
    names: Sequence[str], own: Mapping[str, Tensor], others: Mapping[str, Tensor]
) -> str:
    """Say of the first few tensors how those given differ from a pair's own."""
    return ", ".join(
        f"{n} {_size(others.get(n))}, not {_size(own[n])}" if n in own else f"{n} is unknown"
        for n in names[:5]
    )


def _size(tensor: Tensor | None) -> str:
    return "is missing" if tensor is None else str(tuple(tensor.shape))


def _config(folder: Path, field: str = "language_model") -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        missing = [name for name in NEEDED if name not in config]
    except (OSError, ValueError) as error:
        raise _refused(folder, f"config.json: {error}", field) from error
    if missing:
        raise _refused(folder, f"config.json has no {', '.join(missing)}", field)
    return config


def _check_config(config: Mapping[str, Any], pair: OscarPair) -> None:
    """Refuse a model whose layers are not the generator's."""
    own = pair.generator.backbone.config
    rope = config.get("rope_parameters") or config
    layers = {
        "model_type": config["model_type"],
        "hidden_size": config["hidden_size"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": config["num_attention_heads"],
        "num_key_value_heads": config.get("num_key_value_heads", config["num_attention_heads"]),
        "intermediate_size": config["intermediate_size"],
        "hidden_act": config.get("hidden_act", "silu"),
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "attention_bias": config.get("attention_bias", False),
        "mlp_bias": config.get("mlp_bias", False),
        "rope_theta": float(rope.get("rope_theta") or 10_000.0),
        "rope_type": rope.get("rope_type") or "default",
    }
    wanted = {
        **{name: getattr(own, name) for name in layers if hasattr(own, name)},
        "rope_theta": 10_000.0,
        "rope_type": "default",
    }
    odd = [f"{n}={value!r}, not {wanted[n]!r}" for n, value in layers.items() if value != wanted[n]]
    if odd:
        raise InputError(
            f"language_model: not the generator's layers: {', '.join(odd)}",
            field="language_model",
            value=odd[0],
        )


def _far(rows: Tensor, others: Tensor) -> int:
    """Count the rows that differ by more than rounding to the types they were trained in."""
    far = (rows.float() - others.float()).abs() > 0.02 * (1 + rows.float().abs())
    return int(far.any(dim=1).sum())


def _read(folder: Path, field: str = "language_model") -> State:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise _refused(folder, "holds no safetensors", field)
    weights: State = {}
    for path in files:
        try:
            weights |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise _refused(folder, f"{path.name}: {error}", field) from error
    return weights


def _load(backbone: nn.Module, state: State, folder: Path) -> None:
    own = backbone.state_dict()
    odd = sorted(own.keys() ^ state.keys())
    odd += [n for n in own if n in state and own[n].shape != state[n].shape]
    if odd:
        raise _refused(folder, f"missing, unknown or of another shape: {odd[:5]}")
    backbone.load_state_dict(state)


def _refused(folder: Path, why: str, field: str = "language_model") -> InputError:
    return InputError(f"{field}: {folder}: {why}", field=field, value=str(folder))
