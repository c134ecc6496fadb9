"""The network that is trained for a task, from a stored parent, and the parent's own tuning."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from condensery.errors import CorruptModel, InputError
from condensery.methods.trainer.method import whole_state
from condensery.networks.backbone import load_classifier, load_transformer
from condensery.networks.loading import own_name
from condensery.networks.shrp import expert_family
from condensery.networks.weight_files import read_weights
from condensery.store.manifest import StoredModel
from condensery.store.weights import open_folder
from condensery.store.writing import read_json

NEW = ("pooler.",)  # of a classifier's base, what an encoder may be without
KINDS = ("encoder", "classifier", "reranker")


def check_parent(parent: StoredModel) -> dict[str, Any]:
    """Return a parent's configuration, if its layers can be converted.

    Raises:
        InputError: They can't; says why.
    """
    if parent.manifest.kind not in KINDS:
        raise InputError(
            f"model: {parent.name!r} is of kind {parent.manifest.kind!r}, none of "
            f"{', '.join(KINDS)}",
            field="model",
            value=parent.name,
        )
    if parent.manifest.method != "none":
        raise InputError(
            f"model: {parent.name!r} was made by {parent.manifest.method!r}: its layers are no "
            "longer whole",
            field="model",
            value=parent.name,
        )
    config: dict[str, Any] = read_json(parent.path / "config.json")
    return config


def open_network(parent: StoredModel, *, labels: Sequence[str] | None, seed: int) -> nn.Module:
    """Open a parent to train it: a base model, or a classifier; fp32, on the CPU.

    Args:
        parent: An encoder, classifier or reranker.
        labels: Of a classifier that an encoder is to become, with a new head; None: as it is.
        seed: For the head.

    Raises:
        CorruptModel: Its files don't make one, or hold numbers that are not finite; named.
        InputError: Its family can't be converted.
    """
    network = open_stored(parent) if labels is None else _with_head(parent, labels, seed)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CorruptModel(f"{parent.name}: {name}: holds values that are not finite")
    try:
        expert_family(base_of(network))
    except ValueError as error:
        raise InputError(f"model: {parent.name}: {error}", field="model") from error
    return network.train()


def open_stored(stored: StoredModel) -> nn.Module:
    """Open a stored encoder's base model, or a classifier, as transformers has it; fp32.

    Raises:
        CorruptModel: Its files don't make one.
    """
    load = load_transformer if stored.manifest.kind == "encoder" else load_classifier
    return load(open_folder(stored))


def base_of(network: nn.Module) -> PreTrainedModel:
    """Return the base model of a classifier, and a base model itself."""
    return cast(PreTrainedModel, cast(Any, network).base_model)


def _with_head(parent: StoredModel, labels: Sequence[str], seed: int) -> nn.Module:
    config = AutoConfig.from_pretrained(parent.path, local_files_only=True, trust_remote_code=False)
    config.update(label_config(labels))
    torch.manual_seed(seed)
    network = AutoModelForSequenceClassification.from_config(
        config, trust_remote_code=False
    ).float()
    base = base_of(network)
    state = base.state_dict()
    missing = set(state)
    with torch.no_grad():
        for name, tensor in read_weights(open_folder(parent)):
            own = own_name(name, base)
            if own in state and state[own].shape == tensor.shape:
                state[own].copy_(tensor)
                missing.discard(own)
    if wrong := sorted(name for name in missing if not name.startswith(NEW)):
        raise CorruptModel(f"{parent.name}: weights are missing: {', '.join(wrong[:5])}")
    return cast(nn.Module, network)


def label_config(labels: Sequence[str]) -> dict[str, Any]:
    """Return what a classifier's configuration says of its labels."""
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {name: number for number, name in enumerate(labels)},
        "problem_type": "single_label_classification",
    }


def stored_config(network: nn.Module) -> dict[str, Any]:
    """Return the keys that a trained network's configuration has beside its parent's.

    Those of a classifier are its own; an encoder has none.
    """
    config: Any = network.config
    if network is base_of(network):
        return {}
    return {
        "architectures": [type(network).__name__],
        "id2label": {str(number): name for number, name in config.id2label.items()},
        "label2id": dict(config.label2id),
        "problem_type": config.problem_type,
    }


def freeze_embeddings(network: nn.Module) -> None:
    """Keep embeddings as they are: the parent's, with which they are then shared."""
    base_of(network).get_submodule("embeddings").requires_grad_(False)


def stored_weights(network: nn.Module) -> dict[str, Tensor]:
    """Return a network's weights on the CPU, as they were trained; of two names the first."""
    return {name: value.cpu() for name, value in whole_state(network).items()}
