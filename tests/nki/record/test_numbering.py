"""A program takes the accesses of its recording over, with the new numbers of their tensors."""
from kernel_lab.nki import ArraySpec, isa as nisa, language as nl, trace


def kernel(x):
    "Tiles that nobody uses, before and between those that somebody does; a view that two instructions use."
    nl.ndarray((128, 8), nl.float32)
    t, out = nl.ndarray((128, 8), nl.float32), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.ndarray((128, 16), nl.float32)
    half = t[:, 0:8]
    nisa.dma_copy(half, x)
    nisa.tensor_copy(half, half)
    nisa.dma_copy(out, half)
    return out


def test_tensors_are_renumbered_and_views_stay_one():
    program = trace(kernel, ArraySpec((128, 8)))
    load, copy, store = program.instructions
    assert [t.name for t in program.tensors] == ['x', 't', 'out']
    assert [load.ins['src'].tensor, load.outs['dst'].tensor, store.outs['dst'].tensor] == [0, 1, 2]
    assert load.outs['dst'] is copy.ins['src'] is copy.outs['dst'] is store.ins['src']


def test_a_kernel_is_traced_again():
    "Nothing of the first trace is in the second."
    first, second = (trace(kernel, ArraySpec((128, 8))) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert first.instructions[0].ins['src'] is not second.instructions[0].ins['src']
