"""Batched execution against the interpreter: the same numbers for loops of every shape, masks, tails, accumulation,
carried values and shared tiles."""
import numpy as np, pytest
from kernel_lab.nki import ArraySpec, Stepper, execute, installed, interpret, trace
from kernel_lab.nki.executor import vectorized as batch, loop_passes as fuse, plan
from kernel_lab.nki.executor.plan import plan_of
from kernel_lab.nki.executor.loop_passes import instruction_numbers
from kernel_lab.nki.lang.trace import load_source

@pytest.fixture(autouse=True)
def always_planned(monkeypatch): monkeypatch.setattr(plan, "MIN_ELEMENTS_PER_INSTRUCTION", 0)      # light programs too


HEAD = (
    "import neuronxcc.nki as nki\nimport neuronxcc.nki.language as nl\nimport neuronxcc.nki.isa as nisa\n@nki.jit\ndef"
    " kernel("
)

KERNELS = {
    'tail': (
        "x):\n out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n p, f = nl.mgrid[0:128, 0:512]\n"
        " for i in nl.affine_range(3):\n  for j in nl.affine_range(2):\n   m = (i*128 + p < 300) & (j*512 + f < 700)\n"
        "   t = nl.load(x[i*128 + p, j*512 + f], mask=m)\n   nl.store(out[i*128 + p, j*512 + f], nl.exp(t, mask=m), "
        "mask=m)\n return out",
        [(300, 700)]),
    'middle': (
        "x):\n out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n p, f = nl.mgrid[0:128, 0:64]\n for i in "
        "nl.affine_range(4):\n"
        "  t = nl.load(x[i*128 + p, f])\n  u = nl.copy(t)\n  u[p, f] = nl.multiply(t[p, f], 3.0, mask=(f >= 10 + i) & "
        "(f < 50))\n"
        "  nl.store(out[i*128 + p, f], u)\n return out", [(512, 64)]),
    'running': (
        "x):\n out = nl.ndarray((128, 64), x.dtype, buffer=nl.shared_hbm)\n acc = nl.zeros((128, 64), nl.float32, "
        "buffer=nl.sbuf)\n"
        " for i in nl.sequential_range(4):\n  acc[...] = nl.maximum(nl.multiply(acc, 0.5), "
        "nl.load(x[i*128:(i+1)*128]))\n nl.store(out, acc)\n return out",
        [(512, 64)]),
    'prefix': (
        "x):\n out = nl.ndarray((512, 64), x.dtype, buffer=nl.shared_hbm)\n run = nl.zeros((128, 64), nl.float32, "
        "buffer=nl.sbuf)\n"
        " for i in nl.sequential_range(4):\n  t = nl.load(x[i*128:(i+1)*128])\n  run[...] = nl.add(run, t)\n"
        "  nl.store(out[i*128:(i+1)*128], nl.multiply(run, 2.0))\n return out", [(512, 64)]),
    'gemm': (
        "a, b):\n out = nl.ndarray((256, 512), a.dtype, buffer=nl.shared_hbm)\n for m in nl.affine_range(2):\n  acc = "
        "nl.zeros((128, 512), nl.float32, buffer=nl.psum)\n"
        "  for k in nl.affine_range(3):\n   acc += nl.matmul(nl.load(a[k*128:(k+1)*128, m*128:(m+1)*128]), "
        "nl.load(b[k*128:(k+1)*128, :]), transpose_x=True)\n"
        "  nl.store(out[m*128:(m+1)*128, :], nl.exp(nl.multiply(acc, 0.1)))\n return out", [(384, 256), (384, 512)]),
    'gemm_unrolled': (
        "a, b):\n out = nl.ndarray((128, 512), a.dtype, buffer=nl.shared_hbm)\n acc = nl.zeros((128, 512), "
        "nl.float32, buffer=nl.psum)\n"
        " for k in range(3):\n  acc += nl.matmul(nl.load(a[k*128:(k+1)*128, :]), nl.load(b[k*128:(k+1)*128, :]), "
        "transpose_x=True)\n nl.store(out, acc)\n return out",
        [(384, 128), (384, 512)]),
    'hoisted': (
        "a, b):\n out = nl.ndarray((256, 1024), a.dtype, buffer=nl.shared_hbm)\n left = nl.ndarray((3, "
        "nl.par_dim(128), 256), a.dtype, buffer=nl.sbuf)\n"
        " for k in nl.affine_range(3):\n  left[k] = nl.load(a[k*128:(k+1)*128, :])\n for n in nl.affine_range(2):\n"
        "  right = nl.ndarray((3, nl.par_dim(128), 512), b.dtype, buffer=nl.sbuf)\n  for k in nl.affine_range(3):\n   "
        "right[k] = nl.load(b[k*128:(k+1)*128, n*512:(n+1)*512])\n"
        "  for m in nl.affine_range(2):\n   acc = nl.zeros((128, 512), nl.float32, buffer=nl.psum)\n   for k in "
        "nl.affine_range(3):\n"
        "    acc += nl.matmul(left[k, :, m*128:(m+1)*128], right[k], transpose_x=True)\n   "
        "nl.store(out[m*128:(m+1)*128, n*512:(n+1)*512], acc)\n return out",
        [(384, 256), (384, 1024)]),
    'transposed': (
        "x):\n out = nl.ndarray((256, 512), x.dtype, buffer=nl.shared_hbm)\n for i in nl.affine_range(4):\n  for j in "
        "nl.affine_range(2):\n"
        "   t = nl.load(x[i*128:(i+1)*128, j*128:(j+1)*128])\n   nl.store(out[j*128:(j+1)*128, i*128:(i+1)*128], "
        "nl.transpose(t))\n return out",
        [(512, 256)]),
    'folded': (
        "x):\n out = nl.ndarray((128, 1), x.dtype, buffer=nl.shared_hbm)\n best = nl.ndarray((128, 1), nl.float32, "
        "buffer=nl.sbuf)\n for i in nl.affine_range(4):\n"
        "  t = nl.load(x[:, i*64:(i+1)*64])\n  part = nl.max(t, axis=1, keepdims=True)\n  best[...] = "
        "nl.loop_reduce(part, op=np.max, loop_indices=[i])\n"
        " nl.store(out, best)\n return out", [(128, 256)]),
    'softmax': (
        "x):\n out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n for i in nl.affine_range(4):\n  t = "
        "nl.load(x[i*128:(i+1)*128])\n"
        "  e = nl.exp(nl.subtract(t, nl.max(t, axis=1, keepdims=True)))\n  nl.store(out[i*128:(i+1)*128], "
        "nl.divide(e, nl.sum(e, axis=1, keepdims=True)))\n return out",
        [(512, 96)]),
    'in_place': (
        "x):\n out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n for i in nl.affine_range(4):\n  t = "
        "nl.load(x[i*128:(i+1)*128])\n"
        "  t[:, 0:32] = nl.add(t[:, 32:64], t[:, 0:32])\n  t[:, 32:64] = nl.multiply(t[:, 0:32], t[:, 32:64])\n  "
        "nl.store(out[i*128:(i+1)*128], t)\n return out",
        [(512, 64)]
    ), 'window': (
        "x):\n out = nl.ndarray((128, 256), x.dtype, buffer=nl.shared_hbm)\n t = nl.load(x)\n for i in "
        "nl.affine_range(4):\n  u = nl.ndarray((128, 64), x.dtype, buffer=nl.sbuf)\n"
        "  u[...] = nl.add(t[:, nl.ds(i*64, 64)], t[:, nl.ds(i*64 + 8, 64)])\n  nl.store(out[:, nl.ds(i*64, 64)], "
        "u)\n return out",
        [(128, 264)]
    ), 'two_nests': (
        "q, k):\n out = nl.ndarray((2, 4, nl.par_dim(128), 64), q.dtype, buffer=nl.shared_hbm)\n"
        " s = nl.ndarray((4, 2, nl.par_dim(128), 64), nl.float32, buffer=nl.sbuf)\n top = nl.ndarray((4, 2, "
        "nl.par_dim(128), 1), nl.float32, buffer=nl.sbuf)\n"
        " for h in nl.affine_range(2):\n  for m in nl.affine_range(4):\n   s[m, h] = nl.matmul(nl.load(q[h, :, "
        "128*m:128*(m+1)]), nl.load(k[h]), transpose_x=True)\n"
        "   top[m, h] = nl.max(s[m, h], axis=1, keepdims=True)\n for m in nl.affine_range(4):\n  for h in "
        "nl.affine_range(2):\n"
        "   e = nl.exp(nl.subtract(s[m, h], top[m, h]))\n   nl.store(out[h, m], nl.divide(e, nl.sum(e, axis=1, "
        "keepdims=True)))\n return out",
        [(2, 64, 512), (2, 64, 64)]
    ), 'activation_sum': (
        "x):\n out = nl.ndarray((512, 1), nl.float32, buffer=nl.shared_hbm)\n for i in nl.affine_range(4):\n  t = "
        "nl.load(x[i*128:(i+1)*128])\n"
        "  s = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)\n  u = nisa.activation_reduce(np.exp, t, "
        "reduce_op=np.add, reduce_res=s)\n"
        "  nl.store(out[i*128:(i+1)*128], s)\n return out", [(512, 48)]),}


