"""Logs: one event a line, on stderr."""

import logging


def configure_logging(level: str) -> None:
    """Write events to stderr as ``time level event key=value ...``; no text of users is logged."""
    handler = logging.StreamHandler()
    handler.setFormatter(_EventFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Uvicorn's own lines ("Started server process") say what we say already.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, root.level))


class _EventFormatter(logging.Formatter):
    _OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and the traceback under it if there is one."""
        fields = [
            f"{name}={value!r}" for name, value in vars(record).items() if name not in self._OWN
        ]
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line = " ".join([stamp, record.levelname.lower(), record.getMessage(), *fields])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
