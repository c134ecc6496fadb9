"""No code or pickle of a model's directory is run, whoever opens it and whatever they answer."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("service", "benchmarks", "examples", "loadtests")
OPENING = ("from_pretrained", "from_config")


def faults(tree: ast.AST) -> Iterator[str]:
    """Name each of transformers' loaders in a module that may ask to run code, or unpickle."""
    given = {
        id(node.func): {
            keyword.arg: keyword.value.value
            for keyword in node.keywords
            if isinstance(keyword.value, ast.Constant)
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and node.attr in OPENING):
            continue
        loader = ast.unparse(node.value).rpartition(".")[2]
        options = given.get(id(node), {})  # not called: as good as none
        # Left out, it is None: on a terminal transformers asks, and takes "y" from a pipe too.
        if loader.startswith("Auto") and options.get("trust_remote_code") is not False:
            yield f"line {node.lineno}: {loader}.{node.attr} without trust_remote_code=False"
        network = "Model" in loader or "For" in loader
        if (
            network
            and node.attr == "from_pretrained"
            and options.get("use_safetensors") is not True
        ):
            yield f"line {node.lineno}: {loader}.{node.attr} without use_safetensors=True"


def test_every_loader_of_transformers_is_told_to_run_no_code() -> None:
    modules = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {
        path.relative_to(ROOT).as_posix(): told
        for path in modules
        if (told := list(faults(ast.parse(path.read_bytes()))))
    }
    assert len(modules) > 100
    assert found == {}


def test_a_loader_that_is_not_told_so_is_found() -> None:
    lines = (
        "AutoConfig.from_pretrained(path, local_files_only=True)",
        "AutoModel.from_config(config, trust_remote_code=None)",
        "transformers.AutoTokenizer.from_pretrained(path, **options)",
        "open_model = AutoModelForCausalLM.from_pretrained",
        "BertModel.from_pretrained(path)",
        "AutoModel.from_pretrained(path, trust_remote_code=False, use_safetensors=True)",
        "DecoderShape.from_config(values)",
    )
    found = faults(ast.parse("\n".join(lines)))
    assert sorted(fault.partition(":")[0] for fault in found) == [
        *("line 1", "line 2", "line 3", "line 4", "line 4", "line 5"),
    ]
