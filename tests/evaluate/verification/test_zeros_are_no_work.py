"""A right kernel that leaves out products with zeros which the reference makes itself (a diagonal, one-hot rows) is no
cheat: the arithmetic that it is held against leaves them out, too."""
import numpy as np
import pytest
import torch

from kernel_lab.evaluate import evaluate
from kernel_lab.evaluate.verification.plausibility import arithmetic, computing, flops_on_zeros
from kernel_lab.nki import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.tasks.model.task import task_from
from kernel_lab.tasks.suite.registry import get_task

HEAD = 'import nki, nki.isa as nisa, nki.language as nl\n'
DIAGONAL = HEAD + '''
def scaled(d, b):
    n, m = b.shape
    out, P = nl.ndarray((n, m), b.dtype, buffer=nl.shared_hbm), min(128, n)
    for i in nl.affine_range(n // P):
        t, c = nl.ndarray((P, m), b.dtype, buffer=nl.sbuf), nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=b[i * P:(i + 1) * P, :])
        nisa.dma_copy(dst=c, src=d.reshape((n, 1))[i * P:(i + 1) * P, :])
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=c)
        nisa.dma_copy(dst=out[i * P:(i + 1) * P, :], src=t)
    return out
'''
SEGMENTS = HEAD + '''
def summed(x, segment):
    n, d = x.shape
    S, W, P = 8, x.shape[1] + 1, 128
    out, sums = nl.ndarray((S, d), nl.float32, buffer=nl.shared_hbm), nl.ndarray((S, W), nl.float32, buffer=nl.hbm)
    z, r = nl.ndarray((S, W), nl.float32, buffer=nl.sbuf), nl.ndarray((S, 1), nl.float32, buffer=nl.sbuf)
    t, at = nl.ndarray((P, W), nl.float32, buffer=nl.sbuf), nl.ndarray((P, 1), nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=z, value=0.0)
    nisa.dma_copy(dst=sums, src=z)
    nisa.memset(dst=t[:, d:W], value=1.0)
    nisa.dma_copy(dst=t[:, 0:d], src=x)
    nisa.dma_copy(dst=at, src=segment.reshape((n, 1)))
    nisa.dma_copy(dst=sums.ap([[W, P], [1, W]], vector_offset=at, indirect_dim=0), src=t, dst_rmw_op=nl.add)
    nisa.dma_copy(dst=z, src=sums)
    nisa.reciprocal(dst=r, data=z[:, d:W])
    nisa.tensor_scalar(dst=z[:, 0:d], data=z[:, 0:d], op0=nl.multiply, operand0=r)
    nisa.dma_copy(dst=out, src=z[:, 0:d])
    return out
'''


@pytest.mark.parametrize('name, source', [('kernelbench/12_diagonal_matmul', DIAGONAL), ('segment_mean', SEGMENTS)])
def test_what_leaves_out_zeros_is_right(name, source):
    found = evaluate(source, name, 'small', seeds=[1, 2], eager=False)
    assert (found.status, [g.says for g in found.guards if g.found and g.severity != 'note']) == ('correct', [])


def test_a_copy_that_adds_computes():
    task = get_task('segment_mean').workload('small')
    p = trace_source(SEGMENTS, None, [ArraySpec(s, 'int32' if k == 'segment' else 'float32') for k, s in task.shapes.items()])
    adds = [o for o in p.instructions if o.attrs.get('add')]
    assert len(adds) == 1 and adds[0] in computing(p) and arithmetic(p) > 2 * 128 * 65


def counted(f, **inputs):
    task = task_from(f, lambda rng: {k: v.astype(np.float32) for k, v in inputs.items()}, name='counted')
    return task.flops(), flops_on_zeros(task, task.workload())


def test_zeros_of_the_reference_are_counted():
    x, zeros = np.arange(1, 26).reshape(5, 5), np.zeros((5, 5))
    assert counted(lambda a, b: torch.diag(a[0]) @ b, a=x, b=x) == (250, 200)
    assert counted(lambda a, b: a.tril() @ b, a=x, b=x) == (250, 100)
    assert counted(lambda a, b: torch.bmm(a.tril()[None], b[None])[0] + 1, a=x, b=x) == (250, 100)
    assert counted(lambda a, b: torch.addmm(a, a.triu(), b.tril()), a=x, b=x) == (250, 250 - 2 * 55)
    assert counted(lambda a, b: a @ b, a=x, b=zeros) == (250, 0)        # what the inputs happen to be is no excuse
