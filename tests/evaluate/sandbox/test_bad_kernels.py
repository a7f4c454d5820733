"""Every way a kernel can be bad ends in a status of its own, an error that teaches, and nothing left behind.

Each source marks the line to blame with `# <-`. `says` are words that the error must hold: the limit, the value,
what to try."""
import sys
import tempfile
import time

import pytest
import torch

from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.evaluate.records.verification import Status
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.sandbox.run import Limits
from kernel_lab.tasks.codegen.graph import export_program
from kernel_lab.tasks.model.workload import Kernel
from bad_kernels import GOOD, HEAD, PATIENT, QUICK, ROOMY, TASK, attack, body, children, left_behind

# name: (source, status, words of the error)
KERNELS = {
    'does not parse': ('def kernel(x):\n    return x +  # <-\n', 'parse_error',
                       ['does not parse']), 'nested too deeply': ('x = ' + '-' * 100_000 + '1\n' + GOOD, 'parse_error',
                                                                  ['nested too deeply', 'smaller pieces']),
    'a thousand brackets': ('x = ' + '(' * 1000 + ')' * 1000 + '  # <-\n', 'parse_error',
                            ['too many nested parentheses']), 'null bytes': ('def kernel(x):\n    return "\0"\n',
                                                                             'parse_error', ['NUL byte']),
    'no text': ('', 'no_entry', ['no kernel']), 'no entry function': ('x = 1\n', 'no_entry', ['no kernel']),
    'two entry functions': ('def a(x): pass\ndef b(x): pass\n', 'no_entry',
                            ['a, b']), 'too many parameters': ('def kernel(x, y, z): return x\n', 'no_entry',
                                                               ['1 inputs', "'y'"]),
    'unknown name': (body('return nl.no_such_function(x)  # <-'), None,
                     ['no_such_function']), 'raises': (body('raise ValueError("no idea")  # <-'), 'trace_error',
                                                       ['ValueError', 'no idea'
                                                        ]), 'returns a number': (body('return 3'), 'wrong_shape',
                                                                                 ['returns a int']),
    'returns nothing': (body('pass'), 'wrong_shape', ['returns nothing', 'Return the HBM tensor']), 'truth of a tile': (
        body('if x > 0: return x  # <-', 'return x'), None,
        []), '130 partitions': (body('tile = nl.ndarray((130, 64), dtype=nl.float32, buffer=nl.sbuf)  # <-',
                                     'nisa.memset(dst=tile, value=0)', 'return x'), 'limit_exceeded',
                                ['partitions', '128', '130', 'Split']), 'a PSUM tile of 3 KiB': (
                                    body('tile = nl.ndarray((128, 768), dtype=nl.float32, buffer=nl.psum)  # <-',
                                         'nisa.memset(dst=tile, value=0)',
                                         'return x'), 'limit_exceeded', ['2048', '3072', 'PSUM', '512']),
    'a matmul operand in HBM': (
        body('tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)', 'nisa.dma_copy(dst=tile, src=x)',
             'acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)',
             'nisa.nc_matmul(dst=acc, stationary=tile, moving=x)  # <-', 'return x'), 'limit_exceeded',
        ['nc_matmul', 'moving', 'limit sbuf, got hbm', 'dma_copy'
         ]), 'wrong output shape': (GOOD.replace('nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)',
                                                 'nl.ndarray((64, 128), dtype=x.dtype, buffer=nl.shared_hbm)  # <-'),
                                    None, ['64', '128']), 'wrong output dtype': (
                                        GOOD.replace('dtype=x.dtype, buffer=nl.shared_hbm)',
                                                     'dtype=nl.bfloat16, buffer=nl.shared_hbm)  # <-'), 'wrong_shape',
                                        ['wrong dtype', 'float32',
                                         'bfloat16']), 'two outputs': (GOOD.replace('return out', 'return out, out'),
                                                                       'wrong_shape', ['expected 1, got 2']),
    'reads what nobody wrote': (GOOD.replace('    nisa.dma_copy(dst=tile, src=x)\n',
                                             '').replace('op=nl.add)', 'op=nl.add)  # <-'), 'uninitialised',
                                ['read before it is written', 'memset']), 'writes half of the output': (
                                    GOOD.replace('nisa.dma_copy(dst=out, src=tile)',
                                                 'nisa.dma_copy(dst=out[0:64, :], src=tile[0:64, :])'), 'uninitialised',
                                    ['not written everywhere']), 'wrong result': (GOOD.replace('nl.add', 'nl.multiply'),
                                                                                  'wrong_result', []),
    'not finite': (GOOD.replace('    nisa.tensor_tensor',
                                '    nisa.memset(dst=tile, value=3e38)\n    nisa.tensor_tensor'), 'not_finite',
                   []), 'loops for ever': (body('while True: pass  # <-'), 'timeout',
                                           ['1 s', 'loop without an end']), 'loops and swallows everything': (
                                               body('while True:', '    try:', '        while True: pass',
                                                    '    except BaseException: pass'), 'timeout',
                                               ['1 s']), 'sleeps in C': (body('import time', 'time.sleep(60)  # <-',
                                                                              'return x'), 'timeout',
                                                          ['1 s', 'prints something huge, or waits']),
    'stops itself': (attack('while True: signal.raise_signal(signal.SIGSTOP)'), 'timeout',
                     ['1 s'
                      ]), 'allocates without end': (body('kept = []',
                                                         'while True: kept.append(bytearray(1 << 26))  # <-'),
                                                    'out_of_memory',
                                                    ['ran out of memory', 'grows in a loop'
                                                     ]), 'allocates at once': (body('return bytearray(1 << 40)  # <-'),
                                                                               'out_of_memory', ['ran out of memory']),
    'simulates without end': (
        HEAD +
        'def kernel(x):\n    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)\n    for i in '
        'nl.affine_range(2000000000):\n'
        '        nisa.memset(dst=tile, value=0)  # <-\n    return x\n', 'limit_exceeded',
        ['2,000,000 instructions', '2,000,000,000']), 'a tensor of 64 GB': (
            HEAD +
            'def kernel(x):\n    y = nl.ndarray((1 << 17, 1 << 17), dtype=nl.float32, buffer=nl.hbm)\n    return y\n',
            'out_of_memory', ['65536 MB', '640 MB'
                              ]), 'leaves with 0': (attack('os._exit(0)'), 'crashed',
                                                    ['exit code 0']), 'leaves with 7': (attack('os._exit(7)'),
                                                                                        'crashed', ['exit code 7']),
    'bad pointer': (attack('ctypes.string_at(0)'), 'crashed',
                    ['bad memory access']), 'aborts': (attack('os.abort()'), 'crashed',
                                                       ['without an answer'
                                                        ]), 'closes every file': (attack('os.closerange(0, 64)'),
                                                                                  'crashed', ['without an answer']),
    'talks junk': (attack('for fd in range(3, 64):', '    try: os.write(fd, b"junk")',
                          '    except OSError: pass'), 'crashed',
                   ['junk', 'pipes'
                    ]), 'talks without end': (attack('for fd in range(3, 64):', '    try:',
                                                     '        while True: os.write(fd, bytes(1 << 16))',
                                                     '    except OSError: pass'), 'limit_exceeded',
                                              ['64 MiB']), 'sys.exit': (attack('sys.exit(0)  # <-'), 'trace_error',
                                                                        ['a kernel does not exit']),
    'BaseException': (attack('raise BaseException("gone")  # <-'), 'trace_error',
                      ['BaseException', 'gone'
                       ]), 'KeyboardInterrupt': (attack('raise KeyboardInterrupt  # <-'), 'trace_error',
                                                 ['KeyboardInterrupt']), 'recursion': (body('return kernel(x)  # <-'),
                                                                                       'trace_error', ['recurses']),
    'an exception that cannot be printed': (
        'class Rude(BaseException):\n    def __str__(self): raise SystemExit\ndef kernel(x):\n    raise Rude()  # <-\n',
        'trace_error', ['Rude']), 'a huge exception': (body('raise ValueError("x" * (1 << 26))  # <-'), 'trace_error',
                                                       ['ValueError']), 'waits for input': (body('input()  # <-'),
                                                                                            'trace_error', ['EOF']),}
