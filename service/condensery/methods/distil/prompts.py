"""What a teacher reads: passages and a question, in its own chat template if it has one.

Sources: OSCAR, arXiv:2504.07109, Figure 14, and the code of the published checkpoints
(``modelling_pisco.py``), which differ by a word and a blank; these are the latter's texts.
"""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from condensery.errors import InputError

SYSTEM = (
    "You are a helpful assistant. Your task is to extract relevant information from provided "
    "documents and to answer to questions as briefly as possible."
)


def user_text(question: str, passages: Sequence[str]) -> str:
    """Return what the user says; each passage is a paragraph of one line."""
    background = "\n".join(" ".join(passage.split()) for passage in passages)
    return f"Background:\n{background}\n\nQuestion:{question.strip()}"


class Prompts:
    """Makes prompts for one tokenizer.

    With a chat template: the system's text and the user's, which go into one turn where the
    template refuses a system. Without: both, then ``Answer:``, plain, with the tokenizer's own
    special tokens around; an answer then ends with its line.

    Args:
        tokenizer: transformers' own.

    Raises:
        InputError: The template fails.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.is_chat = bool(tokenizer.chat_template)
        self._alone = False
        if self.is_chat:
            try:
                self._render(user_text("?", ["."]))
            except TemplateError:
                self._alone = True
                try:
                    self._render(user_text("?", ["."]))
                except TemplateError as error:
                    raise InputError(f"teacher: its chat template fails: {error}") from error

    def text(self, question: str, passages: Sequence[str]) -> str:
        """Return a prompt as text."""
        user = user_text(question, passages)
        return self._render(user) if self.is_chat else f"{SYSTEM}\n\n{user}\nAnswer:"

    def ids(self, question: str, passages: Sequence[str]) -> list[int]:
        """Return a prompt's token ids."""
        found: list[int] = self._tokenizer(
            self.text(question, passages), add_special_tokens=not self.is_chat, verbose=False
        )["input_ids"]
        return found

    def _render(self, user: str) -> str:
        turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
        if self._alone:
            turns = [{"role": "user", "content": f"{SYSTEM}\n{user}"}]
        # Of models that think first, only the answer is wanted; other templates ignore it.
        return str(
            self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        )
