"""The console's files: a page for people at ``/``, which loads nothing from elsewhere.

They hold nothing of the server's, and so need no key; the requests that the page makes of the other
routes do.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from condensery.errors import NotFound
from condensery.jobs.services import Services

# Scripts and styles are files of this server, and text is never taken for either.
CONSOLE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FRAME = "index.html"
# Pages with addresses of their own, below /console: the script in the frame shows them.
PAGES = ("embed", "indexes", "models", "live")


@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """A file as it is sent.

    Attributes:
        tag: Of its content, by which a browser asks whether it has changed.
    """

    content: bytes
    media_type: str
    tag: str


@cache
def console_files() -> dict[str, ConsoleFile]:
    """Return the console's files by name, read once."""
    found = {}
    for entry in (files("condensery") / "console").iterdir():
        media_type = MEDIA_TYPES.get(f".{entry.name.rpartition('.')[2]}")
        if media_type is not None:
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[entry.name] = ConsoleFile(content, media_type, tag)
    return found


async def show_console(request: Request, _services: Services) -> Response:
    """Show the console, a page for people; clients of TEI post here."""
    return _send(request, console_files()[FRAME])


async def show_console_file(request: Request, _services: Services) -> Response:
    """Return a page of the console, by its address, or a file that its pages are made of."""
    path: str = request.path_params["file"]
    name = FRAME if path.partition("/")[0] in PAGES else path
    file = console_files().get(name)
    if file is None or path == FRAME:
        raise NotFound(f"The console has no page or file {path[:200]!r}.")
    return _send(request, file)


def _send(request: Request, file: ConsoleFile) -> Response:
    headers = {
        "content-security-policy": CONSOLE_POLICY,
        "cache-control": "no-cache",  # asked for again each time, and sent again if it has changed
        "cross-origin-opener-policy": "same-origin",
        "etag": file.tag,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