DISK = {
    'fills the disk': (body('with open("big", "wb") as f:',
                            '    while True: f.write(bytes(1 << 20))  # <-'), 'trace_error', ['File too large'])}
LINUX = {
    'forks': (attack('os.fork()  # <-'), 'trace_error',
              ['not permitted', 'no process']), 'forks without end': (attack('while True: os.fork()  # <-'),
                                                                      'trace_error', ['not permitted']),
    'starts a daemon': (attack('subprocess.Popen(["sleep", "600"], start_new_session=True)  # <-'), 'trace_error',
                        ['not permitted']), 'connects': (attack('socket.create_connection(("127.0.0.1", 9), 1)  # <-'),
                                                         'trace_error', ['not permitted', 'no socket']),
    'kills its parent': (attack('os.kill(os.getppid(), signal.SIGKILL)  # <-'), 'trace_error',
                         ['not permitted']), 'writes a file': (attack('open("/tmp/kernel-lab-was-here", "w")  # <-'),
                                                               'trace_error', ['not permitted', 'write no file']),
    'fills the disk': (attack('open("big", "wb").write(bytes(1 << 20))  # <-'), 'trace_error', ['not permitted']),
    'deletes a file': (attack('os.unlink(os.__file__)  # <-'), 'trace_error',
                       ['not permitted']), 'makes a folder': (attack('os.mkdir("/tmp/kernel-lab-folder")  # <-'),
                                                              'trace_error', ['not permitted']),
    'plants a start-up file': (
        attack('open(os.path.join(os.path.dirname(os.__file__), "site-packages", "x.pth"), "a")  # <-'), 'trace_error',
        ['not permitted']), 'kills everybody': (attack('os.kill(-1, signal.SIGKILL)  # <-'), 'trace_error',
                                                ['not permitted']),}
