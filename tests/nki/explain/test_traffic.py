"Bytes that copies move: those that the elements of each repetition have, one by one."
from dataclasses import replace

import numpy as np
import pytest
from random_programs import random_program, rows_of

from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.chip.dtypes import itemsize
from kernel_lab.nki.explain.traffic import copies, touched_bytes
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.nodes import Access, Instruction
from kernel_lab.nki.ir.overlap import touched_bytes_of
from kernel_lab.nki.timing.timeline import schedule


@pytest.mark.parametrize('seed', range(40))
def test_bytes_of_hbm_that_copies_touch(seed):
    "Of each memory and way; where a mask names several axes at once, the box counts: no fewer."
    p, each, joint = random_program(seed), {}, set()
    fill = [Instruction('memset', {'dst': Access(k, Affine(192 * n), ((24, 8), (1, 24)))}, {'value': 0.0}, {}, 'Vector')
            for k, n in ((4, 0), (4, 1), (4, 2), (6, 0))]
    p = replace(p, body=(*fill, *p.body))
    for k, _, env in rows_of(p):
        o = p.instructions[k]
        if o.op != 'dma_copy': continue
        for name, a in (*o.ins.items(), *o.outs.items()):
            if not isinstance(a, Access) or p.tensors[a.tensor].buffer != 'hbm': continue
            key = p.base[a.tensor], 'in' if name in o.ins else 'out'
            each.setdefault(key, []).append(touched_bytes_of(p, o, name, env))
            if any(len(axes) > 1 for _, axes in o.mask): joint.add(key)
    some = {}
    for c in copies(schedule(p, CHIPS['trn2'])): some.setdefault((c.tensor, c.way), []).append(c)
    for key, found in each.items():
        t, exact = p.tensors[key[0]], np.unique(np.concatenate(found)).size
        claimed = touched_bytes(some[key], t.size * itemsize(t.dtype)) if key in some else 0
        assert claimed >= exact if key in joint else claimed == exact, key
