"""LLM2Comp's checkpoints, made as its trainings wrap and write them, against what they compute."""

import argparse
import copy
import pickle
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from serving import embed
from tiny_memory import K, cut, memory_states, tokenizer_of, write_language_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from condensery.cli import main
from condensery.errors import CorruptModel, StoreError
from condensery.store.importing import import_model
from condensery.store.manifest import StoredModel
from condensery.store.pickles import read_training_state
from condensery.store.refusals import MisshapenTensors, MissingTensors, UnknownTensors
from condensery.store.retriever_options import STATES, RetrieverOptions
from condensery.store.store import ModelStore

ADAPTED = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"]
TEXTS = ["Who built the stone bridge?", "", "The mill stands by the river. " * 40]
TOKENS = 20

# PEFT asks transformers by a name that it gives up.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Already found a `peft_config`"),
]


class Pretext(nn.Module):
    """The first stage: the encoder, and the language model as it was."""

    def __init__(self, encoder: nn.Module, frozen: nn.Module) -> None:
        super().__init__()
        self.model = encoder
        self.origin_model = frozen


class Contrast(nn.Module):
    """The second stage, and the third: the encoder in a wrapper that pools."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.encoder = encoder


def adapt(model: Any, seed: int, rank: int) -> Any:
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.05, target_modules=ADAPTED)
    wrapped = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    return wrapped


def fold(model: Any) -> Any:
    """Merge a model's adapters in place; wrappers stay. Returns the language model in them."""
    for name, part in list(model.named_modules()):
        if isinstance(part, LoraLinear):
            part.merge()
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, part.get_base_layer())
    return next(part for part in model.modules() if hasattr(part, "lm_head"))


