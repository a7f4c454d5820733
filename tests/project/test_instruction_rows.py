"""`benchmarks/instructions.py`: what a trace's row is in the lab, and what is said of rows that are nothing in it."""
import runpy
from math import isnan
from pathlib import Path

import pandas as pd
import pytest

from kernel_lab.nki.chip.chips import CHIPS

BENCH = runpy.run_path(str(Path(__file__).parents[2] / 'benchmarks' / 'instructions.py'))
COLUMNS = ['trace', 'engine', 'opcode', 'signature', 'pe_clock_state', 'count', 'dur_ns_min', 'dur_ns_median',
           'dur_ns_max']
TWO = 'src=fp32@PSUM[1,1,1,1][512,1,1,1] dst=bfloat16@SBUF[1,1,1,1][512,1,1,1] channels=128'
COPIED = ('src_elem_size=512 dst_elem_size=512 src_pattern=[512,262144][4,128] dst_pattern=[65536,512][4,128] '
          'compute_op=NONE')
PRODUCT = 'acc_flags=3 fp32_mode=LOW_HIGH src=fp32@SBUF[1,0,0][128,1,1] dst=PSUM[1,0,0][128,1,1] 128*128'
ROWS = [('Vector', 'COPY', TWO, ''), ('Scalar', 'CAST', TWO, ''), ('Vector', 'TENSOR_REDUCE', f'op=ADD dim=X {TWO}', ''),
        ('Vector', 'TENSOR_SCALAR', f'ops=MULTIPLY,BYPASS {TWO}', ''), ('Vector', 'RECIPROCAL', TWO, ''),
        ('Scalar', 'ACTIVATE', f'EXP {TWO}', ''), ('Scalar', 'ACT_TABLE_LOAD', 'table_sel=0', ''),
        ('TensorMatrix', 'MATMUL', PRODUCT, '8/8'), ('TensorMatrix', 'MATMUL', PRODUCT, '4/8'),
        ('Sync', 'DMA_DIRECT2D', COPIED, ''), ('Sync', 'TENSOR_LOAD', 'addr=uint32@ADDR[1,0][2,1] data=$R[130],$R[131]', '')]


def frame(rows): return pd.DataFrame([('t', *r, 3, 90, 100, 110) for r in rows], columns=COLUMNS)


@pytest.mark.parametrize('row', ROWS, ids=lambda r: f'{r[0]}-{r[1]}')
def test_an_opcode_of_the_lab_has_a_time_and_a_kind(row):
    [one] = frame([row]).itertuples()
    assert 50 < BENCH['predicted'](one, CHIPS['trn2']) < 5000
    assert BENCH['form_of'](one) or row[1] == 'ACT_TABLE_LOAD'


@pytest.mark.parametrize('opcode', BENCH['REASONS'])
def test_what_the_lab_has_not_has_a_reason_and_no_time(opcode):
    [one] = frame([('Tensor', opcode, '', '8/8')]).itertuples()
    assert isnan(BENCH['predicted'](one, CHIPS['trn2']))


def test_the_table_counts_every_row_once(capsys):
    BENCH['durations'](frame([*ROWS, *(('Tensor', opcode, '', '8/8') for opcode in BENCH['REASONS'])]))
    text = capsys.readouterr().out
    told = text[text.index('rows  kinds    runs'):].splitlines()
    counts = {line[:75].strip(): int(line[75:].split()[0]) for line in told if line[:75].strip() in
              ('predicted', *BENCH['REASONS'].values())}
    assert counts.pop('predicted') == len(ROWS) and sum(counts.values()) == len(BENCH['REASONS'])


def test_an_opcode_that_is_not_known_is_no_silent_gap():
    with pytest.raises(KeyError):
        BENCH['durations'](frame([('Tensor', 'NEW_OPCODE', '', '8/8')]))
