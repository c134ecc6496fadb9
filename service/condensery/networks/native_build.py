"""Builds the kernels of our own (``native.c``) where there is a compiler; else torch does it.

    python service/condensery/networks/native_build.py

leaves them beside the source, as ``make install`` and the image do. The library's name holds a hash
of the source and the flags, so that what was built of another version is never loaded.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("native.c")
# Nothing of -ffast-math: a NaN must come out of NaN.
FLAGS = ("-std=gnu11", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math")
COMPILERS = ("cc", "gcc", "clang")


def library() -> Path:
    """Return where the kernels are, once they are built."""
    machine = f"{sys.platform} {platform.machine()} {' '.join(FLAGS)}"
    digest = hashlib.sha256(SOURCE.read_bytes() + machine.encode()).hexdigest()
    return SOURCE.with_name(f"native-{digest[:12]}.so")


def build() -> str:
    """Build the kernels if they are not there; returns what became of it, one line."""
    target = library()
    if _loads(target):
        return f"{target.name} is there"
    compiler = os.environ.get("CC") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        return "no C compiler: a CPU does without kernels of ours, slower"
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".native-") as folder:
            made = Path(folder, target.name)
            command = [*compiler.split(), *FLAGS, "-shared", "-fPIC", "-o", str(made), str(SOURCE)]
            for more in ([], ["-DONE_KIND"]):  # gcc before 12 knows no levels of x86-64
                done = subprocess.run(
                    [*command, *more, "-lm"], capture_output=True, text=True, check=False
                )
                if not done.returncode:
                    break
            if done.returncode:
                return f"{compiler} failed, so no kernels were built: {done.stderr.strip()[:500]}"
            for old in target.parent.glob("native-*.so"):
                old.unlink()
            made.replace(target)
    except OSError as error:
        return f"no kernels were built: {error}"
    return f"{target.name} was built by {compiler}"


def _loads(path: Path) -> bool:
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
