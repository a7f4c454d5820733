"What the tests of the simulator share: both dialects as modules, and one way to run a kernel."
import numpy as np
from kernel_lab.nki import assert_ok, execute, installed, trace

with installed():
    import nki  # noqa: F401
    import nki.isa as nisa
    import nki.language as nl
    import neuronxcc.nki as old  # noqa: F401
    import neuronxcc.nki.isa as oisa  # noqa: F401
    import neuronxcc.nki.language as onl  # noqa: F401

def run(kernel, *arrays, chip='trn1', **kw):
    "Outputs of a kernel, traced, checked and executed; the program is sent through its file format on the way."
    program = assert_ok(trace(kernel, *arrays, chip=chip, **kw))
    again = type(program).from_json(program.to_json())
    assert str(again) == str(program)
    return execute(again, *[a for a in arrays if isinstance(a, np.ndarray)])

def normal(*shape, seed=0, dtype=np.float32): return np.random.default_rng(seed).normal(size=shape).astype(dtype)

def on_tile(write, shape_in, shape_out=None, dtype=np.float32):
    "A current-dialect kernel that loads one input, lets `write(dst, src)` work on tiles, and stores."
    def kernel(x):
        out = nl.ndarray(shape_out or shape_in, dtype, buffer=nl.shared_hbm)
        src, dst = nl.ndarray(shape_in, x.dtype), nl.ndarray(shape_out or shape_in, dtype)
        nisa.dma_copy(src, x)
        write(dst, src)
        nisa.dma_copy(out, dst)
        return out
    return kernel
