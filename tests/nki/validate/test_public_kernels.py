"""Kernels that nobody here wrote: NKIBench, from a checkout named by NKIBENCH (the folder with kernels/ and
reference/). Slow: full shapes."""
import importlib.util, os
from pathlib import Path
import numpy as np, pytest
from kernel_lab.nki import assert_ok, installed, profile_of, schedule, simulate, trace

ROOT = Path(os.environ.get('NKIBENCH', '/nonexistent'))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not ROOT.exists(), reason='set NKIBENCH to a checkout of NKIBench '
                                                                             'to run its kernels')]
NAMES = [p.stem for p in sorted((ROOT / 'kernels').glob('*.py'))] or ['none']

def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

@pytest.mark.parametrize('name', NAMES)
def test_nkibench(name):
    with installed(): kernel = load(ROOT / 'kernels' / f'{name}.py').kernel
    reference = load(next((ROOT / 'reference').glob(f'{name[:-2]}_numpy*.py')))
    np.random.seed(0)
    inputs = reference.get_inputs()
    arrays = reference.transform_to_nki_inputs(inputs)
    program = assert_ok(trace(kernel, *arrays))
    want = reference.forward(*inputs)
    got = reference.transform_nki_outputs(simulate(kernel, *arrays), want)
    for g, w in zip(got, want if isinstance(want, tuple) else (want,)):
        assert np.linalg.norm(g - w) / np.linalg.norm(w) < 3e-5
    assert 0 < profile_of(schedule(program)).peak_pct < 100
