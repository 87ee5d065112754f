"""Run while the image is built: copies the interpreter, its shared libraries, its library and the runner into one folder.

Leaves out what a program has no use for (tests, idle, tk, pip) and links `/python` to the interpreter. Standard library only.
"""

import compileall
import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig

LEFT_OUT = (
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "config-*",
    "__pycache__",
    "pydoc_data",
)
ESSENTIAL = (
    "libc.so",
    "libm.so",
    "libz.so",
    "libbz2.so",
    "libmpdec.so",
    "libffi.so",
    "libpython",
    "ld-linux",
    "libexpat.so",
    "libdl",
    "libpthread",
    "libutil",
    "librt",
)


def copy(path: str, target: str) -> None:
    """A file to the same place under the target, links followed."""
    place = target + os.path.abspath(path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if not os.path.exists(place):
        shutil.copy2(os.path.realpath(path), place)


def libraries(path: str) -> list[str]:
    """The shared libraries that the loader would map for this file."""
    shown = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    return [found for found in re.findall(r"(/\S+)", shown) if os.path.exists(found)]


def main(target: str) -> None:
    interpreter = os.path.realpath(sys.executable)
    copy(interpreter, target)
    os.symlink(interpreter, os.path.join(target, "python"))
    library = sysconfig.get_path("stdlib")
    shutil.copytree(library, target + library, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=False)
    for path in [interpreter, *glob.glob(f"{library}/lib-dynload/*.so")]:
        for needed in libraries(path):
            if any(os.path.basename(needed).startswith(name) for name in ESSENTIAL):
                copy(needed, target)
    shutil.copytree("/sandbox", target + "/sandbox", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(target + library, stripdir=target, quiet=2)
    compileall.compile_dir(target + "/sandbox", stripdir=target, quiet=1)
    os.makedirs(target + "/etc", exist_ok=True)
    for folder in ("proc", "dev", "sys"):
        os.makedirs(f"{target}/{folder}", exist_ok=True)


if __name__ == "__main__":
    main(sys.argv[1])
