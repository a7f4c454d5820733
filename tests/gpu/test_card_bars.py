"""Every bar in one table, of the recordings that the repository keeps: what is measured, which file says so, and what is not
recorded."""
import json
import runpy
import sys
from pathlib import Path

import pytest
from kernel_lab.agents.tune.card_bars import all_bar_lines, card_bars, card_file, card_files
from kernel_lab.agents.tune.kernelbench_table import BARS, STRETCH
from kernel_lab.cli.agents.kernelbench import longest_first, say_table
from kernel_lab.core.errors import UsageError

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
KEPT = sorted(HERE.glob('*_h200.json'))


@pytest.fixture(scope='module')
def files(): return card_files(KEPT)


def rows_of(files, of): return [b for b in card_bars(files) if b.of == of]


def test_the_kept_recordings_are_of_one_card_and_each_is_recognised(files):
    assert {f.card for f in files} == {'NVIDIA H200'} and {'launches_h200.json', 'resumed_h200.json', 'tune_h200.json'} <= {f.name for f in files}
    by_name = {f.name: f for f in files}
    assert len(by_name['launches_h200.json'].host_us) == 9 and not by_name['launches_h200.json'].attacks
    assert not by_name['gallery_h200.json'].has_figures and by_name['tune_h200.json'].is_tuned and len(by_name['tune_h200.json'].facts) == 19


def test_one_command_shows_every_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['gpu.py', 'bars'])
    assert runpy.run_path(str(ROOT / 'benchmarks' / 'gpu.py'))['main']() == 0
    text = capsys.readouterr().out
    for of in ('launcher', 'A/A, 12 × 100', 'KernelBench', 'attacks on card', 'make gpu-test'): assert any(
        line.startswith(of) for line in text.splitlines()), of
    assert sum('  bar ' in line for line in text.splitlines()) >= 5 + len(BARS) + len(STRETCH)
    assert text.startswith('measured on one NVIDIA H200: ')


def test_a_launch_is_within_its_bar(files):
    found = [b for b in rows_of(files, 'launcher') if b.file == 'launches_h200.json']
    assert [b.is_reached for b in found] == [True] and found[0].things == '9 kernels'


def test_a_kernel_against_itself_is_told_as_it_was_in_each_file(files):
    "One kernel of the first recording and the last session of the tuner are above 0.3 %: no row says that they are not."
    told = {b.file: b.verdict for b in rows_of(files, 'A/A, 12 × 100')}
    assert told['launches_h200.json'] == 'not reached: 4 of 5 hold' and told['tune_h200.json'] == 'not reached: 37 of 38 hold'


def test_a_suite_that_was_killed_counts_all_its_sessions(files):
    killed, = [b for b in rows_of(files, 'KernelBench') if b.file == 'resumed_h200.json']
    assert killed.things == '250 rows' and killed.value.startswith('517 s in 2 sessions') and not killed.is_reached


@pytest.mark.parametrize('of', ['launcher', 'A/A, 12 × 100', 'KernelBench', 'attacks on card', 'make gpu-test'])
def test_a_recording_reaches_each_bar(files, of): assert any(b.is_reached for b in rows_of(files, of)), rows_of(files, of)


def test_kernelbench_was_timed_whole_in_one_session_of_seven_minutes(files):
    whole, = [b for b in rows_of(files, 'KernelBench') if b.file == 'kernelbench_h200.json']
    assert whole.things == '250 rows' and whole.is_reached and '249 timed in 2 modes' in whole.value and 'in 1 session' in whole.value


def test_every_attack_fools_the_clock_in_process_and_loses_on_the_card(files):
    attacks = next(f for f in files if f.name == 'gpu_test_h200.json').attacks
    assert len(attacks) == 10 and all(a.is_fooled and a.ends for a in attacks.values())


def test_what_no_file_has_is_not_recorded(files):
    tuned = [f for f in files if f.is_tuned]
    assert [b.verdict for b in card_bars(tuned) if b.of in ('launcher', 'KernelBench', 'attacks on card', 'make gpu-test')] == ['not recorded'] * 4
    lines = [*all_bar_lines([f for f in files if f.name == 'launches_h200.json'])]
    assert sum(line.endswith('not recorded') or 'not recorded, stretch' in line for line in lines) == 3 + len(BARS) + len(STRETCH)


