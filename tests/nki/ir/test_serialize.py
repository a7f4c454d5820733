"A program that comes out of a pipe is data from a stranger."
import copy, json, random
import numpy as np, pytest
from hypothesis import given, settings, strategies as st
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, execute, schedule, trace
from kernel_lab.nki.checks.checker import check
from kernel_lab.nki.ir.program import Program
from dialects import nisa, nl

def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        t, acc = nl.load(x[nl.ds(i * 64, 64), :]), nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(acc, t, t)
        nl.store(out[nl.ds(i * 64, 64), :], nl.exp(t))
    return out

GOOD = json.loads(trace(kernel, ArraySpec((128, 32))).to_json())
JUNK = [
    None, True, -1, 10 ** 30, 3.7,
    float('nan'), 'x' * 5000, 'i0', [], [[]], {}, {'t': 0}, [1, 2, 3], 'nc_matmul', 2 ** 33]

def places(node, path=()):
    "Every path inside a JSON value."
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for k, v in items: yield from places(v, (*path, k))

PLACES = [p for p in places(GOOD) if p]

def changed(path, value):
    d = copy.deepcopy(GOOD)
    at = d
    for k in path[:-1]: at = at[k]
    at[path[-1]] = value
    return json.dumps(d)

@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from(JUNK))
def test_a_changed_program_is_refused_or_harmless(path, value):
    """One field replaced by junk: the reader, the checks, the executor and the scheduler refuse with a KernelError or
    run; nothing else."""
    try:
        program = Program.from_json(changed(path, value))
        if check(program) or program.count > 1000: return
        execute(program, *[np.zeros(t.shape, np.float32) for t in program.inputs])
        schedule(program)
    except KernelError: pass

def test_truncated_text_is_refused():
    text = json.dumps(GOOD)
    for cut in random.Random(0).sample(range(len(text)), 50):
        with pytest.raises(KernelError, match='not valid'): Program.from_json(text[:cut])

def test_a_bomb_of_constants_is_refused():
    import base64, zlib
    d = copy.deepcopy(GOOD)
    d['constants'] = {'0': {'z': base64.b64encode(zlib.compress(b'0' * 10**7)).decode()}}
    with pytest.raises(KernelError, match='constant'): Program.from_json(json.dumps(d))

def test_same_kernel_same_hash_other_shape_other_hash():
    assert trace(kernel, ArraySpec((128, 32))).hash == trace(kernel, ArraySpec(
        (128, 32))).hash != trace(kernel, ArraySpec((128, 32), 'bfloat16')).hash
