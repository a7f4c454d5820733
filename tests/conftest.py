"What every test shares."
import gc
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

# before numpy and torch are imported, here and in what a test starts: there are more workers than cores, and a second thread
# of each mostly spins (twice the processor time on a busy machine)
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"): os.environ.setdefault(_name, "1")
sys.modules.setdefault("rfc3987_syntax", None)             # see tests/support/without_grammars

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from kernel_lab.core import workers  # noqa: E402
from turns import leave_out_other_turns, pytest_addoption, pytest_configure, pytest_report_header  # noqa: E402, F401

# the same examples in every run; `make test ARGS=--hypothesis-profile=default` draws others
settings.register_profile("same", derandomize=True, database=None)
settings.load_profile("same")


def rewrite_asserts_once(config):
    """Keep the rewritten code of all test files, by two processes, before there are workers, each of which would
    rewrite them all."""
    from _pytest.assertion import rewrite
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    child = os.fork()
    try:
        for file in files[::2] if child else files[1::2]:
            folder = rewrite.get_cache_dir(file)
            folder.mkdir(exist_ok=True)
            kept = folder / (file.stem + rewrite.PYC_TAIL)
            if rewrite._read_pyc(file, kept) is None:
                digest, code = rewrite._rewrite_test(file, config)
                rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, kept)
    finally:
        if not child: os._exit(0)
    os.waitpid(child, 0)


def pytest_sessionstart(session):
    """A worker is born deaf to Ctrl-C, and so would be every process it starts; some tests press it."""
    if session.config.getoption("numprocesses", None) and not sys.dont_write_bytecode:
        with suppress(AttributeError, ImportError, TypeError, ValueError):         # names of pytest's own, which may change
            rewrite_asserts_once(session.config)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.set_threshold(100_000, 50, 100)                     # a worker holds gigabytes that are no garbage
    workers.TEMPLATE_IDLE_S = 900                          # one process that has imported torch serves all tests of this one


def pytest_unconfigure():
    """Each notebook leaves a shell that collects garbage when Python ends, a hundred times over everything: nothing is
    left to find."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(specname="pytest_collection_modifyitems", tryfirst=True)
def pytest_sample_long_families(items):
    "Of a function with the mark `sampled(every)` each `every`-th case runs daily; the others are slow."
    seen = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if not mark: continue
        if seen[item.path, item.originalname] % mark.args[0]: item.add_marker(pytest.mark.slow)
        seen[item.path, item.originalname] += 1


def pytest_collection_modifyitems(config, items):
    "Notebooks last, of these the upper rooms' first, which take longest."
    leave_out_other_turns(config, items)
    files = [i for i in items if i.path.name != "test_notebooks.py"]
    items[:] = files + [i for i in items if i.path.name == "test_notebooks.py"][::-1]


@pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
def pytest_begin_with_the_longest_file(items):
    "In a random order too: nobody waits in the end for a file that began late."
    items.sort(key=lambda i: i.path.name != "test_page.py")


def pytest_xdist_make_scheduler(config, log):
    """With several workers (`make test`): a file goes to one of them, for what its tests share; notebooks go to
    whoever is free. Of our own, because xdist 3.8 loses the groups of `--dist loadgroup` under pytest 9.2."""
    from xdist.scheduler import LoadFileScheduling

    class FilesAndNotebooks(LoadFileScheduling):
        def _split_scope(self, nodeid):
            if "test_notebooks.py" in nodeid: return nodeid
            return super()._split_scope(nodeid)

    config.option.loadscopereorder = False               # in the order of the files: the longest is first
    return FilesAndNotebooks(config, log)