def program_of(name, dtype='float32'):
    text, shapes = KERNELS[name]
    with installed(): kernel = load_source('import numpy as np\n' + HEAD + text, 'kernel')
    return trace(kernel, *[ArraySpec(s, dtype) for s in shapes]), shapes


def arrays(shapes, dtype='float32', seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(s) /
             4).astype(np.float32).astype(np.dtype(dtype) if dtype == 'float32' else __import__('ml_dtypes').bfloat16)
            for s in shapes]


@pytest.mark.parametrize('large', [2**28, 2**10])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('name', KERNELS)
def test_same_numbers(name, dtype, large, monkeypatch):
    monkeypatch.setattr(fuse, 'MIN_SHARED_TENSOR_BYTES', large)
    program, shapes = program_of(name, dtype)
    inputs = arrays(shapes, dtype)
    assert plan_of(program), 'there should be a plan for each of these'
    want, kept = interpret(program, *inputs), [x.copy() for x in inputs]
    for threads in (1, 2, 3):
        for got, w in zip(execute(program, *inputs, threads=threads), want):
            got, w = np.asarray(got, np.float32), np.asarray(w, np.float32)
            assert np.abs(got - w).max() <= (1e-5 if dtype == 'float32' else 2e-2) * max(1, np.abs(w).max())
    assert all((x == k).all() for x, k in zip(inputs, kept)), 'inputs are not changed'


