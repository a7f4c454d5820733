"""Published rows become programs from a checkout made here; the score is held against numbers worked out by hand."""
import subprocess
import numpy as np
import pandas as pd
import pytest
from kernel_lab.core.errors import UsageError
from kernel_lab.nki.validate.score import (calibrate, predict, score, score_rows, matching_rows, tau_b,
    weighted_median)
from kernel_lab.nki.validate.published import (Sources, arguments_of, tracing_digest, kernel_text, programs_of,
    read_rows)

KERNEL = '''
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
CHUNK = 512

@nki.jit
def scale(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for k in nl.affine_range(x.shape[1] // CHUNK):
        nl.store(y[:, k * CHUNK:(k + 1) * CHUNK], nl.load(x[:, k * CHUNK:(k + 1) * CHUNK]) * 2.0)
    return y

@nki.jit
def negate(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(y, nl.load(x) * -1.0)
    return y

@nki.jit
def broken(x): return undefined_name(x)
'''
HEAD = 'id,group,chip,bound,tier,weight,latency_us_for_calibration,source_repo,kernel_path,entry_function,dialect,shapes,dtype,vector_active_pct,note'

def line(id, path, entry='scale', shapes='x[128,2048]', dtype='fp32'):
    return (
        f'{id},made/scale,trn2,DMA,A,0.577,25.0,some/body,{path},{entry},legacy'
        f' neuronxcc.nki,"{shapes}",{dtype},10.0,note'
    )

@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
    "A repository with one commit, and the hash of that commit."
    root = tmp_path_factory.mktemp('checkouts')
    home = root / 'some' / 'body'
    home.mkdir(parents=True)
    (home / 'scale.py').write_text(KERNEL)
    git = lambda *words: subprocess.run(['git', '-C', home, '-c', 'user.name=a', '-c', 'user.email=a@b.c', *words],
                                        check=True, capture_output=True, text=True).stdout
    git('init', '-q'), git('add', '.'), git('commit', '-qm', 'one')
    commit = git('rev-parse', 'HEAD').strip()
    (home / 'scale.py').write_text('raise RuntimeError("not the commit that was asked for")')
    return root, commit

def table(tmp_path, *lines):
    path = tmp_path / 'rows.csv'
    path.write_text('\n'.join([HEAD, *lines]))
    return read_rows(path)

def test_rows_become_programs_of_their_commit(checkout, tmp_path):
    root, commit = checkout
    wide, fine = table(tmp_path, line('wide', f'scale.py@{commit}'), line('fine', f'scale.py@{commit} (set CHUNK=128)'))
    [(a, times)], [(b, _)] = (programs_of(r, Sources(root), tmp_path / 'cache') for r in (wide, fine))
    assert times == 1 and (a.count, b.count) == (3 * 4, 3 * 16)
    assert programs_of(wide, Sources(root), tmp_path / 'cache')[0][0].hash == a.hash
    assert wide.active == {'Vector': 10.0} and wide.latency_us == 25.0

def test_a_sum_of_launches_is_several_programs(checkout, tmp_path):
    root, commit = checkout
    chain, runs = table(
        tmp_path, line('chain', f'scale.py@{commit}', entry='scale + negate (two launches)', shapes='x[128,512]'),
        line('runs', f'scale.py@{commit}', shapes='SUM over x[128,512] and x[64,1024]; caps none', dtype='bf16'))
    assert [p.name for p, _ in programs_of(chain, Sources(root))] == ['scale', 'negate']
    assert [p.inputs[0].shape for p, _ in programs_of(runs, Sources(root))] == [(128, 512), (64, 1024)]
    parts = [
        predict(r, Sources(root))['latency_us'] for r in table(
            tmp_path,
            *(line(f'part{k}', f'scale.py@{commit}', shapes=s, dtype='bf16')
              for k, s in enumerate(('x[128,512]', 'x[64,1024]'))))]
    assert predict(runs, Sources(root))['latency_us'] == pytest.approx(sum(parts))

def test_what_cannot_be_built_stays_with_its_reason(checkout, tmp_path):
    root, commit = checkout
    rows = table(tmp_path, line('good', f'scale.py@{commit}'), line('unknown', f'scale.py@{"0" * 40}'),
                 line('broken', f'scale.py@{commit}', entry='broken'), line('unset', f'scale.py@{commit} (set ROWS=4)'),
                 line('shapeless', f'scale.py@{commit}', shapes='large'), line('odd', f'scale.py@{commit}',
                                                                               dtype='int3'))
    frame = calibrate(rows, [root], tmp_path / 'cache').set_index('id')
    for name, said in dict(unknown='0' * 12, broken='undefined_name', unset='ROWS=4', shapeless='large',
                           odd='int3').items():
        assert said in frame.reason[name]
    assert frame.reason.good == '' and frame.predicted_us.notna().sum() == 1
    whole = score(frame.reset_index()).iloc[0]
    assert (whole.rows, whole.missing) == (6, 5)
    assert any("made/scale trn2" in row for row in score_rows(score(frame.reset_index())))

