"""What a pair is and can't, in words, from its manifest's shape."""

from typing import Any

from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape
from condensery.networks.oscar_shape import BertShape, OscarShape
from condensery.store.manifest import Manifest


def what_it_is(manifest: Manifest) -> list[str]:
    """Say what a pair is: how it reads, what it becomes, how large it is."""
    parameters = manifest.cost.get("parameters")
    size = f"{parameters / 1e6:.1f} million" if isinstance(parameters, int) else "unknown"
    base = f"; it shares files with `{manifest.base}`" if manifest.base else ""
    return [
        "A pair that answers questions from compressed passages (OSCAR, arXiv:2504.07109).",
        *_halves(dict(manifest.shape), manifest.base),
        f"Parameters of its own: {size}, stored as {manifest.dtype}{base}.",
    ]


def _halves(shape: dict[str, Any], base: str | None) -> list[str]:
    if "family" in shape:
        causal = CausalShape.from_dict(shape)
        kind = _CAUSAL[causal.family, getattr(causal.compressor, "shared", False)]
        compressor, generator = causal.compressor, "is a causal language model"
        positions = causal.generator.positions
        copies = ""
    else:
        own = OscarShape.from_dict(shape)
        kind = f"The compressor, started from {base}," if base else "The compressor"
        compressor, generator = own, f"has {own.generator_layers} layers"
        positions = own.generator_positions
        copies = ""
        if own.copy:
            what = "the words of its likeliest answer" if own.sharp else "a mix of its words"
            copies = f"A vector also carries what a pointer found in the passage, {what}"
    lines = [f"{kind} {_compresses(compressor)}"]
    if copies:
        lines.append(f"{copies}: it leans to copying.")
    lines.append(
        f"The generator {generator} and reads up to {positions} positions, answer included."
    )
    return lines


_CAUSAL = {
    ("causal", True): "The compressor, the generator with adapters of its own,",
    ("causal", False): "The compressor, a causal language model,",
    ("bert-causal", False): "The compressor, an encoder of BERT's size,",
}


def _compresses(shape: BertShape | CompressorShape) -> str:
    question = not isinstance(shape, CompressorShape) or shape.question
    most, *fewer = shape.vectors
    also = f" ({' or '.join(map(str, fewer))} on request)" if fewer else ""
    tokens = (
        f"up to {shape.passage_tokens} tokens"
        if isinstance(shape, BertShape)
        else f"up to {shape.text_tokens} tokens in all"
    )
    scores = " and a relevance score, in one forward pass" if shape.rerank else ""
    asked = "a question with a passage" if question else "a passage"
    return (
        f"turns {asked} of {tokens} into {most} vectors{also}{scores}; longer passages are windows."
    )


def what_it_cannot(manifest: Manifest) -> list[str]:
    """Say what a pair can't, whatever its figures are."""
    shape = dict(manifest.shape)
    small = OscarShape.from_dict(shape) if "family" not in shape else None
    query = (small or CausalShape.from_dict(shape).compressor).query_tokens
    lines = [f"A question of over {query} tokens leaves less of a window to the passage."]
    if small is not None and small.copy:
        lines.append(
            "Its words are its base encoder's, and it leans to copying those of the passages: "
            "long, composed or yes/no answers are not to be expected."
        )
    return lines
