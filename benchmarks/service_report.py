"""The service benchmark's table, with what one must know to read it."""

from typing import Any

PAGE = """# Single queries over REST

Closed loop, one short question a request, `POST /embed`, {cores} cores of {cpu}, loopback. Medians
of {rounds} rounds of {seconds:g} s, the two servers interleaved; the range over the rounds in
brackets.

| clients | condensery req/s | p50 / p95 ms | naive req/s | p50 / p95 ms | ratio | foreign cores |
|---|---|---|---|---|---|---|
{rows}

- The naive server is `benchmarks/naive_server.py`: FastAPI with a sync endpoint, fp32,
  sentence-transformers' default `encode`, one uvicorn worker. Both servers run in the environment
  as it is, so with the thread counts that their libraries choose.
- Vectors agree: least cosine {cosine:.5f} over {texts} texts, in the same run.
- Foreign cores: what other processes of the machine used meanwhile, without the load generator; the
  more, the less the figures say.
- The load generator, `benchmarks/load_generator.py`, does {generator:,} req/s against a server that
  does nothing.
- {versions}, Python {python}.
- Made on {date} by `{command}`; each round is in `service.json`.
"""


def render(report: dict[str, Any]) -> str:
    machine = report["machine"]
    return PAGE.format(
        cores=machine["cores"],
        cpu=machine["cpu"],
        python=machine["python"],
        rounds=report["rounds"],
        seconds=report["seconds"],
        rows="\n".join(render_row(row) for row in report["results"]),
        cosine=report["least_cosine"],
        texts=report["texts_compared"],
        generator=report["generator"]["requests_per_second"],
        versions=", ".join(f"{name} {number}" for name, number in report["versions"].items()),
        date=report["date"],
        command=report["command"],
    )


def render_row(row: dict[str, Any]) -> str:
    ours, naive = row["condensery"], row["naive"]
    cells = [
        str(row["concurrency"]),
        *render_cell(ours),
        *render_cell(naive),
        f"{row['ratio']:.1f}x",
        f"{max(ours['foreign_cores'], naive['foreign_cores']):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def render_cell(cell: dict[str, Any]) -> tuple[str, str]:
    rate = f"{cell['requests_per_second']:.0f} ({cell['lowest']:.0f}-{cell['highest']:.0f})"
    return rate, f"{cell['p50_ms']:.1f} / {cell['p95_ms']:.1f}"
