"""What is begun with the first test on a card, so that little is left to wait for: everything that is compiled, all at once, and
everything on the card that is not timed. What is timed comes after that, alone. The session's report is written here, to the
file that KERNEL_LAB_GPU_REPORT names."""
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernel_lab.evaluate.gpu.compiling import compile_submission
from kernel_lab.evaluate.gpu.nvcc import nvcc_path
from kernel_lab.gpu.clock.card_state import card_state
from kernel_lab.gpu.launch.cuda_driver import CudaDriver

sys.path.insert(0, str(Path(__file__).parent))
from attacks_on_card import ATTACKS
from card_texts import BAD, PARITY, texts
from card_work import HAS_TOOLS, Harness, compile_inline, inline_runs, launch_once, run_beside, sanitize_all

BEGAN = float(os.environ.get('KERNEL_LAB_GPU_BEGAN') or time.time())
REPORT, TOOK, ENDED = {}, {}, {}


def seconds(): return round(time.time() - BEGAN, 1)


def pytest_runtest_logreport(report):
    "Seconds of each test, with its fixtures, and how it ended."
    if 'gpu/card/' not in report.nodeid: return
    TOOK[report.nodeid] = TOOK.get(report.nodeid, 0.0) + report.duration
    if report.when == 'call' or report.outcome != 'passed': ENDED[report.nodeid] = report.outcome


def pytest_sessionfinish(session):
    place = os.environ.get('KERNEL_LAB_GPU_REPORT')
    if not place or not REPORT: return
    state, ends = card_state(), [*ENDED.values()]
    longest = sorted(TOOK, key=TOOK.get, reverse=True)[:12]
    Path(place).write_text(json.dumps({
        'kind': 'measured', 'what': 'make gpu-test', 'card': state.name if state else '', 'state': str(state or ''),
        'recorded': time.strftime('%Y-%m-%d'), 'seconds': seconds(), 'tests': {e: ends.count(e) for e in sorted({*ends})},
        'longest': {n.rpartition('/')[2]: round(TOOK[n], 1) for n in longest}, **REPORT}))


@pytest.fixture(scope='session')
def report():
    "What the session keeps."
    return REPORT


class Compiled:
    "Name → what the compiler made of a text, as soon as it has."
    def __init__(self, futures): self.futures = futures
    def __getitem__(self, name): return self.futures[name].result()


@pytest.fixture(scope='session')
def begun():
    "(what is `Compiled`, the `Harness`, a future of the module of `load_inline`), all of it begun now: it needs processors, and no turn on the card."
    chip = f'sm_{CudaDriver().capability}'
    asked = texts(('nvrtc', 'nvcc') if nvcc_path() else ('nvrtc',))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(os.cpu_count()) as pool:
        inline, harness = one.submit(compile_inline), Harness(Path(folder))
        futures = {n: pool.submit(compile_submission, source, specs, chip, **more) for n, (source, specs, more) in asked.items()}
        try: yield Compiled(futures), harness, inline
        finally:
            harness.close()
            for f in futures.values(): f.cancel()


@pytest.fixture(scope='session')
def compiled(begun): return begun[0]


@pytest.fixture(scope='session')
def untimed(begun):
    """Everything on the card that is not timed, several at once: `launched`, name → (order, report); `after`, the report of an order after
    a kernel that did not end; `sanitized`; `beside` of `run_beside`; `inline` of `inline_runs`. No process of it is left then."""
    compiled, harness, inline = begun
    names, phases = [*PARITY, *BAD, *(a.name for a in ATTACKS)], REPORT.setdefault('phases', {})
    for n in names: compiled[n]
    harness.wait()
    phases['compiled'] = seconds()
    with ThreadPoolExecutor(8) as pool, ThreadPoolExecutor(1) as other:
        watched = other.submit(sanitize_all, compiled) if HAS_TOOLS else None
        launched = dict(zip(names, pool.map(lambda n: launch_once(n, compiled[n]), names)))
        after = launch_once('softmax, one pass', compiled['softmax, one pass'])[1]
        watched = watched.result() if watched else {}
    phases['launched'] = seconds()
    beside = run_beside()
    phases['beside'] = seconds()
    inline.result()
    runs = inline_runs()
    for f in compiled.futures.values(): f.exception()           # nothing is compiled beside what is timed
    phases['untimed'] = seconds()
    return SimpleNamespace(launched=launched, after=after, sanitized=watched, beside=beside, inline=runs)


@pytest.fixture(scope='session')
def naive(begun, untimed):
    "Name → what the harness says of every attack and of the honest kernels, one after the other."
    return begun[1].timed()
