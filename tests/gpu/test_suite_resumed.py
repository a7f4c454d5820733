"""`kernel-lab bench --suite kernelbench` against a stub of the card's work: killed in the middle, it goes on with the same
rows, nobody is left behind, and a row that a kill cut in two is done again without spoiling another."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernel_lab.agents.tune.card_session import CardSession, CardWorker
from kernel_lab.cli.agents.kernelbench import do_kernelbench, rows_table
from kernel_lab.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = 12
STUB = '''import os, time
from pathlib import Path

def work(order, turn):
    "A problem without a card: a nap to load it, the card alone for a moment, a row that says who took it and when."
    time.sleep(0.05)
    with turn():
        (Path(os.environ['STUB_FOLDER']) / f'{order["name"]}.{os.getpid()}').touch()
        time.sleep(float(os.environ.get('STUB_SECONDS', '0.15')))
    if order['name'] == '1_4_fourth': raise ValueError('a problem that fails')
    return {'name': order['name'], 'status': 'timed', 'us': {'eager': 10.0, 'compile': 5.0}, 'says': str(time.time_ns())}
'''
SESSION = '''import sys
from pathlib import Path
from kernel_lab.cli.agents.kernelbench import do_kernelbench
sys.exit(do_kernelbench(sys.argv[1], Path(sys.argv[2]), ['eager', 'compile'], 3, work='stub_of_a_card:work'))
'''
NUMBERS = ('first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth').split()


@pytest.fixture
def place(tmp_path, monkeypatch):
    "A folder with a checkout of small problems and the stub; its processes are told by STUB_FOLDER."
    (tmp_path / 'KernelBench' / 'level1').mkdir(parents=True)
    for n, word in enumerate(NUMBERS, 1):
        (tmp_path / 'KernelBench' / 'level1' / f'{n}_{word}.py').write_text('class Model: pass\ndef get_inputs(): return []\n')
    (tmp_path / 'stub_of_a_card.py').write_text(STUB)
    monkeypatch.setenv('STUB_FOLDER', str(tmp_path))
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(ROOT), str(tmp_path)]))
    return tmp_path


def begin(place):
    return subprocess.Popen([sys.executable, '-c', SESSION, str(place), str(place / 'rows')], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def rows_of(place):
    file = place / 'rows' / 'rows.jsonl'
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []


def killed_after(place, count):
    "Rows of a session that was killed when it had `count` of them, without a chance to tidy up."
    process = begin(place)
    end = time.monotonic() + 60
    while len(rows_of(place)) < count and time.monotonic() < end and process.poll() is None: time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, 'it ended before it was killed'
    return rows_of(place)


def alive(place):
    "Processes that work for this folder."
    found = []
    for p in Path('/proc').glob('[0-9]*'):
        try: text = (p / 'environ').read_bytes()
        except OSError: continue
        state = (p / 'stat').read_text().rpartition(')')[2].split()[0] if (p / 'stat').exists() else 'Z'
        if f'STUB_FOLDER={place}'.encode() in text.split(b'\0') and int(p.name) != os.getpid() and state != 'Z': found.append(int(p.name))
    return found


def test_a_killed_session_goes_on_with_the_same_rows(place):
    first = killed_after(place, 4)
    assert 4 <= len(first) < PROBLEMS
    end = time.monotonic() + 20
    while alive(place) and time.monotonic() < end: time.sleep(0.05)
    assert not alive(place), 'workers outlived the session'
    second = killed_after(place, len(first) + 3)
    assert second[:len(first)] == first and len(second) < PROBLEMS
    done = begin(place)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    assert f'{PROBLEMS - len(second)} of {PROBLEMS} problems are left' in out
    last = rows_of(place)
    assert last[:len(second)] == second
    rows = [json.loads(line) for line in last]
    assert sorted(r['name'] for r in rows) == sorted(f'1_{n}_{w}' for n, w in enumerate(NUMBERS, 1))
    assert [r['status'] for r in rows if r['name'] == '1_4_fourth'] == ['failed']
    again = begin(place)
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 0 and f'0 of {PROBLEMS} problems are left' in out and rows_of(place) == last


@pytest.mark.parametrize('cut', [1, 9, 30])
def test_a_row_cut_in_two_is_done_again_and_spoils_no_other(place, monkeypatch, cut):
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv('STUB_SECONDS', '0')
    assert do_kernelbench(place, place / 'rows', ['eager'], 2, work='stub_of_a_card:work') == 0
    whole = rows_of(place)
    (place / 'rows' / 'rows.jsonl').write_bytes(b''.join(whole[:5]) + whole[5][:-cut])
    lost = 0 if cut == 1 else 1                         # the end of the line alone: the row is whole
    session = CardSession([{'name': json.loads(line)['name']} for line in whole], place / 'rows' / 'rows.jsonl', work='stub_of_a_card:work')
    assert len(session.waiting) == PROBLEMS - 6 + lost
    assert do_kernelbench(place, place / 'rows', ['eager'], 2, work='stub_of_a_card:work') == 0
    after = [r['name'] for r in session.kept()]
    assert sorted(after) == sorted(json.loads(line)['name'] for line in whole) and rows_of(place)[:5] == whole[:5]


def test_a_card_that_is_taken_ends_the_session_without_a_row(place, monkeypatch):
    (place / 'taken.py').write_text("""from kernel_lab.agents.tune.card_session import NoCard
