"""What `make env` compiles is everything that is compiled: a function left out costs the first user of it, and each
process of the tests, some seconds."""
import subprocess
import sys

WARM = """
import sys
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher
from kernel_lab.evaluate.verification import verify
from kernel_lab.nki.timing import scheduler
scheduler.warm()
verify.warm()
ours = [m for name, m in sys.modules.items() if name.startswith('kernel_lab.')]
kept = {f for m in ours for f in vars(m).values() if isinstance(f, Dispatcher) and not isinstance(f._cache, NullCache)}
print(len(kept), *sorted(f.py_func.__name__ for f in kept if not f.signatures))
"""


def test_everything_is_compiled_on_purpose():
    said = subprocess.run([sys.executable, "-c", WARM], capture_output=True, text=True, check=True).stdout
    count, *left = said.split()
    assert int(count) >= 11 and not left, left
