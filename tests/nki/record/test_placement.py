"Places that a kernel chooses itself: kept in the program, possible, and not shared by tiles that are needed at once."
import numpy as np, pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import trace
from kernel_lab.nki.checks.checker import assert_ok, check
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.lang.trace import installed
from dialects import nisa as cisa, nl as cnl, normal, old as nki, onl as nl, run
with installed():
    import neuronxcc.nki.compiler as ncc, neuronxcc.nki.isa as nisa
    import nki as current

X = normal(8, 128, 64)
def hbm(*shape): return nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)

def added(a, at, tiles):
    "Two tensors of eight blocks, added block by block."
    out = hbm(8, 128, 64)
    one, two, res = (nl.ndarray((8, nl.par_dim(128), 64), nl.float32,
                                buffer=ncc.sbuf.mod_alloc(base_addr=p, num_free_tiles=(tiles,))) for p in at)
    for i in nl.affine_range(8):
        one[i], two[i] = nl.load(a[i]), nl.load(a[7 - i])
        res[i] = nisa.tensor_tensor(one[i], two[i], op=nl.add)
        nl.store(out[i], res[i])
    return out

@pytest.mark.parametrize('at,tiles', [((0, 256, 512), 1), ((0, 1024, 2048), 4), ((0, 4096, 8192), 8), ((0, 512, 0), 1)])
def test_places_that_do_not_meet(at, tiles):
    np.testing.assert_allclose(run(nki.jit(added), X, at, tiles)[0], X + X[::-1], rtol=1e-6)

@pytest.mark.parametrize('at,tiles', [((0, 0, 0), 4), ((0, 128, 2048), 1), ((0, 128, 4096), 8)])
def test_places_that_meet(at, tiles):
    with pytest.raises(KernelError, match='alive at once') as e: assert_ok(trace(nki.jit(added), X, at, tiles))
    assert str(e.value).count('(allocated in line') == 1 and e.value.line

def test_the_program_keeps_places():
    program = trace(nki.jit(added), X, (0, 1024, 2048), 2)
    places = [t.places for t in program.tensors if t.places]
    assert places[0] == ((0, 0), (0, 256)) * 4 and len(places) == 3
    assert Program.from_json(program.to_json()) == program

def test_two_block_dimensions():
    def kernel(a):
        out = hbm(2, 4, 128, 64)
        t = nl.ndarray((2, 4, nl.par_dim(128), 64), nl.float32,
                       buffer=ncc.sbuf.mod_alloc(base_addr=512, num_free_tiles=(1, 2)))
        for i in nl.affine_range(2):
            for j in nl.affine_range(4):
                t[i, j] = nl.load(a[i * 4 + j])
                nl.store(out[i, j], t[i, j])
        return out
    program = trace(nki.jit(kernel), X)
    assert next(t.places for t in program.tensors if t.places) == ((0, 512), (0, 768)) * 4
    np.testing.assert_array_equal(run(nki.jit(kernel), X)[0].reshape(X.shape), X)

@pytest.mark.parametrize('tiles,fine', [(8, True), (4, False)])
def test_all_blocks_needed_at_once(tiles, fine):
    def kernel(a):
        out = hbm(8, 128, 64)
        t = nl.ndarray((8, nl.par_dim(128), 64), nl.float32,
                       buffer=ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(tiles,)))
        for i in nl.affine_range(8): t[i] = nl.load(a[i])
        for i in nl.affine_range(8): nl.store(out[i], t[i])
        return out
    found = check(trace(nki.jit(kernel), X))
    assert fine == (not found)
    if not fine: assert 't[0]' in found[0].message and f't[{tiles}]' in found[0].message

def test_partition_tiles():
    "Four tiles of 32 partitions beside each other."
    def kernel(a, n):
        out = hbm(4, 32, 64)
        t = nl.ndarray((4, nl.par_dim(32), 64), nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0, num_par_tiles=(n,)))
        for i in nl.affine_range(4): t[i] = nl.load(a[i, 0:32])
        for i in nl.affine_range(4): nl.store(out[i], t[i])
        return out
    np.testing.assert_array_equal(run(nki.jit(kernel), X, 4)[0], X[:4, :32])
    with pytest.raises(KernelError, match='alive at once'): assert_ok(trace(nki.jit(kernel), X, 2))

