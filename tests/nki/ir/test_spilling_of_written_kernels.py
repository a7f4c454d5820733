"""A kernel that is written again, one statement for each tile of an unrolled loop, spills as it did before."""
import pytest

from kernel_lab.nki import schedule
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source

HEAD = '''
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    total = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
'''
TAIL = '''
    nisa.dma_copy(dst=out, src=total)
    return out
'''
LOOP = '''
    tiles = []
    for i in range(N):
        t = nl.ndarray((128, 4096), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i])
        tiles.append(t)
    for i in range(N): nisa.tensor_tensor(dst=total, data1=total, data2=tiles[ORDER(i)][:, 0:512], op=nl.add)
'''


def written(n, order):
    "The same with a statement for each instruction."
    made = [f'    t{i} = nl.ndarray((128, 4096), nl.float32, buffer=nl.sbuf)\n    nisa.dma_copy(dst=t{i}, src=x[{i}])' for i in range(n)]
    used = [f'    nisa.tensor_tensor(dst=total, data1=total, data2=t{order(i)}[:, 0:512], op=nl.add)' for i in range(n)]
    return HEAD + '\n'.join(made + used) + TAIL


@pytest.mark.parametrize('n', (12, 14, 20, 27))
@pytest.mark.parametrize('order', ('i', 'N - 1 - i', '(5 * i) % N'))
def test_lines_do_not_change_what_is_spilled(n, order):
    loop = HEAD + LOOP.replace('ORDER(i)', order).replace('N', str(n)) + TAIL
    text = written(n, lambda i: eval(order, {'i': i, 'N': n}))
    head = 'import nki\nimport nki.isa as nisa\nimport nki.language as nl\n'
    one, other = (trace_source(head + s, None, [ArraySpec((n, 128, 4096), 'float32')], chip='trn2') for s in (loop, text))
    assert schedule(one, 'trn2').latency_us == schedule(other, 'trn2').latency_us
