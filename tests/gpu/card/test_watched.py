"""What NVIDIA's sanitizer and its counters say of plans on a card, by line of the kernel. `KERNEL_LAB_WATCHED` names a file for
the recording that the daily tests read."""
import json
import lzma
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
sys.path.insert(0, str(Path(__file__).parent))
from card_work import HAS_TOOLS, noting, plan_and_binaries
from kernel_lab.gpu.launch import counters, sanitizer
from kernel_lab.gpu.launch.cuda_driver import why_no_gpu
from watched_kernels import KERNELS

pytestmark = [pytest.mark.card, pytest.mark.skipif(why_no_gpu() is not None, reason=f'{why_no_gpu()}: make gpu-test needs a card'),
              pytest.mark.skipif(not HAS_TOOLS, reason="ncu and compute-sanitizer are not installed: CUDA's toolkit has them")]
RECORDED = {'sanitizer': {}, 'counters': {}}


@pytest.fixture(scope='module', autouse=True)
def kept():
    "What the tools printed, written."
    yield
    if place := os.environ.get('KERNEL_LAB_WATCHED'):
        Path(place).write_bytes(lzma.compress(json.dumps(RECORDED, sort_keys=True).encode()))


def lines_of(binaries): return {b.kernel.entry: {str(i.address): i.line for i in b.sass} for b in binaries}


@pytest.mark.parametrize('name', KERNELS)
def test_the_sanitizer_names_the_line(untimed, name):
    binaries, report, texts = untimed.sanitized[name]
    RECORDED['sanitizer'][name] = {'lines': lines_of(binaries), 'names': {b.kernel.entry: b.kernel.name for b in binaries},
                                   'runs': dict(zip(sanitizer.SANITIZER_CHECKS, texts)), 'found': [str(f) for f in report.findings]}
    print(report)
    lines = [text.partition('#!')[2].strip() for text in KERNELS[name].splitlines()]
    for check in sanitizer.SANITIZER_CHECKS:
        marked = {k for k, text in enumerate(lines, 1) if check in text.split()}
        assert {f.line for f in report.findings if f.check == check} == marked, (check, str(report))


@pytest.mark.parametrize('name', ['softmax', 'matmul'])
def test_counters_say_why(compiled, untimed, name, monkeypatch):
    plan, binaries = plan_and_binaries(compiled[f'watched: {name}'])
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