def test_matmuls_become_products():
    program, _ = program_of('hoisted')
    code, nodes = plan_of(program)
    left = [code.ops[n].op for n in instruction_numbers(nodes)]
    assert left == ['nc_matmul'], 'all copies are gone'


def test_nests_are_fused(monkeypatch):
    program, _ = program_of('two_nests')
    assert fuse.fuse(program) is program, 'it is small'
    monkeypatch.setattr(fuse, 'MIN_SHARED_TENSOR_BYTES', 2**10)
    assert len(fuse.fuse(program).body) == 1


def test_seeds_share_a_plan():
    program, shapes = program_of('gemm')
    first = plan_of(program)
    for seed in range(3): assert np.isfinite(execute(program, *arrays(shapes, seed=seed))[0]).all()
    assert plan_of(program) is first


@pytest.mark.parametrize('text, reason', [
    ("x):\n out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n t = nl.ndarray((128, 64), x.dtype, "
     "buffer=nl.sbuf)\n"
     " t[:, 0:63] = nl.load(x[:, 0:63])\n nl.store(out, t)\n return out", 'read before it is written'),
    ("x):\n out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n for i in nl.affine_range(3):\n"
     "  nl.store(out[:, nl.ds(i*16, 16)], nl.load(x[:, nl.ds(i*16, 16)]))\n return out", 'not written everywhere')])
def test_what_nobody_wrote_is_still_refused(text, reason):
    with installed(): kernel = load_source(HEAD + text, 'kernel')
    program = trace(kernel, ArraySpec((128, 64)))
    assert plan_of(program) is None
    with pytest.raises(Exception, match=reason): execute(program, *arrays([(128, 64)]))


@pytest.mark.parametrize('name', ['tail', 'running', 'gemm', 'folded', 'in_place'])
def test_stepping_anywhere(name):
    program, shapes = program_of(name)
    inputs = arrays(shapes)
    want = interpret(program, *inputs)
    s, rng = Stepper(program, *inputs), np.random.default_rng(0)
    for position in rng.integers(0, s.count + 1, 12): s.goto(int(position))
    there = [s.value(k) for k in range(len(program.tensors))]
    fresh = Stepper(program, *inputs).goto(s.at)
    for k, t in enumerate(there):
        again = fresh.value(k)
        assert (np.ma.getmaskarray(t) == np.ma.getmaskarray(again)).all() and np.array_equal(
            t.filled(0), again.filled(0), equal_nan=True)
    s.goto(s.count)
    # another number of BLAS threads
    for k, w in zip(program.output_ids, want): assert np.allclose(s.value(k).filled(np.nan), w, rtol=1e-6, atol=1e-6)