def test_two_cards_are_never_in_one_table(tmp_path):
    other = json.loads((HERE / 'launches_h200.json').read_text()) | {'card': 'NVIDIA H100 80GB HBM3'}
    (tmp_path / 'h100.json').write_text(json.dumps(other))
    with pytest.raises(UsageError, match='of 2 cards, which no table mixes'): say_table([HERE / 'tune_h200.json', tmp_path / 'h100.json'])
    (tmp_path / 'nobody.json').write_text(json.dumps(other | {'card': ''}))
    with pytest.raises(UsageError, match='nobody.json does not say which card'): say_table([HERE / 'tune_h200.json', tmp_path / 'nobody.json'])
    with pytest.raises(UsageError, match='Two of the files'): say_table([HERE / 'tune_h200.json', HERE / 'tune_h200.json'])


def test_a_simulated_file_says_nothing_of_a_card(tmp_path):
    (tmp_path / 'made.json').write_text(json.dumps({'kind': 'simulated', 'card': 'NVIDIA H200', 'kernels': {}}))
    with pytest.raises(UsageError, match='was not measured'): card_file(tmp_path / 'made.json')


def test_rows_of_a_session_become_a_small_recording_that_the_table_reads(tmp_path, capsys, monkeypatch):
    "With the session's wall seconds, and samples to a hundredth of a µs."
    bench = runpy.run_path(str(ROOT / 'benchmarks' / 'gpu.py'))
    card = next(r for r in json.loads((HERE / 'tune_h200.json').read_text())['rows'] if r['status'] == 'card')
    row = lambda k: {'name': f'{1 + k // 100}_{1 + k % 100}_P', 'status': 'library kept', 'card': 'NVIDIA H200', 'trial': {'eager': 1.0}, 'says': '',
                     'samples': {m: [100.123456 + i / 7 for i in range(20)] for m in ('eager', 'compile')}}
    more = lambda at: {'session': '2026-11-29T21:00:00', 'at': at}
    rows = [card | more(9.0), *(row(k) | more(10 + 1.6 * k) for k in range(249)), {'name': '3_50_P', 'status': 'failed', 'says': 'too long', **more(431.0)}]
    (tmp_path / 'rows.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in rows))
    monkeypatch.setattr(sys, 'argv', ['gpu.py', 'record', str(tmp_path / 'rows.jsonl'), str(tmp_path / 'out.json')])
    assert bench['main']() == 0 and (tmp_path / 'out.json').stat().st_size < 1 << 20
    found = card_file(tmp_path / 'out.json')
    assert (found.suite.rows, found.suite.timed, found.suite.seconds, found.card) == (250, 249, (431.0,), 'NVIDIA H200')
    bar, = rows_of([found], 'KernelBench')
    assert bar.is_reached and bar.value == '431 s in 1 session, 249 timed in 2 modes', bar
    assert 'trial' not in json.loads((tmp_path / 'out.json').read_text())['rows'][1]


def test_problems_that_compile_longest_come_first_and_large_ones_not_together():
    order = longest_first([f'{level}_{k}_P' for level in '123' for k in range(1, 5)])
    assert [n[0] for n in order] == ['3'] * 4 + ['2', '1'] * 4 and len({*order}) == 12


def test_a_folder_of_kernelbench_is_tuned_under_the_names_that_the_table_knows(tmp_path):
    from kernel_lab.agents.tune.kernelbench_table import group_of
    from kernel_lab.cli.agents.tune import problem_texts
    for folder in ('level1', 'mine'):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / '19_ReLU.py').write_text('class Model: pass\ndef get_inputs(): return []\n')
    assert [group_of(n) for n in problem_texts([str(tmp_path / 'level1')])] == ['L1 memory-bound']
    assert [*problem_texts([str(tmp_path / 'mine')])] == ['mine_19_ReLU']
