"""What every job refuses, by field and value, before anything is tokenised."""

from collections.abc import Collection, Sequence

from condensery.errors import EmptyInput, InputError, PayloadTooLarge, shorten


def check_count(items: Sequence[object], field: str, limit: int) -> None:
    """Refuse a list that is empty or has over ``limit`` items."""
    if not items:
        raise EmptyInput(f"{field}: the list is empty; it must hold 1 to {limit}.", field=field)
    if len(items) > limit:
        raise PayloadTooLarge(
            f"{field}: {len(items)} items, over the limit of {limit} in one request.",
            field=field,
            value=len(items),
        )


def check_text(text: str, field: str, max_chars: int) -> None:
    """Refuse a text that is far too long, or is not Unicode text.

    Args:
        text: May be empty.
        field: Its name in messages.
        max_chars: Characters over which it is not worth tokenising, only to be cut.
    """
    if len(text) > max_chars:
        raise InputError(
            f"{field}: {len(text)} characters, over the limit of {max_chars}; it begins "
            f"{shorten(text, 40)}.",
            field=field,
            value=len(text),
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{field}: the character at {error.start} is half of a surrogate pair: "
                f"{shorten(text[error.start])}.",
                field=field,
                value=text[error.start],
            ) from error


def check_texts(texts: Sequence[str], field: str, max_chars: int) -> None:
    """Check each text of a list; the one at fault is named by its place."""
    for place, text in enumerate(texts):
        if len(text) > max_chars or not text.isascii():
            check_text(text, f"{field}[{place}]", max_chars)


def check_range(value: int, field: str, low: int, high: int) -> None:
    """Refuse a whole number out of ``low`` to ``high``, both allowed."""
    if not low <= value <= high:
        raise InputError(
            f"{field}: {value} is not a whole number from {low} to {high}.",
            field=field,
            value=value,
        )


def check_choice(value: str, field: str, allowed: Collection[str]) -> None:
    """Refuse a word that is not among ``allowed``."""
    if value not in allowed:
        raise InputError(
            f"{field}: {shorten(value)} is not one of {', '.join(allowed)}.",
            field=field,
            value=value,
        )
