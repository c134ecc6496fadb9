import threading
from typing import Any

import pytest

from condensery.errors import ModelNotFound, ReportNotFound
from condensery.jobs.models import read_model_card, read_model_plot, read_model_report


async def test_report_card_and_plot_are_read_beside_the_loop(
    services: Any, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    measured = registry.measurements("pair")
    for name in ("report", "card", "plot"):
        method = getattr(measured, name)

        def noted(*args: str, method: Any = method) -> Any:
            threads.append(threading.current_thread())
            return method(*args)

        monkeypatch.setattr(measured, name, noted)
    monkeypatch.setattr(registry, "measurements", lambda name: measured)
    assert (await read_model_report(services, "pair")).plots == ("cost",)
    assert (await read_model_card(services, "pair")).startswith("# pair")
    assert await read_model_plot(services, "pair", "cost") == b"\x89PNG of cost"
    assert len(threads) >= 3  # a plot looks at the report first
    assert threading.main_thread() not in threads


async def test_what_there_is_not_is_told_apart(services: Any) -> None:
    with pytest.raises(ModelNotFound):
        await read_model_report(services, "nobody")
    for part in (read_model_report(services, "words"), read_model_plot(services, "pair", "nope")):
        with pytest.raises(ReportNotFound):
            await part