def test_psum_banks():
    def kernel(a, banks):
        out = hbm(4, 64, 64)
        ps = nl.ndarray((4, nl.par_dim(64), 64), nl.float32,
                        buffer=ncc.psum.mod_alloc(base_bank=1, num_bank_tiles=(banks,)))
        for i in nl.affine_range(4):
            x = nl.load(a[i])
            ps[i] = nisa.nc_matmul(x, x)
        for i in nl.affine_range(4): nl.store(out[i], nl.copy(ps[i]))
        return out

    np.testing.assert_allclose(
        run(nki.jit(kernel), X, 4)[0], np.einsum('ikm,ikn->imn', X[:4], X[:4]), rtol=1e-5, atol=1e-5)
    with pytest.raises(KernelError, match='PSUM'): assert_ok(trace(nki.jit(kernel), X, 2))


@pytest.mark.parametrize(
    'buffer,says',
    [
        (lambda: ncc.sbuf.mod_alloc(base_addr=300_000), 'inside SBUF'),
        (lambda: ncc.sbuf.alloc(lambda i, p, n: (64, 0)), 'cannot start there'),
        (lambda: ncc.sbuf.mod_alloc(base_addr=3), 'aligned'),
        (lambda: ncc.psum.mod_alloc(base_bank=8), 'inside PSUM'),
        (lambda: ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2,)), 'each block dimension'),
        (lambda: ncc.psum.alloc(lambda i, p, n: (0, 0)), 'bank, partition, byte'),
    ],
)
def test_impossible_places(buffer, says):
    def kernel(a):
        t = nl.ndarray((128, 64), nl.float32, buffer=buffer())
        t[...] = nl.load(a[0])
        return t
    with pytest.raises(KernelError, match=says) as e: trace(nki.jit(kernel), X)
    assert e.value.line

def test_the_chip_decides_about_room():
    def kernel(a):
        out = hbm(128, 64)
        t = nl.ndarray((128, 64), nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=190_000))
        t[...] = nl.load(a[0])
        nl.store(out, t)
        return out
    program = trace(nki.jit(kernel), X, chip='trn2')
    assert not check(program, 'trn2') and 'inside SBUF' in check(program, 'trn1')[0].message

def test_addresses_of_the_current_dialect():
    def kernel(a, at):
        out = cnl.ndarray((128, 64), cnl.float32, buffer=cnl.shared_hbm)
        one, two = cnl.ndarray((128, 64), cnl.float32, address=(0, 0)), cnl.ndarray((128, 64), cnl.float32,
                                                                                    address=(0, at))
        cisa.dma_copy(one, a[0])
        cisa.dma_copy(two, a[1])
        cisa.tensor_tensor(one, one, two, cnl.add)
        cisa.dma_copy(out, one)
        return out
    np.testing.assert_allclose(run(current.jit(kernel), X, 256)[0], X[0] + X[1], rtol=1e-6)
    with pytest.raises(KernelError, match='alive at once'): assert_ok(trace(current.jit(kernel), X, 128))

@nki.jit
def counted_on(x):
    "Two work tiles side by side, at an address that the body counts on as it allocates."
    out, at = hbm(128, 512), 0
    for i in nl.affine_range(8):
        t = nl.ndarray((nl.par_dim(128), 64), nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=at))
        at += 256
        u = nl.ndarray((nl.par_dim(128), 64), nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=at))
        at += 256
        t[...] = nl.load(x[i])
        u[...] = nl.exp(t)
        nl.store(out[:, nl.ds(i * 64, 64)], u)
    return out

def test_an_address_counted_on_in_a_body_is_that_of_the_first_iteration():
    program = assert_ok(trace(counted_on, X))
    assert len(program.loops) == 1 and [t.places for t in program.tensors if t.buffer == 'sbuf'] == [((0, 0),),
                                                                                                     ((0, 256),)]
    np.testing.assert_allclose(run(counted_on, X)[0], np.exp(X.transpose(1, 0, 2).reshape(128, 512)), rtol=1e-6)
