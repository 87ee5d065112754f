"""Code of a test inside the processes of a run: it watches a step, or makes the process kill itself at a chosen point of one.

A step runs in a process of its own, which no test can reach; but every Python loads the `sitecustomize.py` that it finds first in
PYTHONPATH. A hook is the source of `watch(module)`, which is called with `flows.execution.run_stage`, the module that runs every
step, as soon as that is loaded. It may use what `BEFORE` defines.
"""

from pathlib import Path

BEFORE = '''
import importlib.abc, importlib.util, os, signal, sys, time
from pathlib import Path

MARKS = Path(__file__).parent / "marks"

def first(mark):
    """Whether nobody on this machine has asked for this mark before. The file remembers it, as the process may be killed next."""
    MARKS.mkdir(exist_ok=True)
    seen = (MARKS / mark).exists()
    (MARKS / mark).touch()
    return not seen

def die():
    os.kill(os.getpid(), signal.SIGKILL)

'''
AFTER = """

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "flows.execution.run_stage":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), watch(module))
        return spec

sys.meta_path.insert(0, Watch())
"""


def install(folder: Path, hook: str) -> None:
    """Put the hook into every Python that has this folder in its PYTHONPATH."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(BEFORE + hook.strip() + AFTER)


def marks(folder: Path) -> dict[str, bytes]:
    """What the hook of this folder has asked `first` for, and what it wrote there."""
    return {path.name: path.read_bytes() for path in sorted((folder / "marks").glob("*"))}
