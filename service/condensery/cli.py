"""The command line: `condensery`."""


def main() -> int:
    """Run the command line; returns the exit status."""
    raise SystemExit("condensery: the command line is not there yet")
