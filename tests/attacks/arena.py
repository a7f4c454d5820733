"An attack against the lab, and what came of it."
import inspect
import os
import signal
import sys
import threading
from functools import cache

import numpy as np
from gallery import HONEST, task_of, workload_of

from kernel_lab.evaluate import pipeline as evaluation
from kernel_lab.evaluate.verification import verify
from kernel_lab.evaluate.sandbox.run import Limits
from kernel_lab.nki.chip import chips as machine
from kernel_lab.tasks.model import workload
from kernel_lab.tasks.model.workload import Kernel


@cache
def honest():
    "The honest kernel's evaluation: its latency is the true one."
    return evaluation.evaluate(Kernel(HONEST + '\ndef kernel(x): return honest(x)', entry='kernel'), task_of('rounds'),
                               seeds=1)


def in_lab(a):
    "The evaluation of an attack. A scalar answer needs several draws: one in twenty comes out right by luck."
    kernel = Kernel(a.source, entry='kernel', name=a.more.get('name', a.name))
    return evaluation.evaluate(kernel, task_of(a.task), workload_of(a.task), seeds=5 if a.task == 'mse' else 1,
                               baseline_us=honest().latency_us, limits=Limits(**{'seconds': 60} | a.limits))


def verdict(a, e):
    "'caught (status)', 'implausible (guards)', 'true latency' or 'fooled', from an evaluation."
    if e.status not in ('correct', 'implausible'): return f'caught ({e.status})'
    marks = [g.name for g in getattr(e, 'guards', ()) if g.severity == 'implausible']
    if marks: return f'implausible ({", ".join(marks)})'
    return 'true latency' if a.task == 'rounds' and e.latency_us == honest().latency_us and e.speedup == 1 else 'fooled'


def lost(a, e):
    "Whether the attack lost as it was said it would."
    said = verdict(a, e)
    if a.loses in ('true latency', 'implausible'): return said.startswith(a.loses)
    return str(e.status) in a.loses.split()


def parent():
    """What an attack must not change here: functions of the check and the clock, their code, the chips, the
    environment, what is imported how, signals, threads, the folder."""
    functions = [
        np.allclose, workload.error_ratio, workload.max_error_ratio, verify.compare, verify.verify, evaluation.evaluate]
    return ([id(f) for f in functions],
            [inspect.unwrap(f).__code__
             for f in functions
             if hasattr(inspect.unwrap(f), '__code__')], {k: f.value for k, f in machine.CHIPS['trn1'].figures.items()},
            dict(os.environ), list(sys.meta_path), sys.getprofile(), sys.stdout, os.getcwd(), sorted(os.listdir()),
            [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)], threading.active_count())
