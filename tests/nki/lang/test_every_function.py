"Every function of both languages that makes a tile, called in a kernel: `check` takes what it records, on every chip."
import types

import numpy as np
import pytest
from dialects import nki, nl, normal, old, onl
from kernel_lab.nki import CHIPS, check, interpret, trace

LANGUAGES = {'nki': (nki, nl), 'neuronxcc.nki': (old, onl)}
# what makes no tile or is not a language's, what works on HBM, and what needs other arguments than tiles
OTHERS = {'affine_range', 'sequential_range', 'static_range', 'program_id', 'num_programs', 'program_ndim', 'spmd_dim',
          'device_print', 'random_seed', 'is_hbm', 'is_psum', 'is_sbuf', 'is_on_chip', 'finfo', 'gemm_grid',
          'gemm_stationary_grid', 'shared_constant', 'static_cast', 'load', 'store', 'load_transpose2d', 'atomic_rmw',
          'ndarray', 'empty_like', 'all_reduce', 'loop_reduce', 'result', 'binary', 'unary', 'identity', 'bypass'}
# arguments from tiles a, b of floats and i, j of integers, where (a,) and (a, b) are wrong
TAKES = {
    **dict.fromkeys(('zeros', 'ones', 'rand'), lambda a, b, i, j: ((128, 8), np.float32)),
    **dict.fromkeys(('sum', 'max', 'min', 'prod', 'mean', 'var', 'all', 'softmax', 'expand_dims'),
                    lambda a, b, i, j: (a, 1)),
    **dict.fromkeys(('bitwise_and', 'bitwise_or', 'bitwise_xor', 'left_shift', 'right_shift'),
                    lambda a, b, i, j: (i, j)),
    'invert': lambda a, b, i, j: (i,),
    'full': lambda a, b, i, j: ((128, 8), 2.0, np.float32),
    'where': lambda a, b, i, j: (i, a, b),
    'rms_norm': lambda a, b, i, j: (a, b, 1, 8),
    'dropout': lambda a, b, i, j: (a, 0.5),
    'broadcast_to': lambda a, b, i, j: (a[:, 0:1], (128, 8)),
    'gather_flattened': lambda a, b, i, j: (a, i),
    'shared_identity_matrix': lambda a, b, i, j: (128,),
    'matmul': lambda a, b, i, j: (a, b, True),
}
BINARY = ('add', 'subtract', 'multiply', 'divide', 'maximum', 'minimum', 'power', 'mod', 'fmod', 'equal', 'not_equal',
          'less', 'less_equal', 'greater', 'greater_equal', 'logical_and', 'logical_or', 'logical_xor', 'abs_max',
          'abs_min')
NAMES = [(dialect, name) for dialect, (_, m) in LANGUAGES.items() for name, f in vars(m).items()
         if isinstance(f, types.FunctionType) and f.__module__.endswith('language') and name[0] != '_'
         and name not in OTHERS]


def of(dialect, name):
    "A kernel that calls one function and stores what it makes."
    package, m = LANGUAGES[dialect]
    takes = TAKES.get(name, lambda a, b, i, j: (a, b) if name in BINARY else (a,))
    def kernel(x, y, k):
        made = getattr(m, name)(*takes(m.load(x), m.load(y), m.load(k), m.load(k)))
        out = m.ndarray(made.shape, made.dtype, buffer=m.shared_hbm)
        m.store(out, m.copy(made))
        return out
    return package.jit(kernel)


@pytest.mark.parametrize('dialect, name', NAMES, ids=[f'{d} {n}' for d, n in NAMES])
def test_check_takes_what_the_functions_of_a_language_record(dialect, name):
    x, y, k = abs(normal(128, 8)) + 1, abs(normal(128, 8, seed=1)) + 1, np.ones((128, 8), np.uint32)
    for chip in CHIPS:
        program = trace(of(dialect, name), x, y, k, chip=chip)
        assert not check(program), chip
        assert np.isfinite(interpret(program, x, y, k)[0].astype(np.float32)).all(), chip
