"""What IPython shows of an error: the person's own lines, and none of the lab's."""
import subprocess
import sys

CELL = '''
from kernel_lab.nki import isa as nisa, language as nl, simulate
import numpy as np

def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((200, 64), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.dma_copy(dst=out, src=t)
    return out

simulate(kernel, np.zeros((200, 64), np.float32))
'''


def shown(before=''):
    done = subprocess.run([sys.executable, '-m', 'IPython', '--no-banner', '--colors=nocolor', '-c', before + CELL],
                          capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_an_error_shows_the_line_of_the_kernel_and_no_frame_of_the_lab():
    said = shown()
    assert said.startswith('KernelError: line ') and 'partition' in said.splitlines()[0]
    assert ', of the kernel' in said and 'simulate(kernel' in said and 'kernel_lab/' not in said
    assert any(line.startswith('→') and 't = nl.ndarray((200, 64)' in line for line in said.splitlines())
    assert len(said.strip().splitlines()) < 20 and 'frames of libraries are left out' in said


def test_all_frames_are_there_for_who_asks():
    assert 'kernel_lab/nki/' in shown('from kernel_lab.core.errors import show_all_frames; show_all_frames()\n')