def work(order, turn): raise NoCard('no card can be used: devices are busy or unavailable')
""")
    with pytest.raises(UsageError, match='devices are busy or unavailable') as told:
        do_kernelbench(place, place / 'rows', ['eager'], 2, work='taken:work')
    assert 'the same command goes on' in told.value.hint and rows_of(place) == [] and not alive(place)
    assert do_kernelbench(place, place / 'rows', ['eager'], 2, work='stub_of_a_card:work') == 0 and len(rows_of(place)) == PROBLEMS


def test_a_problem_that_found_no_memory_is_tried_again_by_the_next_session(tmp_path):
    rows = [{'name': 'full', 'status': 'memory'}, {'name': 'failed', 'status': 'failed'}, {'name': 'raced', 'samples': {'compile': [1.0]}},
            {'name': 'raced', 'status': 'memory'}]
    (tmp_path / 'rows.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in [*rows, [1], {'name': ['x']}]))
    left = lambda **more: [o['name'] for o in CardSession([{'name': n, **more} for n in ('full', 'failed', 'raced')], tmp_path / 'rows.jsonl').waiting]
    assert left() == ['full']
    (tmp_path / 'rows.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in rows[:3]))
    assert left(precision='default') == ['full'] and left(precision='bf16') == ['full', 'raced']


def test_two_sessions_do_not_write_one_file(place, monkeypatch):
    monkeypatch.syspath_prepend(str(place))
    (place / 'rows').mkdir()
    first = CardSession([{'name': f'1_{n}_{w}'} for n, w in enumerate(NUMBERS, 1)], place / 'rows' / 'rows.jsonl', 2, work='stub_of_a_card:work')
    rows = first.run()
    next(rows)                                          # it goes on when it is asked for the next row
    second = begin(place)
    _, err = second.communicate(timeout=60)
    assert second.returncode and 'Another session writes' in err
    assert len([*rows]) == PROBLEMS - 1 and len(rows_of(place)) == PROBLEMS


def test_ctrl_c_ends_it_at_once_and_keeps_its_rows(place):
    process = begin(place)
    end = time.monotonic() + 60
    while len(rows_of(place)) < 3 and time.monotonic() < end: time.sleep(0.01)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode and time.monotonic() - began < 10 and not alive(place)
    rows = rows_of(place)
    assert 3 <= len(rows) < PROBLEMS and all(json.loads(r) for r in rows)


def test_a_worker_that_starts_is_not_stopped(tmp_path):
    "Stopped before it is tied to its session, it would stay for ever where the session is killed."
    def state(): return Path(f'/proc/{worker.process.pid}/stat').read_text().rpartition(')')[2].split()[0]
    worker = CardWorker('os:getpid', tmp_path / 'log')
    try:
        worker.stop()
        end = time.monotonic() + 60
        while not (said := worker.lines()) and time.monotonic() < end:
            assert state() != 'T'
            time.sleep(0.02)
        assert said == [{'tied': True}]
        worker.is_tied = True
        worker.stop()
        while state() != 'T' and time.monotonic() < end: time.sleep(0.02)
        assert state() == 'T'
    finally: worker.end()


AUTOTUNED = '''
def work(order, turn):
    number = int(order['name'].split('_')[1])
    if 'autotune' in order['modes'] and number == 2: raise ValueError('it was compiled for too long')
    samples = {m: [10.0] * 20 for m in order['modes'] if number != 2 or m != 'autotune'}
    return {'name': order['name'], 'status': 'raced', 'samples': samples, 'compile_s': {m: 1.0 for m in order['modes']},
            'work': {'bytes': 4e7 if number % 2 else 1e6}}
'''


def test_max_autotune_is_tried_once_and_where_it_may_help(place, capsys):
    "Problems near the floor of their bytes are left alone; a problem that fails then keeps the times it has."
    (place / 'stub_of_a_card.py').write_text(AUTOTUNED)
    (place / 'rows').mkdir()
    card = next(r for r in json.loads((Path(__file__).parent / 'tune_h200.json').read_text())['rows'] if r['status'] == 'card')
    (place / 'rows' / 'rows.jsonl').write_text(json.dumps(card) + '\n')
    modes = ['eager', 'compile', 'autotune']
    assert do_kernelbench(place, place / 'rows', modes, 2, work='stub_of_a_card:work') == 0
    assert 'max-autotune, 6 of 6 problems are left' in (said := capsys.readouterr().out) and 'autotune (5)' in said
    first = rows_of(place)
    tried = [r for r in map(json.loads, first) if 'autotune' in r.get('compile_s', {}) or r['status'] == 'failed']
    assert sorted(int(r['name'].split('_')[1]) for r in tried) == [2, 4, 6, 8, 10, 12] and len(first) == 1 + PROBLEMS + 6
    assert do_kernelbench(place, place / 'rows', modes, 2, work='stub_of_a_card:work') == 0
    assert '0 of 6 problems are left' in capsys.readouterr().out and rows_of(place) == first
    kept = {r.name: r for r in rows_table(place / 'rows' / 'rows.jsonl')[0]}
    assert kept['1_2_second'].modes == ['eager', 'compile'] and 'autotune' in kept['1_4_fourth'].modes


def test_no_checkout_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match='No problems of KernelBench'): do_kernelbench(tmp_path, tmp_path / 'rows', ['eager'], 1)


def test_a_card_timed_every_problem_through_several_kills():
    "As it was measured on one H200. Rows of earlier sessions were compared when it was recorded; here all have a time, once."
    found = json.loads((Path(__file__).parent / 'resumed_h200.json').read_text())
    assert found['kind'] == 'measured' and found['card'] == 'NVIDIA H200' and found['killed'] == {'three': [212, 220], 'two': [244]}
    for which, modes, failed in (('two', 2, set()), ('three', 3, {'3_16_DenseNet201', '3_33_VanillaRNN'})):
        rows = found[which]
        assert len({name for name, *_ in rows}) == len(rows) == 250
        assert {name for name, status, *_ in rows if status == 'failed'} == failed
        assert all(len(us) == modes and min(us) > 0 for name, _, *us in rows if name not in failed)


CROWDED = '''import os
from pathlib import Path

class OutOfMemoryError(RuntimeError): pass

def work(order, turn):
    "A problem that finds memory at its `n`-th try, by the number in its name."
    tries = Path(os.environ['STUB_FOLDER']) / order['name']
    with open(tries, 'a') as file: file.write('x')
    with turn(): pass
    if len(tries.read_text()) < int(order['name'].split('_')[1]) and not order.get('alone'): raise OutOfMemoryError('no room')
    return {'name': order['name'], 'status': 'library kept', 'alone': order.get('alone', False)}
'''


def test_problems_that_found_no_memory_are_tried_with_fewer_beside_them_before_they_are_alone(place):
    (place / 'crowded.py').write_text(CROWDED)
    session = CardSession([{'name': f'1_{n}_P'} for n in (1, 2, 3, 5)], place / 'rows.jsonl', 6, work='crowded:work')
    rows = {r['name']: r for r in session.run()}
    tries = {n: len((place / n).read_text()) for n in rows}
    assert tries == {'1_1_P': 1, '1_2_P': 2, '1_3_P': 3, '1_5_P': 3} and {n: r['alone'] for n, r in rows.items() if r['alone']} == {'1_3_P': True, '1_5_P': True}


def test_rows_say_their_session_and_the_second_of_it(place, monkeypatch):
    from kernel_lab.agents.tune.card_bars import session_seconds
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv('STUB_SECONDS', '0')
    assert do_kernelbench(place, place / 'rows', ['eager'], 2, work='stub_of_a_card:work') == 0
    rows = [json.loads(line) for line in rows_of(place)]
    seconds = session_seconds(rows)
    assert len(seconds) == 1 and seconds[0] == max(r['at'] for r in rows) > 0 and [r['at'] for r in rows] == sorted(r['at'] for r in rows)


def test_a_row_of_a_card_that_throttles_has_no_time_and_is_taken_again(tmp_path):
    from kernel_lab.agents.tune.card_session import unless_throttled
    from kernel_lab.gpu.clock.card_state import parse_card_state
    row = {'name': '1_1_P', 'status': 'library kept', 'samples': {'compile': [1.0] * 20}}
    cool, hot = (parse_card_state(f'NVIDIA H200, 580, 1980, 3201, {celsius}, 512, {bits}') for celsius, bits in ((40, '0x4'), (91, '0x40')))
    assert unless_throttled(row, cool) == unless_throttled(row, None) == row
    found = unless_throttled(row, hot)
    assert found['status'] == 'throttled' and not found['samples'] and 'Let it cool' in found['says'] and '91 °C' in found['says']
    (tmp_path / 'rows.jsonl').write_text(json.dumps(found) + '\n')
    assert [o['name'] for o in CardSession([{'name': '1_1_P'}], tmp_path / 'rows.jsonl').waiting] == ['1_1_P']
    (tmp_path / 'rows.jsonl').write_text(json.dumps(row) + '\n' + json.dumps(found) + '\n')
    assert not CardSession([{'name': '1_1_P'}], tmp_path / 'rows.jsonl').waiting
