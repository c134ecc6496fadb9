"""The page that ``oscar_gpu.py`` writes: our figures beside the paper's."""

from typing import Any

PEAK_BATCH = 32  # the paper's, for memory
# Table 5, Mistral-7B: milliseconds a question at batch 256, GB at batch 32.
PAPER = {
    "plain": (141.6, 0.0, 24.3),
    "OSCAR-llama": (33.0, 17.1, 16.2),
    "OSCAR-5-Layers": (33.0, 18.0, 16.2),
    "OSCAR-8-Layers": (33.0, 28.8, 16.2),
}
PAGE = """# OSCAR's own setting on a GPU

A question of {question} tokens, {passages} passages of {passage}, {answer} tokens out.

On {device} beside {machine}, {dtype}, random weights{tiny}.
Milliseconds a question, medians of {rounds} rounds; the paper's figures are of its Table 5 (Hugging
Face, batch 256, its GPU not named in the table).

{tables}

## Memory

GB at batch {peak_batch}, weights, cache and activations.

{memory}

- "Bound" is the FLOPs (`networks/accounting.py`, attention scores included) at the
  {peak:.3g} TFLOP/s that this device reaches in one large matrix product; "share" is the bound over
  the time.
- "Speed-up" is against plain; "of FLOPs" is that over the ratio of FLOPs.
- The paper's figures have no question in the compressor's input: compare them with the rows that
  leave it out.
- Steps of single tokens ran as {graphs} captured graphs at the largest batch.
- {versions}. Made on {date} by `{command}`; all rounds are in `oscar_gpu.json`.
"""


def render(cells: list[dict[str, Any]], batch: int, peak: float) -> str:
    """Write a batch's table."""
    mine = [cell for cell in cells if cell["batch"] == batch]
    plain = mine[0]
    whole = plain["tflops_compress"] + plain["tflops_generate"]
    lines = [f"## Batch {batch}", ""]
    lines.append(
        "| | question | compress | generate | total | paper's total | bound | share | speed-up "
        "| paper's | of FLOPs |"
    )
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
    for cell in mine:
        teras = cell["tflops_compress"] + cell["tflops_generate"]
        bound = 1e15 * teras / peak
        generating, compressing, _ = PAPER[cell["name"]]
        paper = generating + compressing
        speed = plain["total_ms"] / cell["total_ms"]
        known = batch == 256 and (cell is plain or not cell["question"])
        printed = f"{paper:.1f}" if known else "-"
        gained = f"{sum(PAPER['plain'][:2]) / paper:.1f}" if known else "-"
        asked = "-" if cell is plain else "read" if cell["question"] else "left out"
        lines.append(
            f"| {cell['name']} | {asked} | {cell['compress_ms']:.2f} | {cell['generate_ms']:.2f} "
            f"| {cell['total_ms']:.2f} | {printed} | {bound:.2f} | {bound / cell['total_ms']:.0%} "
            f"| {speed:.2f} | {gained} | {speed * teras / whole:.0%} |"
        )
    return "\n".join(lines)


def render_memory(cells: list[dict[str, Any]]) -> str:
    """Write what memory was taken at its batch."""
    lines = ["| | question | ours | paper's |", "|---|---|---|---|"]
    for cell in cells:
        if cell["batch"] == PEAK_BATCH:
            asked = "-" if cell["name"] == "plain" else "read" if cell["question"] else "left out"
            lines.append(
                f"| {cell['name']} | {asked} | {cell['peak_gb']:.1f} | {PAPER[cell['name']][2]} |"
            )
    return "\n".join(lines)
