"""A task that is there in a large size only: its draws are not worked through before the first kernel is judged."""
import numpy as np
import torch
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.tasks.model.task import task_from
from kernel_lab.tasks.model.workload import Kernel

SHAPE = (2048, 2304)
KERNEL = '''import nki
import nki.language as nl
import nki.isa as nisa

@nki.jit
def kernel(x):
    out = nl.ndarray((2048, 2304), dtype=nl.float32, buffer=nl.shared_hbm)
    for k in nl.affine_range(16):
        tile = nl.ndarray((128, 2304), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[128 * k:128 * k + 128, 0:2304])
        nisa.activation(dst=tile, op=nl.exp, data=tile)
        nisa.dma_copy(dst=out[128 * k:128 * k + 128, 0:2304], src=tile)
    return out
'''
CALLS = []


def counted(x):
    CALLS.append(tuple(x.shape))
    return torch.exp(x)


def test_its_first_verdict_asks_the_reference_a_few_times():
    "Draws on which exp overflows, or says nothing, are left out where a kernel fails on them."
    task = task_from(counted, lambda rng: {'x': rng.standard_normal(SHAPE).astype('float32')}, name='large_exp')
    CALLS.clear()
    found = [evaluate(Kernel(KERNEL + f'# {k}\n'), task) for k in range(2)]
    assert [e.status for e in found] == ['correct'] * 2 and any(r.draw for e in found for r in e.verification.seeds)
    assert len(CALLS) <= 40, len(CALLS)
    wrong = evaluate(Kernel(KERNEL.replace('op=nl.exp', 'op=nl.exp, scale=1.01')), task)
    assert wrong.status == 'wrong_result'


def test_a_last_row_that_is_left_out_is_seen():
    task = task_from(counted, lambda rng: {'x': rng.standard_normal(SHAPE).astype('float32')}, name='large_exp')
    short = KERNEL.replace('src=tile)\n    return', 'src=tile)\n    nisa.memset(dst=tile, value=1.0)\n'
                           '    nisa.dma_copy(dst=out[2047:2048, 0:2304], src=tile[0:1, 0:2304])\n    return')
    assert evaluate(Kernel(short), task).status == 'wrong_result'
    assert np.prod(SHAPE) > 1 << 22
