"""The pages for who runs a server say what is so: settings, scopes, health routes, a status."""

from pathlib import Path

from pydantic_core import PydanticUndefined

from condensery.api.rest.routes import HEALTH_ROUTES
from condensery.auth import KEY_SCOPES
from condensery.commands.flags import format_setting
from condensery.server import FAULT_STATUS
from condensery.settings import (
    Settings,
    describe_allowed,
    flag_of,
    group_of,
    is_secret,
    variable_of,
)

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operating.md").read_text(encoding="utf-8")
SETTINGS = (DOCS / "settings.md").read_text(encoding="utf-8")
COMMANDS = (DOCS / "command-line.md").read_text(encoding="utf-8")


def tables() -> str:
    """A table for each group of settings."""
    lines: list[str] = []
    group = ""
    for name, field in Settings.model_fields.items():
        if group_of(name) != group:
            group = group_of(name)
            lines += ["", f"**{group[0].upper()}{group[1:]}**", ""]
            lines += ["| setting | default | allowed | what it is |", "|---|---|---|---|"]
        spelling = variable_of(name) if is_secret(name) else flag_of(name)
        default = field.default not in (None, PydanticUndefined)
        cells = (
            f"`{spelling}`",
            format_setting(name, field.default) if default else "",
            describe_allowed(name).replace("'", "`"),
            field.description,
        )
        lines.append(f"| {' | '.join(map(str, cells))} |".replace("  ", " "))
    return "\n".join(lines).strip()


def test_the_manual_lists_the_settings_as_they_are() -> None:
    """Where this fails, put what it prints between the two marks."""
    _, _, rest = SETTINGS.partition("<!-- settings: tests/docs/test_operating.py compares -->\n")
    written, _, _ = rest.partition("\n<!-- end of settings -->")
    assert written.strip() == tables(), f"\n{tables()}\n"


def test_the_manual_names_every_scope() -> None:
    assert [scope for scope in KEY_SCOPES if f"| `{scope}` |" not in PAGE] == []


def test_the_manual_names_every_health_route_and_the_status_of_a_fault() -> None:
    assert [route.path for route in HEALTH_ROUTES if f"`{route.path}`" not in PAGE] == []
    assert f"\n| {FAULT_STATUS} | it broke inside" in COMMANDS
