"""What published rows cannot tell is an estimate."""
import json
import re
from pathlib import Path

from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.validate.left_out import UNIDENTIFIED, moved_figures

PAGE = Path(__file__).parents[3] / 'nbs/2_nki/9_validate/04_left_out.ipynb'


def test_no_figure_that_moves_nothing_is_called_fitted():
    said = ''.join(json.loads(PAGE.read_text())['cells'][-1]['source'])
    rows = re.findall(r'^\| `(trn\d)\.(\w+)` \| ([+−][\d.]+) \| ([+−][\d.]+) \| (.*) \|$', said, re.M)
    assert {(chip, name) for chip, name, *_ in rows} == {(c.name, k) for c in CHIPS.values() for k in moved_figures(c)
                                                         if c.name in UNIDENTIFIED}
    for chip, name, up, down, what in rows:
        moves = max(float(x.replace('−', '-').replace('+', '')) ** 2 for x in (up, down)) ** 0.5
        assert CHIPS[chip].figures[name].tag == ('fitted' if what == 'fitted' else 'estimate'), name
        assert (name in UNIDENTIFIED[chip]) == (what != 'fitted')
        assert moves <= 0.00101 if what != 'fitted' else moves >= 0.0009, name
