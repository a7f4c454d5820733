"""A fill of what stays: random fills, loads and reads of one tile keep every bit, in loops and in any order."""
import random

import numpy as np
import pytest

from kernel_lab.nki import check, execute
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.tiles import trimmed_fills

HEAD = '''
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray((4, 128, 12, 16), nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 12, 16), nl.float32, buffer=nl.sbuf)
    s = nl.ndarray((128, 12, 16), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=t, value=0.5)
    nisa.memset(dst=s, value=0.25)
'''


def region(rng, parts):
    "A box of a tile, all of an axis often, now and then with steps or on some of the partitions."
    def some(n):
        a = rng.choice((0, 0, 1, 3))
        b = rng.choice((n, n, n - 1, a + rng.randint(1, n - a)))
        return f'{a}:{max(b, a + 1)}' + (':2' if rng.random() < 0.1 and max(b, a + 1) - a > 2 else '')
    rows = f'0:{parts}' if parts < 128 else ':'
    return f'{rows}, {some(12)}, {some(16)}'


def source(seed):
    rng, lines = random.Random(seed), []
    for _ in range(rng.randint(3, 7)):
        kind = rng.choice(('fill', 'fill', 'load', 'load', 'load', 'copy', 'add', 'store'))
        where = region(rng, rng.choice((128, 128, 128, 64)))
        if kind == 'fill': lines.append(f'nisa.memset(dst=t[{where}], value={rng.choice((0.0, 1.0, -2.0))})')
        elif kind == 'load': lines.append(f'nisa.dma_copy(dst=t[{where}], src=x[i][{where}])')
        elif kind == 'copy': lines.append(f'nisa.tensor_copy(dst=t[{where}], src=s[{where}])')
        elif kind == 'add': lines.append(f'nisa.tensor_tensor(dst=s[{where}], data1=s[{where}], data2=t[{where}], op=nl.add)')
        else: lines.append('nisa.dma_copy(dst=out[i], src=t)')
    inside = rng.random() < 0.3
    if inside:
        lines = ['t = nl.ndarray((128, 12, 16), nl.float32, buffer=nl.sbuf)', 'nisa.memset(dst=t, value=3.0)', *lines]
    lines += ['nisa.tensor_tensor(dst=s, data1=s, data2=t, op=nl.add)', 'nisa.dma_copy(dst=out[i], src=s)']
    return HEAD + '    for i in nl.affine_range(4):\n' + ''.join(f'        {x}\n' for x in lines) + '    return out\n'


def trimmed(seeds):
    "How many fills of random kernels were trimmed, each with the same bits on both paths."
    count = 0
    for seed in seeds:
        x = np.random.default_rng(seed).standard_normal((4, 128, 12, 16)).astype('f4')
        program = trace_source(source(seed), None, [ArraySpec(x.shape, 'float32')], ('trn1', 'trn2', 'trn3')[seed % 3])
        if check(program): continue
        want = interpret(program, x)[0].tobytes()
        for _, after in trimmed_fills(program):
            if check(after): continue                       # partitions that begin where no engine begins
            assert interpret(after, x)[0].tobytes() == want == execute(after, x)[0].tobytes(), source(seed)
            count += 1
    return count


def test_bits_stay_in_random_kernels():
    assert trimmed(range(120)) > 40


@pytest.mark.slow
def test_bits_stay_in_three_thousand_random_kernels():
    assert trimmed(range(120, 3120)) > 1000
