"""Build the engine once and make it importable; other test folders use this too."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime"
BUILD = ROOT / "build"
ARM = ("aarch64-linux-gnu-g++", "qemu-aarch64")


def build(name, *options):
    """Configure and build into ``build/<name>``; later calls only build what has changed."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed: the engine cannot be built")
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(BUILD / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test workers want the same library
        for command in (
            [cmake, "-S", str(RUNTIME), "-B", str(folder), "-DSURGE_EXAMPLES=ON", *options],
            [cmake, "--build", str(folder), "--parallel", "2"],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return folder


def import_engine():
    """Return the Python package, bound to the library that was built from this checkout."""
    folder = build("runtime")
    os.environ["SURGE_RUNTIME_LIBRARY"] = str(folder / "libsurge_runtime.so")
    if str(RUNTIME / "python") not in sys.path:
        sys.path.insert(0, str(RUNTIME / "python"))
    import surge_runtime

    return surge_runtime