def test_the_cache_answers_for_the_same_code_only(checkout, tmp_path):
    root, commit = checkout
    [row] = table(tmp_path, line('good', f'scale.py@{commit}'))
    first = calibrate([row], [root], tmp_path / 'cache')
    [kept] = (tmp_path / 'cache' / 'predicted').iterdir()
    kept.write_text(kept.read_text().replace(tracing_digest(('.', '*')), 'another version'))
    assert calibrate([row], [root], tmp_path / 'cache').equals(first)
    assert tracing_digest(('.', '*')) in kept.read_text()

def test_processes_give_the_same_frame(checkout, tmp_path):
    root, commit = checkout
    rows = table(tmp_path, *(line(f'r{k}', f'scale.py@{commit}', shapes=f'x[128,{512 * k}]') for k in (3, 1, 2)))
    assert calibrate(rows, [root], jobs=2).equals(calibrate(rows, [root]))

def test_lists_of_inputs():
    row = lambda **k: type('R', (), dict(group='g', path='a.py', variant='', dtype='fp32') | k)
    args, kwargs = arguments_of(row(shapes='q,k,v[128,512]'), None, ('v', 'k', 'q'))
    assert args == [] and list(kwargs) == ['q', 'k', 'v']
    args, kwargs = arguments_of(row(shapes='X[4,128] W[8,128] pool=2'), None, ('image', 'weight', 'pool_size'))
    assert [a.shape for a in args] == [(4, 128), (8, 128)] and kwargs == {'pool_size': 2}
    args, _ = arguments_of(row(shapes='batch=2 seq_len=64 channels=128 state_size=4'), None)
    assert [a.shape for a in args] == [(2, 128, 64), (2, 128, 64), (128, 4), (2, 4, 64), (2, 4, 64)]

def test_mistakes_of_the_command_teach(checkout, tmp_path):
    root, commit = checkout
    with pytest.raises(UsageError, match='latency_us_for_calibration'):
        (tmp_path / 'bad.csv').write_text('id,group\na,b')
        read_rows(tmp_path / 'bad.csv')
    with pytest.raises(UsageError, match='no rows'):
        (tmp_path / 'empty.csv').write_text(HEAD)
        read_rows(tmp_path / 'empty.csv')
    with pytest.raises(UsageError, match='nowhere'): Sources(root / 'nowhere')
    [row] = table(tmp_path, line('good', f'scale.py@{commit}'))
    with pytest.raises(UsageError, match='made/scale'): matching_rows([row], 'other/*')
    with pytest.raises(UsageError, match='git clone'): kernel_text(row, Sources(tmp_path))

def test_score_by_hand():
    frame = pd.DataFrame(
        dict(id=list('abcde'), group=['g', 'g', 'g', 'h', 'h'], chip=['trn1'] * 3 + ['trn2'] * 2, bound='PE', tier='A',
             weight=[1, 1, 1, 4, 4], measured_us=[10.0, 20.0, 30.0, 100.0,
                                                  200.0], predicted_us=[10.5, 40.0, 36.0, 100.0, 160.0], reason=''))
    frame['log_ratio'] = np.log(frame.predicted_us / frame.measured_us)
    table = score(frame).set_index(['by', 'name'])
    whole = table.loc['all', '']
    #|log| sorted: 0 (4), log 1.05 (1), log 1.2 (1), log 1.25 (4), log 2 (1); half of 11
    assert whole.median_abs_log == pytest.approx(np.log(1.2))
    assert (whole.within_10, whole.within_25) == (pytest.approx(2 / 5), pytest.approx(4 / 5))
    assert whole.tau == pytest.approx((1 / 3 + 1) / 2)
    assert table.loc['group', 'g trn1'].tau == pytest.approx(1 / 3)
    assert table.loc['bound', 'trn2 PE'].median_abs_log == pytest.approx(np.log(1.25) / 2)

def test_tau_and_median_agree_with_plain_counting():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, 30), rng.integers(0, 6, 30)
    signs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i in range(30) for j in range(i)]
    plain = sum(a * b for a, b in signs) / np.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs))
    assert tau_b(x, y) == pytest.approx(plain) and np.isnan(tau_b([1, 1], [1, 2]))
    w = rng.integers(1, 5, 31)
    assert weighted_median(np.arange(31.0), w) == pytest.approx(np.median(np.repeat(np.arange(31.0), w)))

def test_a_column_meets_tiles_of_more_axes_in_the_earlier_dialect():
    from kernel_lab.nki import installed, simulate
    with installed():
        import neuronxcc.nki as nki, neuronxcc.nki.isa as nisa, neuronxcc.nki.language as nl
        @nki.jit
        def kernel(x, bias):
            out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
            column = nl.load(bias)
            wide = nisa.tensor_tensor(nl.load(x), column, nl.add)
            nl.store(out, nl.multiply(wide, column))
            return out
        @nki.jit
        def unlike(x, bias): return nisa.tensor_tensor(nl.load(x), nl.load(bias), nl.add)
    rng = np.random.default_rng(0)
    x, bias = rng.random((128, 4, 6), np.float32), rng.random((128, 1), np.float32)
    c = bias[:, :, None]
    np.testing.assert_allclose(simulate(kernel, x, bias), (x + c) * c, rtol=1e-6)
    np.testing.assert_allclose(simulate(kernel, x, bias[:, 0]), (x + c) * c, rtol=1e-6)
    from kernel_lab.core.errors import KernelError
    with pytest.raises(KernelError, match='do not meet'): simulate(unlike, x, rng.random((128, 6), np.float32))
