import json
import subprocess
import sys
from pathlib import Path

import pytest

from condensery.cli import main


def test_the_papers_table_shows_its_figures_beside_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cost", "oscar", "--paper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (llama,) = (ln.split() for ln in lines if ln.startswith("Mistral-7B") and "OSCAR-llama" in ln)
    assert llama[2:14] == [
        *("3.49", "3.484", "-0.2%", "3.500"),
        *("2.66", "2.655", "-0.2%", "5.251"),
        *("6.15", "6.139", "-0.2%", "8.752"),
    ]
    assert llama[14:] == ["3.3", "2.4"]  # the paper prints 3.3x
    for name in ("Mistral-7B", "Llama-1B", "Qwen2-7B", "Mistral-24B"):
        assert any(line.startswith(name) and " none " in line for line in lines)
    assert "26.55" in lines[-1]


def test_the_table_as_json_has_flops_of_both_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "oscar", "--paper", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert len(records) == 12
    last = records[-1]
    assert (last["generator"], last["compressor"]) == ("Mistral-24B", "OSCAR-llama")
    assert last["total"]["paper"] == 13.37e12
    assert last["total"]["as_counted"] == pytest.approx(13.37e12, rel=1e-3)
    assert last["total"]["true"] > last["total"]["as_counted"]


def test_effirs_table_shows_the_papers_counts_beside_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cost", "effir", "--paper"]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["Mistral-7B", "drop 16 MLP, width -30%", "3.4", "3.45", "48.5%"] in rows
    assert ["LLaMA2-7B", "drop 28 MLP", "2.8", "2.82", "42.7%"] in rows
    assert main(["cost", "effir", "--paper", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert len(records) == 17
    assert records[0]["ours"] == 7_110_660_096
    assert all(round(record["ours"] / 1e9, 1) == record["paper"] / 1e9 for record in records)


def test_shrps_columns_are_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "shrp", "--paper"]) == 0
    assert "6 of 12" in capsys.readouterr().out
    assert main(["cost", "shrp", "--paper", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["converted"] for record in records] == [2, 4, 6, 8, 10, 11]
    for record in records:
        parameters, flops = record["parameters_gone"], record["flops_left"]
        assert round(parameters["ours"], 1) == parameters["paper"]
        assert round(flops["as_counted"], 2) == flops["paper"]
        # 4 products of a head for the paper's 5; of the scores each layer has a twelfth left
        assert flops["true"] < flops["as_counted"]


def test_a_memory_encoder_costs_k_tokens_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["cost", "llm2comp", "--paper", "--memory-tokens", "1", "8"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["8", "6,607,376,384"] in [row[:2] for row in rows]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**sizes, "intermediate_size": 48, "vocab_size": 50}))
    command = ["cost", "llm2comp", "--config", str(config), "--memory-tokens", "4", "--json"]
    assert main(command) == 0
    [record] = json.loads(capsys.readouterr().out)
    layer = 4 * 32 * 32 + 3 * 32 * 48
    assert record["parameters"] == 2 * (layer + 2 * 32) + 54 * 32 + 32
    unread = 2 * 16 * 3 * 32 * 48
    assert record["flops"]["16"] == 2 * 20 * 2 * layer + 2 * 4 * 32 * 20**2 - unread
    assert main([*command, "--memory-tokens", "0"]) != 0
    assert "memory_tokens must be a positive integer, not 0" in capsys.readouterr().err
    config.write_text("{")
    assert main(command) != 0
    assert "config.json" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["oscar", "effir", "shrp", "llm2comp"])
def test_the_table_needs_no_torch(method: str) -> None:
    code = (
        "import sys; from condensery.cli import main\n"
        f"main(['cost', '{method}', '--paper'])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
