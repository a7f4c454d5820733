"The front doors: what a kernel may look like, and what it is told when it may not."
import numpy as np, pytest, sys
from types import ModuleType
from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.nki import ArraySpec, installed, profile, simulate, trace
from kernel_lab.nki.lang.trace import trace_source
from dialects import nki, nl, normal

HEAD = 'import nki, nki.isa as nisa, nki.language as nl\n\n@nki.jit\ndef kernel(x):\n'
SPEC = [ArraySpec((128, 64))]

def fails(body, kind, *parts):
    "The body of a kernel is refused with this kind and these words, on a line of the kernel."
    with pytest.raises(KernelError) as e: trace_source(HEAD + ''.join(f'    {l}\n' for l in body), None, SPEC)
    assert e.value.kind == kind and e.value.line and all(p in str(e.value) for p in parts), str(e.value)

def test_an_unknown_instruction_says_where_the_list_is():
    fails(['nisa.frobnicate(x)'], 'unsupported', 'nki.isa.frobnicate', 'reference_table')
def test_a_known_one_that_is_not_modelled_says_so():
    fails(['nisa.builtin_custom_op(x)'], 'unsupported', 'is part of NKI')
def test_a_python_error_has_its_line(): fails(['a = 1', 'b = a / 0'], 'trace', 'line 6', 'ZeroDivisionError')
def test_out_of_bounds_has_its_line(): fails(['t = nl.load(x[0:200, :])'], 'limit', 'line 5', '0..127')
def test_truth_of_a_tile(): fails(['t = nl.load(x)', 'if t > 0: return x'], 'trace', 'no truth value')
def test_endless_recursion(): fails(['def f(): return f()', 'f()'], 'trace', 'recurses')
def test_returning_a_number():
    with pytest.raises(KernelError, match='returns a int'): trace_source(HEAD + '    return 3', None, SPEC)

def test_real_packages_are_restored(tmp_path, monkeypatch):
    (tmp_path / 'nki').mkdir(); (tmp_path / 'nki' / '__init__.py').write_text('mine = True')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'nki', raising=False)
    import nki as real
    with installed():
        import nki as ours
        assert not hasattr(ours, 'mine')
    assert sys.modules['nki'] is real and real.mine
    del sys.modules['nki']

def test_kernels_call_kernels():
    @nki.jit
    def inner(t): return nl.exp(t)
    @nki.jit
    def outer(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, inner(nl.load(x)))
        return out
    np.testing.assert_allclose(outer(normal(128, 8)), np.exp(normal(128, 8)), rtol=1e-6)

def test_numbers_and_lists_are_arguments():
    @nki.jit
    def f(xs, scale, flip=False):
        out = nl.ndarray(xs[0].shape, xs[0].dtype, buffer=nl.shared_hbm)
        nl.store(out, (nl.load(xs[1 if flip else 0]) * scale))
        return out
    a, b = normal(128, 4, seed=1), normal(128, 4, seed=2)
    np.testing.assert_allclose(simulate(f, [a, b], 3.0, flip=True), 3 * b, rtol=1e-6)

def test_several_outputs_come_back_as_a_tuple():
    @nki.jit
    def f(x):
        a, b = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        t = nl.load(x)
        nl.store(a, t); nl.store(b, t * 2)
        return a, b
    a, b = simulate(f, normal(128, 4))
    assert (2 * a == b).all()

def test_unknown_chip_lists_the_chips():
    with pytest.raises(UsageError, match='trn1, trn2'): profile(lambda x: x, normal(4, 4), chip='trn7')

def test_tracing_does_not_depend_on_values():
    @nki.jit
    def f(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    assert trace(f, normal(128, 8)).to_json() == trace(f, np.zeros(
        (128, 8), np.float32)).to_json() == trace(f, ArraySpec((128, 8))).to_json()

def test_two_kernels_need_a_name():
    text = HEAD.replace('kernel', 'one') + '    return x\n\n' + HEAD.replace('kernel', 'two') + '    return x\n'
    with pytest.raises(KernelError, match='2 kernels'): trace_source(text, None, SPEC)
    assert trace_source(text, 'two', SPEC).name == 'two'


def test_stand_ins_are_put_in_place_and_taken_away(monkeypatch):
    "A dialect that is installed comes back, with its parts; what a kernel put beside the stand-ins goes with them."
    theirs = {name: ModuleType(name) for name in ('nki', 'nki.own', 'neuronxcc', 'nkiother')}
    for name, module in theirs.items(): monkeypatch.setitem(sys.modules, name, module)
    for left_behind in ((), ('nki.left', 'unrelated')):
        with installed():
            assert sys.modules['nki'] is not theirs['nki'] and 'nki.own' not in sys.modules
            assert sys.modules['nkiother'] is theirs['nkiother']
            outer = sys.modules['nki']
            with installed(): assert sys.modules['nki'] is outer
            assert sys.modules['nki'] is outer
            for name in left_behind: monkeypatch.setitem(sys.modules, name, ModuleType(name))
        assert all(sys.modules[name] is module for name, module in theirs.items())
        assert 'nki.left' not in sys.modules and 'neuronxcc.nki' not in sys.modules


def test_what_a_kernel_prints_appears_once_and_only_what_it_prints_is_held(capsys):
    "A loop that has to be written out is found in its middle, after lines that have printed."
    import threading

    def kernel(x):
        print('once')
        other = threading.Thread(target=lambda: print('another thread'))
        other.start()
        other.join()
        out, t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm), 0
        for i in nl.affine_range(3):
            print('turn', i)
            t = t + 1
            nl.store(out, nl.load(x) + float(t))
        return out

    before = sys.stdout
    trace(kernel, ArraySpec((128, 64)))
    said = capsys.readouterr().out.splitlines()
    assert sys.stdout is before and said.count('another thread') == 2
    assert [line for line in said if line != 'another thread'] == ['once', 'turn 0', 'turn 1', 'turn 2']
    with pytest.raises(KernelError): trace(lambda x: print('refused') or x + nothing, ArraySpec((128, 64)))   # noqa: F821
    assert capsys.readouterr().out == 'refused\n'
