"""Runs that may be killed at any moment. As a program: a nursery, which reads a job a line (`agent`, `store`, `asked`),
forks a child for each, and writes its process id and, once it has ended, how. Evaluations are quick copies of a real one;
the model answers by the request alone and writes down what it charged before it answers."""
import json
import os
import sys
import time
import traceback
from dataclasses import replace
from hashlib import sha256

from kernel_lab.agents.engine import session as sessions
from kernel_lab.agents.engine.loop import AgentLoop
from kernel_lab.agents.models.messages import Reply
from kernel_lab.agents.models.prices import Usage, picodollars
from kernel_lab.agents.systems.beam import BeamAgent
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.agents.tools import bench as benches
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.evaluation import Evaluation
from kernel_lab.evaluate.records.verification import Status, new_id
from kernel_lab.evaluate.store.store import Store
from kernel_lab.tasks.suite.registry import get_task

TASK = get_task('softmax')
BASE = TASK.first_kernel.source
MODEL = 'claude-haiku-4-5'


def version(n):
    "A kernel of which the quick evaluation says 100/(n+1) us."
    return f'{BASE}\n# version {n}\n'


def call(tool, **given): return {'type': 'tool_use', 'id': f'{tool}-{len(json.dumps(given))}', 'name': tool, 'input': given}


def quick_evaluate(measured, seconds=0.0):
    "A stand-in for `evaluate`: version n takes 100/(n+1) us, `def (` does not parse."
    def fake(kernel, task, workload=None, chip='trn1', *, baseline_us=None, **options):
        time.sleep(seconds)
        if 'def (' in kernel.source:
            return Evaluation(new_id(), task.name, workload.name, chip, 'nki', kernel, Status.PARSE_ERROR, baseline_us=baseline_us)
        n = int(kernel.source.rsplit('# version', 1)[1]) if '# version' in kernel.source else 0
        profile = replace(measured.profile, latency_us=100 / (n + 1))
        return replace(measured, id=new_id(), kernel=kernel, baseline_us=baseline_us or profile.latency_us, profile=profile)
    return fake


def make_quick(measured, patch=setattr, seconds=0.0):
    "Evaluate in no time; `patch(object, name, value)` puts the stand-ins in their places."
    patch(sessions, 'evaluate_kernel', quick_evaluate(measured, seconds))
    patch(sessions, 'digest_of_program', lambda e: e.kernel.hash)                  # all copies have one timeline
    patch(benches, 'digest_of', lambda bench, kernel: kernel.hash)
    patch(benches.ToolBench, 'timeline', lambda bench, e: measured.profile.timeline)
    return measured


REACT = [[call('profile', source=version(1)), call('profile', source=version(2))],
         [call('edit', kernel='best', old='# version 2', new='# version 5'), call('read_api', name='nl.load')],
         [call('variants', sources=[version(7), 'def (', 'step 0', version(9)])],
         [{'type': 'text', 'text': 'There is nothing more to do.'}],
         [call('profile', source='def (\n'), call('profile', source=version(9)), call('no such tool')],
         [call('submit', source='best', move='nine', why='It is the fastest.', expected='Nothing.')]]


def react_reply(request):
    "What the script of a conversation has at this place."
    return REACT[min(sum(m['role'] == 'assistant' for m in request.messages), len(REACT) - 1)]


MENDING = [[call('profile', source='def (')],
           [call('variants', sources=[version(3), 'def (\n'])],
           [{'type': 'text', 'text': 'Here it is.\n```python\n@nki.jit def ( in prose\n```'}],
           [call('edit', kernel='last', old='# version', new='def ( # version'), call('profile', source=version(3))],
           [{'type': 'text', 'text': 'And again.\n```python\n@nki.jit def ( the same\n```'}],
           [call('submit', source='best', move='the best', why='It is the fastest.', expected='Nothing.')]]


def mending_reply(request):
    "What a conversation with kernels that fail has at this place; of a fixer, which offers no tools, a kernel by the request."
    if request.tools: return MENDING[min(sum(m['role'] == 'assistant' for m in request.messages), len(MENDING) - 1)]
    asked = request.messages[0]['content']
    n = int(sha256(asked.encode()).hexdigest()[:8], 16)
    if '# once more' in asked: text = 'I cannot.' if 'in prose' in asked else f'```python\n@nki.jit\n{version(10 + n % 40)}\n```'
    else: text = '```python\n@nki.jit\ndef ( # once more' + (' in prose' if 'in prose' in asked else '') + '\n```'
    return [{'type': 'text', 'text': text}]


def beam_reply(request):
    "A plan, a summary, or a kernel, drawn by the request."
    n = int(sha256(json.dumps([request.system, request.messages]).encode()).hexdigest()[:8], 16)
    if request.system: text = f'Plan {n % 1000}: use wider tiles.' if n % 5 else 'No optimisation is found here.'
    else: text = 'I cannot.' if n % 7 == 0 else f'```python\n{"@nki.jit def (" if n % 5 == 0 else version(n % 60)}\n```'
    return [{'type': 'text', 'text': text}]


class ByRequest:
    "A model that answers by the request, and writes each charge to the file `asked`, if any, before it answers."
    name, host = MODEL, ''

    def __init__(self, answer, asked=None, seconds=0.0): self.answer, self.asked, self.seconds = answer, asked, seconds

    def send(self, request, on_event=None):
        content = self.answer(request)
        usage = Usage(request.size // 4, len(json.dumps(content)) // 4 + 1)
        if self.asked:
            with open(self.asked, 'a') as f: f.write(f'{picodollars(usage, MODEL)}\n')
        time.sleep(self.seconds)
        return Reply(tuple(content), 'tool_use' if content[0]['type'] == 'tool_use' else 'end_turn', usage, MODEL)


def agent_for(name, asked=None, seconds=0.0):
    "A small agent of this name, which asks a model that answers by the request."
    if name == 'react': return ReactAgent(ByRequest(react_reply, asked, seconds), max_dollars=5)
    if name == 'mending': return ReactAgent(ByRequest(mending_reply, asked, seconds), max_dollars=5, fixes=2)
    return BeamAgent(ByRequest(beam_reply, asked, seconds), rounds=2, beam=2, plans=2, samples=2, fixes=1, max_dollars=5)


def go_on(agent, store, asked=None, seconds=0.0):
    "Begin a run in a store, or go on with the one that is there, until it is done."
    shelf = Store(store)
    there, agent = shelf.latest(), agent_for(agent, asked, seconds)
    loop = AgentLoop(agent=agent, run=there.id, store=shelf) if there else AgentLoop('softmax', agent, 'small', store=shelf)
    while loop.step(): pass
    shelf.close()


def child(job):
    "A job, in a process of its own; it does not return."
    try: go_on(**job, seconds=0.004)
    except BaseException:                                         # noqa: BLE001
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main():
    "The nursery."
    make_quick(evaluate(TASK.first_kernel, TASK, 'small', seeds=1), seconds=0.006)
    print('ready', flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0: child(json.loads(line))
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == '__main__': main()