KERNELS |= LINUX if sys.platform == 'linux' else DISK
HARMLESS = {
    'prints 2 GB': attack('for i in range(2048): print("x" * (1 << 20))'),
    'leaves a thread': attack('threading.Thread(target=lambda: time.sleep(600)).start()'),
    'registers an exit handler': attack('import atexit', 'atexit.register(lambda: time.sleep(600))'),
    'patches numpy': attack('import numpy', 'numpy.allclose = numpy.array_equal = lambda *a, **k: True',
                            'numpy.abs = lambda x: x * 0'),}


@pytest.fixture(scope='module', autouse=True)
def exported():
    "The folder of caches that torch makes for a user when it first exports a function is no evaluation's."
    export_program(lambda x: x * 2, [torch.zeros(2)], 'double')


@pytest.fixture
def clean(tmp_path, monkeypatch, capfd):
    "Fails where an evaluation leaves a process, a file or a word on the terminal."
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    before, since = children(), time.monotonic()
    yield
    assert not left_behind(before), 'a process was left behind'
    assert not list(tmp_path.iterdir()), 'files were left behind'
    assert ''.join(capfd.readouterr()) == '', 'something was printed'
    assert time.monotonic() - since < 90, 'it took too long'


def blamed(source):
    "The number of the line marked with `# <-`, or None."
    return next((k for k, line in enumerate(source.split('\n'), 1) if line.endswith('# <-')), None)


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', KERNELS)
def test_bad_kernel(name, clean):
    source, status, says = KERNELS[name]
    limits = {'out_of_memory': ROOMY, 'timeout': QUICK}.get(status, PATIENT)
    e = evaluate(Kernel(source), TASK, seeds=1, baseline_us=1.0, limits=limits)
    assert status in (None, str(e.status)), f'{e.status}: {e.error}'
    assert e.status not in ('correct', 'lab_error'), str(e)
    assert e.profile is None and e.speedup is None
    if e.error is None: return
    error = KernelError.from_dict(e.error)
    assert blamed(source) in (None, error.line), str(error)
    assert all(word in str(error) for word in says), str(error)
    assert 'Traceback' not in e.log and str(error) in e.log


@pytest.mark.parametrize('name', HARMLESS)
def test_harmless(name, clean):
    e = evaluate(Kernel(HARMLESS[name]), TASK, seeds=1, baseline_us=1.0, limits=Limits(seconds=60))
    assert e.status == 'correct', str(e)


def test_the_good_one(clean):
    assert evaluate(Kernel(GOOD), TASK).speedup == 1.0


def test_every_limit_error_says_what_to_try():
    for name in ('130 partitions', 'a PSUM tile of 3 KiB', 'a matmul operand in HBM'):
        error = evaluate(Kernel(KERNELS[name][0]), TASK, seeds=1, limits=PATIENT).error
        assert error['hint'] and error['limit'] and error['value'] and error['line'], (name, error)


@pytest.mark.parametrize(
    'wrong, says',
    [
        (dict(task='dubble'), 'There is no task'),
        (dict(task='softmax', workload='smal'), "Did you mean 'small'"),
        (dict(task='softmax', chip='tnr1'), "Did you mean 'trn1'"),
        (dict(task=TASK, seeds=0), 'at least one seed'),
    ],
)
def test_unknown_names(wrong, says):
    with pytest.raises(UsageError, match=says): evaluate(Kernel(GOOD), **wrong)


def test_no_secret_reaches_the_kernel(monkeypatch, clean):
    monkeypatch.setenv('ANTHROPIC_API_KEY', 'sk-very-secret-1234')
    e = evaluate(Kernel(attack('raise ValueError(sorted(os.environ.items()))')), TASK, seeds=1, limits=PATIENT)
    assert 'OMP_NUM_THREADS' in str(e) and 'sk-very' not in str(e.to_dict())


def test_no_value_reaches_the_kernel(clean):
    "The kernel sees a symbol: no array, no bytes."
    e = evaluate(Kernel(body('raise ValueError([type(x).__name__, hasattr(x, "__dlpack__"), hasattr(x, "tobytes")])')),
                 TASK, seeds=1, limits=PATIENT)
    assert 'False, False' in str(e), str(e)
    for text in ('x.__array__()', 'np.asarray(x)', 'np.array([x])', 'memoryview(x)'):
        e = evaluate(Kernel(body(f'import numpy as np; raise ValueError(repr({text}))')), TASK, seeds=1, limits=PATIENT)
        assert e.status == Status.TRACE_ERROR and 'ValueError' not in str(e), (text, str(e))
