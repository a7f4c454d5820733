"""What a kernel's Python can do to the machine it runs on: each probe succeeds in an ordinary process (or it proves
nothing), and is stopped in the lab's child, by which layer it says.

What a weaker tier of the sandbox does not stop, on a machine that refuses namespaces, is an expected failure there;
the lab itself says so (`kernel-lab doctor`)."""
import os
import platform
import subprocess
import sys

import pytest

from probes import PROBES, heard, kernel
from scene import Scene
from bad_kernels import TASK, children, left_behind

from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.sandbox.run import Limits, sandbox_status
from kernel_lab.evaluate.sandbox.server import Server
from kernel_lab.evaluate.sandbox.tiers import status_of_server
from kernel_lab.tasks.model.workload import Kernel

pytestmark = pytest.mark.skipif(sys.platform != 'linux' or platform.machine() not in ('x86_64', 'aarch64'),
                                reason='the layers are those of Linux')
SEEN = {'asks for a size', 'goes to a folder'}        # names can be seen where the child has no root of its own
# which many containers and systems refuse anybody
ODD = {'asks for keys', 'makes namespaces', 'opens a ring', 'watches faults', 'shares a segment', 'idles a process'}
LAYERS = {
    '1': 'system call filter', '13': 'file rules', '2': 'own view of files', '24': 'limit of open files',
    '27': 'limit of file size', '38': 'system call filter', '3': 'own view of processes', '10': 'own view of processes',
    'None': 'nothing is there'}
# these change what comes after them
LAST = {'finds open files', 'much in memory', 'many files', 'filters its calls', 'goes to a folder'}


def grouped(n=9):
    "Probes in groups, one kernel for each; those that change the process are last."
    order = sorted(PROBES, key=lambda p: (p.name in LAST, PROBES.index(p)))
    return [order[k:k + n] for k in range(0, len(order), n)]


def run_plainly(probes, scene):
    "The kernel in an ordinary process, which has the environment and the rights of this one."
    code = (
        'import json, sys\nnames = {}\nexec(sys.stdin.read(), names)\ntry: names["kernel"](None)\nexcept ValueError as'
        ' e: print(e)\n'
    )
    born_with = [os.open(os.devnull, os.O_RDONLY) for _ in range(6)]  # as a harness that forks has its own files open
    try:
        done = subprocess.run([sys.executable, '-c', code], input=scene.told(kernel(probes)), text=True,
                              capture_output=True, timeout=60, pass_fds=born_with)
    finally:
        for fd in born_with: os.close(fd)
    return heard(done.stdout)


def run_in_lab(probes, scene):
    e = evaluate(Kernel(scene.told(kernel(probes))), TASK, seeds=1, baseline_us=1.0, limits=Limits(seconds=30))
    return heard((e.error or {}).get('message', ''))


def outcomes(run):
    "{name: (open or blocked, what was said, what was hurt)} of all probes; the hurt is healed after each group."
    found = {}
    with Scene() as scene:
        born = children()
        for group in grouped():
            said = run(group, scene)
            hurt = scene.hurt()
            for p in group:
                found[p.name] = (*said.get(p.name, ('nothing', '')), p.hurts in hurt, scene.secret
                                 in said.get(p.name, ('', ''))[1])
            scene.heal()
        assert not left_behind(born), 'a process was left behind'
    return found


@pytest.fixture(scope='module')
def plainly(): return outcomes(run_plainly)


@pytest.fixture(scope='module')
def in_lab(): return outcomes(run_in_lab)


def succeeded(p, outcome):
    "Whether a probe did what it is for: seen from outside, where that can be."
    how, said, hurt, leaked = outcome
    return how == 'open' and (hurt if p.hurts not in ('done', 'secret') else leaked if p.hurts == 'secret' else True)


@pytest.mark.parametrize('p', PROBES, ids=lambda p: p.name)
def test_it_is_a_danger(p, plainly):
    "In an ordinary process the probe does what it says."
    if p.name in ODD and not succeeded(p, plainly[p.name]): pytest.skip('this machine refuses it anybody')
    assert succeeded(p, plainly[p.name]), plainly[p.name]


@pytest.mark.parametrize('p', PROBES, ids=lambda p: p.name)
def test_the_child_stops_it(p, in_lab):
    tier = sandbox_status().tier
    if tier < 'S2' or tier == 'S2' and p.name in SEEN: pytest.xfail(f'the sandbox is {tier} here')
    how, said, hurt, leaked = in_lab[p.name]
    assert how == 'blocked' and not hurt and not leaked, in_lab[p.name]


@pytest.fixture(scope='module')
def in_second_tier():
    "The same on a machine that allows no namespaces: as its own user, behind file rules and the filter alone."
    from kernel_lab.evaluate.sandbox import run as sandbox
    before, server = sandbox.sandbox(), Server(('landlock', 'seccomp'))
    key = next(k for k, kept in sandbox._SERVERS.items() if kept is before)
    sandbox._SERVERS[key] = server, status_of_server(server)
    try:                                                       # put back at once: other tests ask for the tier
        return sandbox_status().tier, evaluate(Kernel('def kernel(x): return x'), TASK, seeds=1,
                                               baseline_us=1.0).versions['tier'], outcomes(run_in_lab)
    finally:
        sandbox._SERVERS[key] = before
        server.close()


@pytest.mark.parametrize('p', PROBES, ids=lambda p: p.name)
def test_the_second_tier_stops_it(p, in_second_tier):
    tier, told, found = in_second_tier
    if tier != 'S2': pytest.skip(f'file rules and the filter are {tier} here')
    assert told == 'S2'
    how, said, hurt, leaked = found[p.name]
    assert (how == 'blocked') is (p.name not in SEEN) and not hurt and not leaked, found[p.name]


def table(found):
    "Lines: what was tried, what came of it, and what stopped it."
    for p in PROBES:
        how, said, hurt, leaked = found[p.name]
        by = LAYERS.get(said.rpartition(' ')[2], 'an error of its own') if how == 'blocked' else ''
        yield (
            f'| {p.row} | {p.name} | {p.says} | {"open" if how != "blocked" or hurt or leaked else "blocked"} |'
            f' {said if how == "blocked" else ""} | {by} |'
        )


if __name__ == '__main__':
    os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
    print('| row | probe | what it tries | in the child | error | layer |\n|---|---|---|---|---|---|')
    print(*table(outcomes(run_in_lab)), sep='\n')
