"""What NVIDIA's sanitizer and its counters say of plans on a card, by line of the kernel. `KERNEL_LAB_WATCHED` names a file for
the recording that the daily tests read."""
import json
import lzma
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
from watched_kernels import KERNELS, SPECS
from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.gpu.compiling import compile_submission
from kernel_lab.gpu.launch import counters, sanitizer
from kernel_lab.gpu.launch.cuda_driver import why_no_gpu
from kernel_lab.gpu.launch.launcher import launch

has_tools = all(shutil.which(t) or any((b / t).exists() for b in sanitizer.TOOLKIT_BINS) for t in ('ncu', 'compute-sanitizer'))
pytestmark = [pytest.mark.card, pytest.mark.skipif(why_no_gpu() is not None, reason=f'{why_no_gpu()}: make gpu-test needs a card'),
              pytest.mark.skipif(not has_tools, reason="ncu and compute-sanitizer are not installed: CUDA's toolkit has them")]
RECORDED = {'sanitizer': {}, 'counters': {}}


@pytest.fixture(scope='module')
def made():
    "(plan, binaries) of a kernel by its name."
    @cache
    def compiled(name):
        found = compile_submission(KERNELS[name], SPECS[name], 'sm_90')
        assert not isinstance(found, KernelError), found
        return found.plan, [b for _, b in sorted(found.binaries.items())]
    yield compiled
    if place := os.environ.get('KERNEL_LAB_WATCHED'):
        Path(place).write_bytes(lzma.compress(json.dumps(RECORDED, sort_keys=True).encode()))


def lines_of(binaries): return {b.kernel.entry: {str(i.address): i.line for i in b.sass} for b in binaries}


def noting(texts):
    "A `launch` that keeps what the tools print, in the list that `texts` gives."
    def kept(*args, **kw):
        report = launch(*args, **kw)
        texts().append((report.status, report.data.get('seen', ''), report.data.get('places', [])))
        return report
    return kept


@pytest.fixture(scope='module')
def sanitized(made):
    "Name → (binaries, report, what the tools print), each in a thread: its processes are their own."
    texts = {}
    def one(name):
        plan, binaries = made(name)
        texts[threading.get_ident()] = mine = []
        return binaries, sanitizer.sanitize(plan, binaries), mine
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(KERNELS)) as pool:
        patch.setattr(sanitizer, 'launch', noting(lambda: texts[threading.get_ident()]))
        return dict(zip(KERNELS, pool.map(one, KERNELS)))


@pytest.mark.parametrize('name', KERNELS)
def test_the_sanitizer_names_the_line(sanitized, name):
    binaries, report, texts = sanitized[name]
    RECORDED['sanitizer'][name] = {'lines': lines_of(binaries), 'names': {b.kernel.entry: b.kernel.name for b in binaries},
                                   'runs': dict(zip(sanitizer.SANITIZER_CHECKS, texts)), 'found': [str(f) for f in report.findings]}
    print(report)
    lines = [text.partition('#!')[2].strip() for text in KERNELS[name].splitlines()]
    for check in sanitizer.SANITIZER_CHECKS:
        marked = {k for k, text in enumerate(lines, 1) if check in text.split()}
        assert {f.line for f in report.findings if f.check == check} == marked, (check, str(report))


@pytest.mark.parametrize('name', ['softmax', 'matmul'])
def test_counters_say_why(made, name, monkeypatch):
    plan, binaries = made(name)
    texts = []
    monkeypatch.setattr(counters, 'launch', noting(lambda: texts))
    found = counters.count(plan, binaries)
    RECORDED['counters'][name] = {'card': found.card, 'lines': lines_of(binaries), 'raw': trimmed(texts[0][1]), 'source': trimmed(texts[1][1]),
                                  'least_bytes': found.least_bytes, 'said': str(found)}
    print(found, found.profile, found.roofline_point, sep='\n')
    assert found.status == 'counted' and found.waits and found.profile.kind == 'measured'
    if name == 'matmul':
        assert found.total('tensor_operations') == pytest.approx(2 * 2048 ** 3, rel=0.01) and found.share('tensor') > 0.3
    else:
        assert found.share('memory') > 0.4 and found.total('read_bytes') == pytest.approx(64 << 20, rel=0.05) and not found.total('tensor_operations')


def trimmed(text):
    "The columns that are read, of a page."
    import csv
    import io
    wanted = {'ID', 'Kernel Name', 'Address', 'Source', *(m for m, _ in counters.COUNTERS.values()), *counters.OPERATIONS,
              *counters.TENSOR_OPERATIONS, *counters.STALLS}
    out, head = io.StringIO(), None
    write = csv.writer(out, quoting=csv.QUOTE_ALL)
    for row in csv.reader(l for l in text.splitlines() if l.startswith('"')):
        if row[0] in ('ID', 'Address'): head = row
        write.writerow(row if head is None or row[0] == 'Kernel Name' else [x for k, x in zip(head, row) if k in wanted])
    return out.getvalue()
