from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.methods.distil.conftest import CHAT, NO_SYSTEM, write_teacher
from tiny_causal import TEXT, bpe
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from condensery.errors import InputError
from condensery.methods.distil.teacher import SYSTEM, Teacher, TeacherAnswer, fingerprint

WORDS = TEXT.split()
ASKED: list[tuple[str, list[str]]] = [
    ("Who built the bridge?", [" ".join(WORDS[:n]), " ".join(WORDS[n : 3 * n])])
    for n in (2, 20, 5, 11, 3, 14, 8)
]


def opened(path: Path, **settings: Any) -> Teacher:
    return Teacher.open(path, device=torch.device("cpu"), dtype=torch.float32, **settings)


def prompt(kind: str, template: str | None, question: str, passages: Sequence[str]) -> str:
    """Write out what is read."""
    user = "Background:\n" + "\n".join(passages) + f"\n\nQuestion:{question}"
    if template == CHAT:
        return (
            f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
    if template == NO_SYSTEM:
        return f"<s>[INST] {SYSTEM}\n{user} [/INST]"
    return {"llama": "<|begin_of_text|>"}.get(kind, "") + f"{SYSTEM}\n\n{user}\nAnswer:"


class Alone:
    """transformers' own greedy answers, one prompt at a time."""

    def __init__(self, path: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.model.generation_config.repetition_penalty = None
        self.tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))

    def __call__(self, text: str, stop: Sequence[int], count: int) -> tuple[list[int], bool]:
        ids = torch.tensor([self.tokenizer.encode(text, add_special_tokens=False).ids])
        with torch.inference_mode():
            generated = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                temperature=None,
                max_new_tokens=count,
                eos_token_id=list(stop),
                pad_token_id=0,
            )[0, ids.shape[1] :].tolist()
        end = next((i for i, token in enumerate(generated) if token in stop), None)
        return generated[:end], end is not None


@pytest.mark.parametrize(
    ("kind", "template"),
    [("llama", None), ("qwen2", CHAT), ("mistral", NO_SYSTEM)],
)
def test_a_batch_answers_as_generate_does_alone(
    tmp_path: Path, kind: str, template: str | None
) -> None:
    stop = list(range(1, 320, 7))
    path = write_teacher(tmp_path, kind, template=template, stop=stop)
    alone = Alone(path)
    teacher = opened(path, max_tokens=12, batch=3)
    answers = teacher.answer(ASKED)
    ends = set()
    for (question, passages), answer in zip(ASKED, answers, strict=True):
        tokens, finished = alone(prompt(kind, template, question, passages), stop, 12)
        text = alone.tokenizer.decode(tokens, skip_special_tokens=True).lstrip()
        if template is None and "\n" in text:
            text, finished = text.partition("\n")[0], True
        else:
            assert answer.tokens == len(tokens)
        assert (answer.text, answer.finished) == (text.rstrip(), finished)
        ends.add(finished)
    assert ends == {True, False}
    assert len({answer.text for answer in answers}) > 3


def test_without_a_template_an_answer_ends_with_its_line(tmp_path: Path) -> None:
    plain = opened(write_teacher(tmp_path / "a", "llama", template=None), max_tokens=8)
    (before,) = plain.answer(ASKED[:1])
    assert not before.finished
    token = bpe("llama").encode(before.text, add_special_tokens=False).ids[-1]
    line = bpe("llama").token_to_id("Ċ")

    def say_line(model: Any) -> None:  # wherever it would have said that token
        model.lm_head.weight.data[line] = 1.01 * model.lm_head.weight.data[token]

    changed = opened(
        write_teacher(tmp_path / "b", "llama", template=None, change=say_line), max_tokens=8
    )
    (after, other) = changed.answer(ASKED[:2])
    assert after.finished
    assert after.text
    assert before.text.startswith(after.text)
    assert "\n" not in after.text
    chat = opened(
        write_teacher(tmp_path / "c", "llama", template=CHAT, change=say_line), max_tokens=8
    )
    assert not any(answer.finished for answer in chat.answer(ASKED))
    assert other.tokens <= 8


@pytest.mark.parametrize("stop", [0, 1])
def test_special_tokens_alone_are_no_answer(tmp_path: Path, stop: int) -> None:
    def say_the_first(model: Any) -> None:  # all scores are alike: token 0, <unk>, wins
        model.lm_head.weight.data.zero_()

    path = write_teacher(tmp_path, "mistral", template=NO_SYSTEM, stop=stop, change=say_the_first)
    expected = (
        TeacherAnswer("", 0, finished=True) if stop == 0 else TeacherAnswer("", 5, finished=False)
    )
    assert opened(path, max_tokens=5).answer(ASKED) == [expected] * len(ASKED)


def test_a_prompt_that_does_not_fit_is_not_asked(tmp_path: Path) -> None:
    path = write_teacher(tmp_path, max_position_embeddings=300)
    teacher = opened(path, max_tokens=4, batch=2)
    asked = [ASKED[0], ("Who?", [TEXT] * 5), ASKED[0]]
    first, long, last = teacher.answer(asked)
    assert long == TeacherAnswer("", 0, fits=False)
    assert first == last
    assert first.fits
    assert teacher.answer([]) == []


def test_the_longest_prompt_that_fits_is_asked(tmp_path: Path) -> None:
    text = prompt("qwen2", CHAT, *ASKED[1])
    size = len(bpe("qwen2").encode(text).ids)
    for room, fits in ((size + 4, True), (size + 3, False)):
        path = write_teacher(tmp_path / str(room), max_position_embeddings=room)
        (answer,) = opened(path, max_tokens=4).answer([ASKED[1]])
        assert answer.fits is fits


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    path = write_teacher(tmp_path)
    bpe("qwen2").save(str(path / "tokenizer.json"))
    small = write_teacher(tmp_path / "small", "mistral", template=NO_SYSTEM)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (small / name).write_bytes((path / name).read_bytes())
    with pytest.raises(InputError, match=r"its tokenizer is another model's: .* embeddings of"):
        opened(small)


def test_an_added_token_without_an_embedding_is_refused_where_it_is_read(tmp_path: Path) -> None:
    path = write_teacher(tmp_path)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(path / "tokenizer.json"))
    teacher = opened(path, max_tokens=2)
    assert len(teacher.answer(ASKED[:1])) == 1
    with pytest.raises(InputError, match="'<pad>' is token"):
        teacher.answer([("Who <pad> built it?", ["The miller."])])


def test_what_is_no_teacher_is_refused_by_its_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"teacher: .*none: it has no config\.json"):
        opened(tmp_path / "none")
    path = write_teacher(tmp_path / "whole")
    weights = load_file(path / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "layers.2.mlp.up" not in k}, path / "model.safetensors"
    )
    with pytest.raises(InputError, match=r"weights are missing: model\.layers\.2\.mlp\.up_proj"):
        opened(path)
    torch.save(weights, path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"teacher: .*safetensors"):
        opened(path)
    (path / "config.json").write_text('{"model_type": "bert", "vocab_size": 9}')
    with pytest.raises(InputError, match="teacher: "):
        opened(path)


def test_a_template_that_fails_is_named(tmp_path: Path) -> None:
    path = write_teacher(tmp_path, template="{{ raise_exception('never') }}")
    with pytest.raises(InputError, match="its chat template fails: never"):
        opened(path)


def test_a_fingerprint_is_of_all_files(tmp_path: Path) -> None:
    path = write_teacher(tmp_path)
    before = fingerprint(path)
    assert before == fingerprint(path)
    (path / "chat_template.jinja").write_text("another")
    assert fingerprint(path) != before
