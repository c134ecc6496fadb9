"""How a new pair's halves are addressed; published pairs' prompts are read from their files."""

from tokenizers import Tokenizer

from condensery.errors import StoreError
from condensery.networks.oscar_causal_shape import Layout
from condensery.store.cocom import USER
from condensery.store.language_models import ChatPrompt, LanguageModel
from condensery.store.published_pairs import SYSTEM

AUTOENCODE, SEPARATOR = "<AE>", "<SEP>"
LAYOUT = ("auto", "pair", "joined", "lines")


def compressor_layout(asked: str, tokenizer: Tokenizer, *, own_layers: bool) -> Layout:
    """Return how question and passage stand in the compressor's text.

    As in the published pairs: first layers read ``joined``, other models ``pair``, if their
    tokenizer puts anything between two texts; where it does not, question and passage would run
    into each other.
    """
    if asked == "pair":
        return "pair"
    if asked == "lines":
        return "lines"
    if asked == "auto" and not own_layers and tokenizer.num_special_tokens_to_add(is_pair=True):
        return "pair"
    return "joined"


def generator_prompt(base: LanguageModel, asked: str) -> ChatPrompt:
    """Return the texts around passages and question.

    ``chat`` is the prompt of published pairs, in the base's own template (OSCAR, figure 14);
    ``plain`` is for bases that have none and were never told to be an assistant.

    Raises:
        StoreError: ``chat`` is asked for, and there is no template that holds it.
    """
    if asked != "plain":
        try:
            return base.prompt(SYSTEM, USER)
        except StoreError:
            if asked == "chat":
                raise
    try:
        start = base.special("bos_token")
    except StoreError:  # some have none
        start = ""
    return ChatPrompt(f"{start}Background:\n", "\n\nQuestion: ", "\nAnswer:\n", strip=True)