class Trained:
    """A training's network after a stage, and what its encoder then is, adapters merged."""

    def __init__(
        self,
        folder: Path,
        stage: int,
        rank: int = 16,
        kind: str = "llama",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.base = write_language_model(folder / "base", kind)
        model: Any = AutoModelForCausalLM.from_pretrained(self.base, attn_implementation="eager")
        model.resize_token_embeddings(model.config.vocab_size + K, mean_resizing=False)
        table = model.get_input_embeddings().weight
        table.data += 0.1 * torch.randn(table.shape, generator=torch.Generator().manual_seed(7))
        frozen = copy.deepcopy(model)
        encoder = adapt(model, 1, rank)
        for number in range(2, stage + 1):
            fold(encoder)
            encoder = adapt(encoder, number, rank)
        # What is written in another dtype has lost what that one can't hold, before and after.
        encoder = encoder.to(dtype).float()
        self.network = Pretext(encoder, frozen) if stage == 1 else Contrast(encoder)
        whole = fold(copy.deepcopy(encoder)).to(dtype).float().eval()
        self.model = next(part for part in whole.modules() if hasattr(part, "norm"))

    def write(self, folder: Path, dtype: torch.dtype = torch.float32, **more: object) -> Path:
        """Write it as DeepSpeed does, which adds objects of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: tensor.to(dtype) for name, tensor in self.network.state_dict().items()}
        state = {
            "module": weights,
            "args": argparse.Namespace(seed=42, dtype=torch.bfloat16),
            "lr_scheduler": {"last": Progress(3), "of": [Progress(1)]},
            "param_shapes": [{"a": torch.Size([2])}],
            "ds_version": "0.14",
            **more,
        }
        torch.save(state, folder / STATES)
        return folder

    def vectors(self) -> Tensor:
        tokenizer = tokenizer_of("llama")
        start = tokenizer.encode("a").ids[0]
        states = memory_states(self.model, cut(tokenizer, start, TEXTS, TOKENS - K))
        return states.mean(1)


class Progress:
    """Something of a trainer's own; what it does when it is unpickled must not be done."""

    done: ClassVar[list[int]] = []

    def __init__(self, step: int) -> None:
        self.step = step

    def __setstate__(self, state: dict[str, int]) -> None:
        self.done.append(state["step"])


def bring(
    tmp_path: Path, folder: Path, base: Path | None, normalize: bool | None = False, **how: Any
) -> StoredModel:
    options = RetrieverOptions(base, **({"max_tokens": TOKENS} | how))
    store = ModelStore(None, tmp_path / "store")
    import_model(store, folder, "comp", normalize=normalize, retriever=options)
    return store.open("comp")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_stage_s_nesting_gives_what_its_training_had(stage: int, tmp_path: Path) -> None:
    trained = Trained(tmp_path, stage)
    prefixes = {
        1: "model.base_model.model.model.layers",
        2: "model.encoder.base_model.model.base_model.model.model.layers",
        3: "model.encoder.base_model.model.base_model.model.base_model.model.model.layers",
    }
    name = f"{prefixes[stage]}.0.mlp.up_proj"
    assert {f"{name}.base_layer.weight", f"{name}.lora_A.default.weight"} <= set(
        trained.network.state_dict()
    )
    stored = bring(tmp_path, trained.write(tmp_path / "made"), trained.base)
    torch.testing.assert_close(
        torch.tensor(embed(stored, TEXTS)), trained.vectors(), atol=1e-5, rtol=0
    )
    assert stored.manifest.shape["memory_tokens"] == K
    assert not any("origin" in note for note in stored.manifest.provenance.notes)
    assert Progress.done == []


def test_bf16_in_a_tagged_folder_with_a_prompt_and_lengths_of_one(tmp_path: Path) -> None:
    trained = Trained(tmp_path, 1, dtype=torch.bfloat16)
    trained.write(tmp_path / "made" / "KL-8tokens", torch.bfloat16)
    (tmp_path / "made" / "latest").write_text("KL-8tokens\n")
    stored = bring(tmp_path, tmp_path / "made", trained.base, None, query_prompt="Query:")
    assert stored.manifest.dtype == "bfloat16"
    assert stored.manifest.prompts == {"query": "Query:", "document": ""}
    got = torch.tensor(embed(stored, TEXTS))
    assert F.cosine_similarity(got, trained.vectors()).min() > 0.999
    torch.testing.assert_close(got.norm(dim=1), torch.ones(3))


def test_adapters_that_were_folded_already_are_no_adapters(tmp_path: Path) -> None:
    trained = Trained(tmp_path, 2)
    fold(trained.network)
    folder = trained.write(tmp_path / "made")
    stored = bring(tmp_path, folder, trained.base)
    torch.testing.assert_close(
        torch.tensor(embed(stored, TEXTS)), trained.vectors(), atol=1e-5, rtol=0
    )


def test_the_command_imports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = Trained(tmp_path, 3)
    folder = trained.write(tmp_path / "made")
    command = ["models", "import", str(folder), "--name", "comp", "--store", str(tmp_path / "own")]
    assert main([*command, "--base", str(trained.base)]) == 0
    assert "comp version 1 (encoder)" in capsys.readouterr().out
    assert main(command) != 0
    assert "--base" in capsys.readouterr().err
    assert main([*command, "--base", str(trained.base), "--pooling", "mean"]) != 0
    assert "--pooling mean does not apply" in capsys.readouterr().err


def change(folder: Path, edit: Any) -> None:
    """Edit the weights of a checkpoint."""
    weights = read_training_state(folder / STATES, "module")
    edit(weights)
    torch.save(
        {"module": {name: tensor.clone() for name, tensor in weights.items()}}, folder / STATES
    )


UP = "model.base_model.model.model.layers.0.mlp.up_proj"
CHANGES: dict[str, tuple[Any, type[Exception], str]] = {
    "missing": (lambda w: w.pop(f"{UP}.base_layer.weight"), MissingTensors,
                r"layers\.0\.mlp\.up_proj\.weight missing"),
    "no factor": (lambda w: w.pop(f"{UP}.lora_B.default.weight"), MisshapenTensors,
                  r"layers\.0\.mlp\.up_proj: \.lora_B is missing"),
    "unknown": (lambda w: w.update({"other.weight": torch.ones(1)}), UnknownTensors,
                r"other\.weight: not of a network"),
    "layer": (lambda w: w.update({f"{UP.replace('0', '9')}.base_layer.weight": torch.ones(48, 32)}),
              UnknownTensors, r"layers\.9\.mlp.*has no such weight"),
    "not finite": (lambda w: w[f"{UP}.base_layer.weight"].fill_(torch.inf), CorruptModel,
                   r"up_proj\.base_layer\.weight: holds values that are not finite"),
    "no table": (lambda w: w.pop("model.base_model.model.model.embed_tokens.weight"),
                 MissingTensors, r"embed_tokens\.weight is missing"),
    "mixed": (lambda w: w.update({UP.replace("base_model.", "base_model.model.base_model."):
                                  torch.ones(1)}), UnknownTensors, r"in \[1, 2\] wrappers"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_weights_that_are_not_the_network_s_are_named(case: str, tmp_path: Path) -> None:
    edit, error, message = CHANGES[case]
    trained = Trained(tmp_path, 1)
    folder = trained.write(tmp_path / "made")
    change(folder, edit)
    with pytest.raises(error, match=rf"^made/{STATES}: .*{message}"):
        bring(tmp_path, folder, trained.base)
    assert not list((tmp_path / "store").glob("*"))


def test_another_base_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = Trained(tmp_path, 1).write(tmp_path / "made")
    other = write_language_model(tmp_path / "other", intermediate_size=40)
    with pytest.raises(MisshapenTensors, match=r"up_proj: .*\(16, 32\) and \(48, 16\).*\(40, 32\)"):
        bring(tmp_path, folder, other)
    small = write_language_model(tmp_path / "small", vocab_size=900)
    with pytest.raises(MisshapenTensors, match=r"rows, and the base small a vocab_size of 900"):
        bring(tmp_path, folder, small)


def test_a_base_without_a_start_token_is_refused(tmp_path: Path) -> None:
    trained = Trained(tmp_path, 1)
    base = write_language_model(tmp_path / "other")
    tokenizer_of("qwen2").save(str(base / "tokenizer.json"))
    with pytest.raises(StoreError, match=r"other/tokenizer\.json: puts no start token"):
        bring(tmp_path, trained.write(tmp_path / "made"), base)


def test_another_rank_has_no_scale_that_is_known(tmp_path: Path) -> None:
    trained = Trained(tmp_path, 1, rank=8)
    with pytest.raises(StoreError, match=r"ranks \[8\]; the scale"):
        bring(tmp_path, trained.write(tmp_path / "made"), trained.base)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_file_that_is_cut_short_is_refused(share: float, tmp_path: Path) -> None:
    trained = Trained(tmp_path, 1)
    folder = trained.write(tmp_path / "made")
    content = (folder / STATES).read_bytes()
    (folder / STATES).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CorruptModel, match=rf"^made/{STATES}: can't be read: it is cut short"):
        bring(tmp_path, folder, trained.base)


class Harm:
    """Writes a file when it is unpickled the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_code_that_a_checkpoint_names_is_not_run(tmp_path: Path) -> None:
    trained = Trained(tmp_path, 1)
    mark = tmp_path / "ran"
    folder = trained.write(tmp_path / "made", harm=[Harm(mark)])
    bring(tmp_path, folder, trained.base)
    assert not mark.exists()
    torch.save({"module": {"model.a": Harm(mark)}}, folder / STATES)
    with pytest.raises(StoreError, match=r"module: 'model\.a' is no tensor by name"):
        read_training_state(folder / STATES, "module")
    assert not mark.exists()
    torch.load(folder / STATES, weights_only=False)  # the usual way does run it
    assert mark.exists()


def test_programs_and_other_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/constants.pkl", pickle.dumps(()))
    with pytest.raises(StoreError, match="TorchScript"):
        read_training_state(path, "module")
    path.write_bytes(pickle.dumps({"module": {}}))
    with pytest.raises(CorruptModel, match="cut short or altered"):
        read_training_state(path, "module")
    torch.save({"other": {"a": torch.ones(1)}}, path)
    with pytest.raises(StoreError, match="no weights under the key 'module'"):
        read_training_state(path, "module")
