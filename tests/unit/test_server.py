"""How the composition root imports what is heavy."""

import gc
import subprocess
import sys

import pytest

from condensery.server import kept_for_good

IMPORTS = """
import gc
from condensery.server import kept_for_good
with kept_for_good():
    import xml.dom.expatbuilder
found = {id(one) for one in gc.get_objects()}
print(gc.isenabled(), id(xml.dom.expatbuilder.__dict__) in found)
"""


def test_what_is_imported_for_good_is_not_looked_through_for_garbage_again() -> None:
    # In a process of its own: what is kept is kept for all that comes after.
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_an_import_that_fails_leaves_garbage_to_be_collected() -> None:
    with pytest.raises(ModuleNotFoundError), kept_for_good():
        import there_is_no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()
