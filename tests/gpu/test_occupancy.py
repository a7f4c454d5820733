"""Occupancy: what follows from the chips' figures whatever a block takes, and hand-computed cases of the vendor's
calculator."""
import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_lab.gpu.chip.gpu_chips import GPUS
from kernel_lab.gpu.chip.occupancy import occupancy

CHIPS = st.sampled_from([*GPUS.values()])
BLOCKS = (st.integers(1, 1024), st.integers(0, 255), st.integers(0, 227 << 10))


@given(CHIPS, *BLOCKS)
@settings(deadline=None, max_examples=300)
def test_no_sm_holds_more_than_it_has(chip, threads, registers, shared):
    found = occupancy(chip, threads, registers, shared)
    warps = -(-threads // 32)
    assert found.warps == found.blocks * warps <= chip.warps_sm and 0 <= found.share <= 1
    assert found.blocks * warps * 32 * registers <= chip.registers_sm
    assert found.blocks * (shared + chip.shared_system_bytes) <= chip.shared_sm_bytes
    assert found.limited_by and min(found.limits.values()) == found.blocks


@given(CHIPS, *BLOCKS)
@settings(deadline=None, max_examples=200)
def test_to_take_more_never_makes_room(chip, threads, registers, shared):
    blocks = occupancy(chip, threads, registers, shared).blocks
    for more in ((threads + 32, registers, shared), (threads, registers + 8, shared), (threads, registers, shared + 4096)):
        assert occupancy(chip, *more).blocks <= blocks


@pytest.mark.parametrize('chip, threads, registers, shared, blocks', [
    ('sm_90', 128, 168, 98304, 2),      # 228 KiB / (96 + 1) KiB; 12 warps by registers
    ('sm_90', 256, 128, 0, 2),          # 4 partitions of 4 warps of 4,096 registers
    ('sm_90', 96, 40, 0, 16),           # 48 warps of 1,280 registers, three a block
    ('sm_80', 128, 32, 163 << 10, 1), ('sm_80', 128, 32, (163 << 10) + 1, 0), ('sm_90', 32, 16, 0, 32)])
def test_by_hand(chip, threads, registers, shared, blocks):
    assert occupancy(GPUS[chip], threads, registers, shared).blocks == blocks


def test_as_measured_on_a_card():
    "What cuOccupancyMaxActiveBlocksPerMultiprocessor said on an H200 (9.0) of kernels with so many registers."
    with open(Path(__file__).with_name('occupancy_sm_90.csv')) as f: rows = [{k: int(v) for k, v in r.items()} for r in csv.DictReader(f)]
    assert len(rows) > 900 and len({r['blocks'] for r in rows}) > 10
    wrong = [r for r in rows if occupancy(GPUS['sm_90'], r['threads'], r['registers'], r['shared_bytes']).blocks != r['blocks']]
    assert not wrong, wrong[:5]
