"""A pair's generator as a directory for another server: what its own code would say."""

from pathlib import Path

import pytest
import torch
from command_line import run
from tiny_published import Cocom, write_base
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_server import vllm_server

from condensery.errors import InputError, StoreError
from condensery.question import CompressedPassage
from condensery.runtime.generator_server import GeneratorServerConfig
from condensery.runtime.registry import ModelRegistry
from condensery.store.exporting import export_generator
from condensery.store.importing import import_model
from condensery.store.manifest import StoredModel
from condensery.store.pair_options import PairOptions
from condensery.store.store import ModelStore

QUESTION = "How long is the river?"
PASSAGES = ["The mill stands by the river.", "It is 1,200 kilometres long; the bread market."]
# Of the published forms: a compressor of its own, of the decoder's first layers, of its weights.
# All have adapters.
KINDS = {"small": ("wide", "llama"), "trimmed": ("mistral",) * 2, "shared": ("mistral",) * 2}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bases")
    return {
        "mistral": write_base(root / "mistral", "mistral", seed=1),
        "llama": write_base(root / "llama", "llama", seed=3),
        "wide": write_base(root / "wide", "mistral", seed=4, hidden_size=64),
    }


def imported(published: Cocom, store: ModelStore) -> StoredModel:
    return import_model(store, published.path, "published", pair=PairOptions())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_published_pair_whose_generator_is_on_a_server_says_what_its_own_code_says(
    bases: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    decoder, compressor = KINDS[kind]
    published = Cocom(tmp_path / "naver", (bases[decoder], bases[compressor]), kind)
    store = ModelStore(None, tmp_path / "store")
    directory = tmp_path / "generator"
    assert export_generator(imported(published, store), directory, "float32") == torch.float32
    with vllm_server(directory, "published") as server:
        models = ModelRegistry.load(
            store,
            device=torch.device("cpu"),
            dtype=torch.float32,
            workers=1,
            generator_servers={"published": GeneratorServerConfig(server.url)},
        )
        try:
            pair = models.pair()
            await pair.warm_up()
            assert pair.unready is None
            results = await pair.compress(QUESTION, PASSAGES)
            memory = [item.memory for item in results if isinstance(item, CompressedPassage)]
            tokens = [token.id async for token in pair.generate(QUESTION, memory, max_tokens=24)]
        finally:
            models.close()
    wanted = published.answer(
        published.embed(QUESTION, published.compress(QUESTION, PASSAGES, 192)), 24
    )
    assert tokens == wanted
    assert len(set(tokens)) > 1


def test_it_is_written_by_the_command_in_the_dtype_it_is_stored_in(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    published = Cocom(tmp_path / "naver", (bases["wide"], bases["llama"]), "small")
    stored = imported(published, ModelStore(None, tmp_path / "store"))
    directory = tmp_path / "generator"
    where = ("--store", str(tmp_path / "store"), "--data-dir", str(tmp_path / "data"))
    ended = run("models", "generator", "published", str(directory), *where)
    assert f"the generator of published in {stored.manifest.dtype}" in ended.stdout
    assert f"--served-model-name {stored.name} --enable-prompt-embeds" in ended.stderr
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert str(model.dtype) == f"torch.{stored.manifest.dtype}"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer("the river").input_ids
    assert (
        "holds something"
        in run("models", "generator", "published", str(directory), *where, status=1).stderr
    )


def test_what_is_no_pair_of_language_models_is_refused(
    store_with_pair: Path, tmp_path: Path
) -> None:
    store = ModelStore(None, store_with_pair)
    for name in ("oscar-mini", "minilm-l6"):
        with pytest.raises(InputError, match=f"{name} has no generator"):
            export_generator(store.open(name), tmp_path / name)
        assert not (tmp_path / name).exists()


def test_a_folder_that_can_not_be_written_is_told(bases: dict[str, Path], tmp_path: Path) -> None:
    published = Cocom(tmp_path / "naver", (bases["wide"], bases["llama"]), "small")
    stored = imported(published, ModelStore(None, tmp_path / "store"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="was not written"):
        export_generator(stored, tmp_path / "file" / "below")
