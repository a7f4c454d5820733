"A good kernel to make bad ones of, a task for it, and what an evaluation may leave behind."
import os
import time
from pathlib import Path

import numpy as np

from kernel_lab.evaluate.sandbox.run import Limits, sandbox
from kernel_lab.tasks.model.task import task_from

HEAD = 'import nki.isa as nisa\nimport nki.language as nl\n'
GOOD = HEAD + '''
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
    nisa.dma_copy(dst=out, src=tile)
    return out
'''


def double(x): return x * 2
def numbers(rng): return {'x': rng.normal(size=(128, 64)).astype(np.float32)}


TASK = task_from(double, numbers, first_kernel=GOOD)
TASK.tolerance()                       # torch makes a folder of its own when it first counts flops
# what never ends is stopped soon; what ends has time even where other tests hold the processor
QUICK, PATIENT, ROOMY = (Limits(seconds=s, memory_mb=m) for s, m in ((1, 1024), (30, 1024), (60, 640)))


def body(*lines): return HEAD + 'def kernel(x):\n' + ''.join(f'    {line}\n' for line in lines)
def attack(*lines): return 'import ctypes, os, signal, socket, subprocess, sys, threading, time\n' + GOOD.replace('def kernel(x):\n', 'def kernel(x):\n' + ''.join(f'    {line}\n' for line in lines))


def children():
    "Process ids of our children and theirs, dead ones too, but for the zygote that kernels' processes come from."
    parents = {}
    for stat in Path('/proc').glob('[0-9]*/stat'):
        try: parents[int(stat.parent.name)] = int(stat.read_text().rpartition(')')[2].split()[1])
        except OSError: continue
    mine, more = set(), {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in more}: mine |= more
    return mine - {sandbox()[0].process.pid}


def left_behind(before):
    "What is there that was not, after a moment for the system to clear up."
    for _ in range(250):
        if not (new := children() - before): break
        time.sleep(0.02)
    return new
