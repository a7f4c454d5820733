"""Answers of a hostile child that would fill the parent, or keep it busy, if it parsed them."""
import json
import subprocess
import sys

import pytest

MOST_MB, MOST_SECONDS = 500, 1.0

ANSWERS = {
    'more than a file may hold': "for _ in range(2048): os.write(3, b'x' * (1 << 20))",
    'a file of holes': 'os.ftruncate(3, 2 << 30)',
    'deeply nested lists': "write(b'P' + b'[' * (60 << 20))",
    'lists of nothing': "write(b'P[' + b'[],' * 4_900_000 + b'[]]')",
    'floats': "write(b'P[' + b'1.5,' * (15 << 20) + b'1]')",
    'texts': "write(b'P[' + b'\"abcdef\",' * (7 << 20) + b'1]')",
    'names': "write(b'P{' + b','.join(b'\"%d\":1' % k for k in range(2_000_000)) + b'}')",
    'as many names as are read': "write(b'P{' + b','.join(b'\"%d\":1' % k for k in range(790_000)) + b'}')",
    'one long text': "write(b'P\"' + b'x' * (60 << 20) + b'\"')",
    'a wide character': "write(b'P\"' + b'x' * (60 << 20) + chr(0x1f600).encode() + b'\"')",
    'a long number': "write(b'P' + b'1' * (60 << 20))",
    'an error of floats': "write(b'E{\"message\":[' + b'1.5,' * (15 << 20) + b'1]}')",
    'a nested error': "write(b'E' + b'[' * (60 << 20))",
    'neither program nor error': "write(b'x' * (60 << 20))",
}

KERNEL = '''
import os

def write(data):
    data = memoryview(data)
    while data: data = data[os.write(3, data):]

def kernel(x):
    {}
    os._exit(0)
'''

PARENT = '''
import json, sys, time
from pathlib import Path
from kernel_lab.evaluate.sandbox.run import sandbox, trace_kernel
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.tasks.model.workload import Kernel

def peak_mb():
    "The largest memory of this process so far; what getrusage says begins with that of the process that forked it."
    return next(int(l.split()[1]) for l in Path('/proc/self/status').read_text().splitlines() if 'VmHWM' in l) / 1024

sandbox()
for name, source in json.load(sys.stdin).items():
    since = time.process_time()
    refused, _ = trace_kernel(Kernel(source), [ArraySpec((128, 64), 'float32')])
    took = time.process_time() - since
    print(json.dumps([name, getattr(refused, 'kind', 'a program'), took, peak_mb()]))
'''


@pytest.fixture(scope='module')
def seen():
    "{name of an answer: (kind of the error, processor seconds of the parent, its largest memory so far in MB)}."
    if sys.platform != 'linux': pytest.skip('the answer is a file of this number on Linux')
    sources = json.dumps({name: KERNEL.format(code) for name, code in ANSWERS.items()})
    done = subprocess.run([sys.executable, '-c', PARENT], input=sources, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}


@pytest.mark.sampled(3)
@pytest.mark.parametrize('name', ANSWERS)
def test_a_large_answer_is_refused_at_once(name, seen):
    kind, seconds, mb = seen[name]
    assert kind in ('limit', 'invalid', 'trace')
    assert seconds <= MOST_SECONDS and mb <= MOST_MB, f'{seconds:.2f} s, {mb:.0f} MB'
