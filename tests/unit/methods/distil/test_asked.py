"""Questions that a language model writes: what is taken of them, and the whole command."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.methods.distil.conftest import jsonl, write_teacher
from tiny_causal import bpe
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from condensery.errors import InputError
from condensery.methods.distil.asked import (
    SHOWN,
    SYSTEM,
    lines_of,
    main,
    questions_in,
    request,
)
from condensery.methods.distil.teacher import Teacher, TeacherAnswer
from condensery.methods.trainer.questions import Rules, read_questions
from condensery.networks.quantised import product_of

PASSAGE = "To keep the old mill, give `--mill` or set mill_size to 64."
PASSAGES = [PASSAGE, "The bread market by the river was named in 1912."]
REPLIES = [
    "Q: Which flag keeps the old mill?\nA: `--mill`\nQ: How large is the mill then?\nA: 64.",
    "Q: When was the market named?\nA: in the spring",
]


@pytest.mark.parametrize(
    ("reply", "taken"),
    [
        ("Q: Which flag keeps the mill?\nA: `--mill`.", [("Which flag keeps the mill?", "--mill")]),
        ("Q1: What keeps it as it is?\n\nA1: --mill", [("What keeps it as it is?", "--mill")]),
        ("**Q:** What is mill_size set to?\n**A:** 64", [("What is mill_size set to?", "64")]),
        ("Q: What is the size of it?\nA: 6", [("What is the size of it?", None)]),  # part of 64
        ("Q: What is the size of it?\nA: sixty-four", [("What is the size of it?", None)]),
        ("Q: Is --mill what keeps the mill?\nA: --mill", []),  # says its answer
        ("Q: Keep the old mill here.\nA: --mill", []),
        ("Q: Which flag?\nA: --mill", []),
        ("Q: How do I keep the mill?\nA: --mill\nQ: how do i keep the mill?\nA: 64", ["first"]),
        ("Q: How do I keep the mill?\nA: ", []),
        ("Q: How do I keep the mill?", []),
        (SHOWN.partition("\n\nQ:")[1] + SHOWN.partition("\n\nQ:")[2], []),  # what it was shown
    ],
)
def test_what_is_taken_of_what_a_model_writes(reply: str, taken: list[Any]) -> None:
    rows = list(questions_in(reply, PASSAGE))
    if taken == ["first"]:
        taken = [("How do I keep the mill?", "--mill")]
    assert [row["question"] for row in rows] == [question for question, _ in taken]
    for row, (_, answer) in zip(rows, taken, strict=True):
        if answer is None:
            assert row == {"question": row["question"], "passages": [PASSAGE], "gold": [0]}
        else:
            assert (row["answers"], row["context"]) == ([answer], PASSAGE)


def learnt(folder: Path) -> Path:
    """Write a small language model that has learnt by heart what to write of two passages."""
    path = write_teacher(
        folder, stop=bpe("qwen2").token_to_id("<|im_end|>"), hidden_size=64, num_hidden_layers=2
    )
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    torch.manual_seed(0)
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.08)
    tokenizer = bpe("qwen2")
    texts, targets = [], []
    for passage, reply in zip(PASSAGES, REPLIES, strict=True):
        said = (
            f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
            f"{request(passage, 6)}<|im_end|>\n<|im_start|>assistant\n"
        )
        ids = tokenizer.encode(f"{said}{reply}<|im_end|>", add_special_tokens=False).ids
        texts.append(torch.tensor([ids]))
        targets.append(len(tokenizer.encode(said, add_special_tokens=False).ids))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        total = torch.zeros(())
        for ids, first in zip(texts, targets, strict=True):
            logits = model(input_ids=ids).logits[0, first - 1 : -1]
            total = total + F.cross_entropy(logits, ids[0, first:])
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        if total.item() < 0.01:
            break
    assert total.item() < 0.1
    model.save_pretrained(path)
    return path


@pytest.mark.usefixtures("one_thread")
def test_a_model_writes_questions_that_the_trainer_reads(tmp_path: Path) -> None:
    teacher = learnt(tmp_path / "model")
    rows = [{"text": PASSAGES[0], "title": "mill"}, {"context": PASSAGES[1]}, {"text": PASSAGES[0]}]
    passages = jsonl(tmp_path / "passages.jsonl", rows)
    out = tmp_path / "asked" / "rows.jsonl"
    flags = ["--teacher", str(teacher), "--passages", str(passages), "--of-passage", "6"]
    flags += ["--device", "cpu", "--dtype", "float32", "--threads", "1", "--out", str(out)]
    main(flags)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    asked = [(row["question"], row.get("answers"), row.get("title")) for row in written]
    assert asked == [
        ("Which flag keeps the old mill?", ["--mill"], "mill"),
        ("How large is the mill then?", ["64"], "mill"),
        ("When was the market named?", None, None),
    ]
    about = json.loads((tmp_path / "asked" / "rows.jsonl.about.json").read_text())
    assert about["figures"] == {"passages": 2, "with an answer": 2, "to rank": 1}
    questions, left_out = read_questions([out], Rules(ranked=True))
    assert (len(questions), left_out) == (3, {})
    assert [question.label for question in questions] == ["--mill", "64", ""]

    # Killed after the first passage, in the middle of the second's line: the same rows.
    before = out.read_bytes()
    partial = out.with_name("rows.jsonl.partial")
    lines = [{"rows": written[:2]}, {"rows": written[2:]}]
    partial.write_bytes(json.dumps(lines[0]).encode() + b"\n" + json.dumps(lines[1]).encode()[:9])
    out.unlink()
    main([*flags, "--batch", "1"])
    assert out.read_bytes() == before
    assert not partial.exists()
    with pytest.raises(InputError, match="of_passage"):
        main([*flags[:4], "--of-passage", "1", *flags[6:]])


def test_what_is_of_no_use_is_refused_by_name(tmp_path: Path) -> None:
    passages = jsonl(tmp_path / "passages.jsonl", [{"text": PASSAGE}])
    chat = write_teacher(tmp_path / "chat")
    plain = write_teacher(tmp_path / "plain", "llama", template=None)

    def run(teacher: Path, *flags: str) -> None:
        out = str(tmp_path / "out.jsonl")
        main(["--teacher", str(teacher), "--passages", str(passages), "--out", out, *flags])

    with pytest.raises(InputError, match=r"of_passage=7: must be from 1 to 6"):
        run(chat, "--of-passage", "7")
    with pytest.raises(InputError, match=r"limit=0: must be from 1"):
        run(chat, "--limit", "0")
    with pytest.raises(InputError, match="teacher: it has no chat template"):
        run(plain)
    with pytest.raises(InputError, match="wrote no question of 1 passages"):
        run(chat)
    jsonl(passages, [{"words": PASSAGE}])
    with pytest.raises(InputError, match=r"passages\.jsonl.* text: None is no text"):
        run(chat)


def test_a_teachers_larger_matrices_are_rounded_on_a_cpu(tmp_path: Path) -> None:
    path = write_teacher(tmp_path, hidden_size=512, num_hidden_layers=1)
    cpu = torch.device("cpu")
    exact = Teacher.open(path, device=cpu, dtype=torch.float32, max_tokens=4)
    rounded = Teacher.open(path, device=cpu, dtype=torch.float32, max_tokens=4, weights="int8")
    kinds = {type(part) for part in rounded._model.modules()}
    assert product_of("int8") in kinds
    assert product_of("int8") not in {type(part) for part in exact._model.modules()}
    asked = [("Who?", [PASSAGE])]
    assert rounded.answer(asked)[0].tokens == exact.answer(asked)[0].tokens
    with pytest.raises(InputError, match="weights=int8"):
        Teacher.open(path, device=torch.device("meta"), dtype=torch.float32, weights="int8")


def test_the_last_line_of_a_reply_without_an_end_is_no_answer() -> None:
    cut = "Q: What does --mill keep?\nA: the old mill\nQ: What is mill_size set to?\nA: 64"
    replies = [
        TeacherAnswer(cut, 20),
        TeacherAnswer(cut, 20, finished=False),
        TeacherAnswer("", 0, fits=False),
    ]
    lines = lines_of([(PASSAGE, "")] * 3, replies)
    assert [len(line["rows"]) for line in lines] == [2, 1, 0]


def test_all_prompts_begin_alike() -> None:
    first, second = (request(passage, 3) for passage in PASSAGES)
    assert first.replace(PASSAGES[0], PASSAGES[1]) == second
    assert first.endswith(PASSAGES[0])
