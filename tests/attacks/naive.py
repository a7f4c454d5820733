"""A harness as they are written first, and what the gallery's attacks win against. It does nothing that no public
harness has done; the letters are rows of the gallery.

The kernel's text is executed here, beside the reference, the inputs, the check and the clock (A1, A2, B1 to B5, D5).
The seed is 42 (A9). Reference and kernel get the same arrays (E11), weights are ones and biases zeros (E21), noise
is uniform (E12), the tolerance is 1e-2 (E2 to E7), NaN equals NaN (B6, E22), settings come from the environment
(B16, D20). A kernel is called once to be checked and again to be timed, on the same inputs (D7, E8); what is not an
NKI kernel takes no simulated time (D16); memories have any size (D19). How the results get out is in `rigs`.

`python naive.py JOBS OUT` judges a list of jobs, each in a fork of its own; `judged` starts it."""
import contextlib
import fcntl
import importlib
import json
import math
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SEED, RTOL, ATOL = 42, 1e-2, 1e-2
SPANS, STATS = [], {}
scheduling, tracing = (importlib.import_module(f'kernel_lab.nki.{m}') for m in ('timing.timeline', 'lang.trace'))


def draw(workload):
    "Inputs: noise, ones for weights, zeros for biases, always the same."
    rng, first, given = np.random.default_rng(SEED), next(iter(workload.shapes)), {}
    for name, shape in workload.shapes.items():
        fixed = {'gain': 1.0, 'scale': 1.0, 'bias': 0.0, 'mask': 1.0}
        given[name] = np.full(shape, fixed[name], np.float32) if name in fixed and name != first else rng.random(
            shape, np.float32)
    return [*given.values()]


def reference(task, inputs): return task['task'].expected(dict(zip(task['workload'].shapes, inputs)))[0] * np.float32(1)


def simulate(kernel, *arrays):
    "Run an NKI kernel on arrays, and note the time that the simulator gives it."
    program = tracing.trace(kernel, *arrays, chip=os.environ.get('PLATFORM_TARGET', 'trn1'))
    SPANS.append(scheduling.schedule(program).latency_us)
    outs = importlib.import_module('kernel_lab.nki.executor.vectorized').execute(program, *arrays)
    return outs[0] if len(outs) == 1 else outs


def check(case, got):
    "Whether the expected array and the one there is are close."
    expected, rtol, atol = case
    ok = np.allclose(expected, got, float(os.environ.get('CHECK_RTOL', rtol)), atol, equal_nan=True)
    STATS['errors'] = 0 if ok else 1
    return STATS['errors'] == 0


def check_errors(case, got):
    "The same, by the number of errors that exceed the tolerance."
    expected, rtol, atol = case
    with np.errstate(all='ignore'): return not (np.abs(expected - got) > atol + rtol * np.abs(expected)).any()


def check_share(case, got): return bool(np.isclose(case[0], got, RTOL, ATOL).mean() >= 0.95)


def check_lab(case, got):
    "The lab's own comparison, but here."
    workload = importlib.import_module('kernel_lab.tasks.model.workload')
    return workload.max_error_ratio([got], [case[0]], workload.Tolerance(1e-4, 1e-4, 'a test')) <= 1


CHECKS = dict(close=check, errors=check_errors, share=check_share, lab=check_lab)


def load(source):
    names = {'__name__': 'submission'}
    exec(compile(source, '<submission>', 'exec'), names)
    return names['kernel']


def device_time(kernel, inputs):
    "µs of the NKI kernels that ran during a call: the sum of their spans."
    SPANS.clear()
    kernel(*inputs)
    return math.fsum(SPANS)


def wall_time(kernel, inputs, runs=5):
    "µs by the clock, the median of some runs."
    times = []
    for _ in range(runs):
        since = time.perf_counter()
        kernel(*inputs)
        times.append((time.perf_counter() - since) * 1e6)
    import statistics
    return statistics.median(times)


def baseline(task, inputs, timer): return TIMERS[timer](load(task['honest']), inputs)


TIMERS = dict(device=device_time, wall=wall_time)


def judge(source, task, timer='device', how='close', reference_first=True, frozen=False, again=False):
    "Correct or not, how fast, and how much faster than the honest kernel."
    inputs = draw(task['workload'])
    if reference_first: expected = np.array(reference(task, inputs), np.float32)
    kernel = load(source)
    if reference_first: case = [expected, RTOL, ATOL]
    if frozen: expected.flags.writeable = False
    got = kernel(*inputs)
    if not reference_first: case = [reference(task, inputs), RTOL, ATOL]
    passed = bool(CHECKS[how](case, got))
    latency = TIMERS[timer](kernel, inputs)
    us = baseline(task, inputs, timer) if again else task[timer]
    return dict(passed=passed, latency_us=latency, speedup=us / max(latency, 1e-3))


def one(job, task, folder):
    "The report of a job, made in a folder of its own; what the harness died of, if it did."
    import rigs
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    try:
        with tracing.installed(): return rigs.RIGS[job['rig']](job, task)
    except BaseException as e:  # noqa: BLE001  (a kernel raises anything)
        return dict(passed=False, died=f'{type(e).__name__}: {e}'[:6000])


def forked(job, task):
    "One job in a fork; a report also of one that hangs or leaves."
    folder = Path(tempfile.mkdtemp(prefix='naive-'))
    work = folder / 'work'
    work.mkdir()
    r, w = os.pipe()
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        kept = fcntl.fcntl(w, fcntl.F_DUPFD, 200); os.close(w)
        os.write(kept, (json.dumps(one(job, task, work)) + '\n').encode())
        os._exit(0)
    os.close(w)
    text, until = b'', time.monotonic() + job.get('seconds', 20)
    while not text.endswith(b'\n') and select.select([r], [], [], max(0, until - time.monotonic()))[0]:
        if not (more := os.read(r, 1 << 16)): break
        text += more
    with contextlib.suppress(ProcessLookupError): os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0); os.close(r)
    outside = sorted(p.name for p in folder.iterdir() if p != work)
    shutil.rmtree(folder, ignore_errors=True)
    report = json.loads(text) if text.endswith(b'\n') else dict(
        passed=False, died='it left' if time.monotonic() < until else 'it hangs')
    return report | dict(outside=outside)


def main(jobs, out):
    import torch
    from gallery import tasks
    import rigs  # noqa: F401  (before the forks)
    torch.set_num_threads(1)
    tracing.JitKernel.simulate = staticmethod(simulate)
    found, known = {}, tasks()
    for task in known.values():
        with tracing.installed():
            task |= {k: f(load(task['honest']), draw(task['workload']))
                     for k, f in TIMERS.items()} if task['honest'] else dict(device=100.0, wall=1e4)
    for job in json.loads(Path(jobs).read_text()): found[job['id']] = forked(job, known[job['task']])
    Path(out).write_text(json.dumps(found))


def judged(jobs):
    "Reports of jobs by id: dicts with id, source, task, rig, how."
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / 'jobs', Path(folder) / 'out'
        given.write_text(json.dumps(jobs))
        subprocess.run([sys.executable, __file__, given, out], check=True, stdout=subprocess.DEVNULL, timeout=900,
                       env=os.environ | {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'})
        return json.loads(out.read_text())


if __name__ == '__main__': main(*sys.argv[1:])
