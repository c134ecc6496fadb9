"""A tokenizer from its file, for methods that cut and pad by themselves."""

from pathlib import Path

from tokenizers import Tokenizer

from condensery.errors import InputError


def open_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json``, or the folder's that holds one, without truncation or padding.

    Raises:
        InputError: There is none that can be read.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"tokenizer: {file}: {error}", field="tokenizer") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
