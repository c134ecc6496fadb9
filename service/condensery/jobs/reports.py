"""How good a running model was measured to be: its report, its card, its plots.

All raise ModelNotFound where no such model runs, ReportNotFound where it was never measured or
the part is not there, and CorruptModel where a file is not the one that was published.
"""

import asyncio

from condensery.jobs.services import Services
from condensery.values import ModelReport


async def model_report(services: Services, model: str) -> ModelReport:
    """Return what a model was measured at."""
    return await asyncio.to_thread(services.pool.measured(model).report)


async def model_card(services: Services, model: str) -> str:
    """Return a model's card, Markdown."""
    return await asyncio.to_thread(services.pool.measured(model).card)


async def model_plot(services: Services, model: str, plot: str) -> bytes:
    """Return a plot of a model's report, PNG."""
    return await asyncio.to_thread(services.pool.measured(model).plot, plot)
