"""The react agent: conversations through the real SDK with a loopback server, in good times and bad."""
import builtins
import json
import logging
import time
from dataclasses import replace

import pytest
from loopback import Drop, Endless, Refuse, Say, Server

from kernel_lab.agents.engine import session as sessions
from kernel_lab.agents.engine.loop import AgentLoop, replayed
from kernel_lab.agents.models.anthropic import AnthropicModel
from kernel_lab.agents.models.messages import ChatError
from kernel_lab.agents.models.wire import Patience
from kernel_lab.agents.systems.conversation import MAX_CALLS_PER_REPLY, kernel_in
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.agents.tools import bench as benches
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.evaluation import Evaluation
from kernel_lab.evaluate.records.verification import Status, new_id
from kernel_lab.evaluate.store.store import Store
from kernel_lab.tasks.suite.registry import get_task

SECRET = 'sk-test-0123456789-do-not-tell'
SOON = {'retry-after-ms': '5'}


@pytest.fixture
def wire(monkeypatch):
    "A function script → running server, with the environment pointing at it; all servers are stopped at the end."
    opened = []

    def start(*script):
        opened.append(server := Server(script).__enter__())
        monkeypatch.setenv('ANTHROPIC_BASE_URL', server.url)
        return server

    for name in ('ANTHROPIC_AUTH_TOKEN', 'ANTHROPIC_PROFILE', 'ANTHROPIC_CUSTOM_HEADERS', 'ANTHROPIC_LOG',
                 'KERNEL_LAB_MODEL'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('ANTHROPIC_API_KEY', SECRET)
    monkeypatch.setenv('NO_PROXY', '127.0.0.1')
    yield start
    for server in opened: server.__exit__()


# ---- the agent
# ------------------------------------------------------------------------------------------------------------------

SOFTMAX = get_task('softmax')
BASE = SOFTMAX.first_kernel.source
OPTIONS = {'seeds': 1}


def version(n):
    "The kernel with an instruction more, so that it is another Program."
    more = f'    more = nl.ndarray((1, {n}), dtype=nl.float32, buffer=nl.sbuf)\n    nisa.memset(dst=more, value=0.0)\n'
    return BASE.replace('    for i in', f'{more}    for i in', 1) + f'\n# version {n}\n'


def handed(source): return {'source': source, 'move': 'a move', 'why': 'a reason', 'expected': 'a gain'}
def submits(source, **kw): return Say(calls=(('submit', handed(source)),), **kw)
def profiles(*sources, **kw): return Say(calls=tuple(('profile', {'source': s}) for s in sources), **kw)


@pytest.fixture(scope='module')
def measured():
    "One real evaluation, which the quick ones are copies of."
    return evaluate(SOFTMAX.first_kernel, SOFTMAX, 'small', **OPTIONS)


@pytest.fixture
def quick(monkeypatch, measured):
    """Evaluations in no time: version n takes 100/(n+1) us; a source without @nki.jit has no entry. → the kernels
    evaluated."""
    made = []

    def fake(kernel, task, workload=None, chip='trn1', *, baseline_us=None, **options):
        made.append(kernel)
        if '@nki.jit' not in kernel.source or 'def k(:' in kernel.source:
            return Evaluation(new_id(), task.name, workload.name, chip, 'nki', kernel, Status.NO_ENTRY,
                              baseline_us=baseline_us)
        n = int(kernel.source.rsplit('# version', 1)[1]) if '# version' in kernel.source else 0
        profile = replace(measured.profile, latency_us=100/(n + 1))
        return replace(measured, id=new_id(), kernel=kernel, baseline_us=baseline_us or profile.latency_us,
                       profile=profile)

    monkeypatch.setattr(sessions, 'evaluate_kernel', fake)
    monkeypatch.setattr(sessions, 'digest_of_program', lambda e: e.kernel.hash)           # all copies have one timeline
    monkeypatch.setattr(benches, 'digest_of', lambda bench, kernel: kernel.hash)
    return made


def loop_of(agent, store=False, **kw):
    "A loop on the small softmax that stands after step 0."
    loop = AgentLoop('softmax', agent, 'small', store=store, **kw)
    loop.step()
    return loop


def played(agent, store=False, **kw):
    "A whole run: (its loop, the steps of the agent)."
    loop = loop_of(agent, store, **kw)
    while loop.step(): pass
    return loop, loop.steps[1:]


def results(body):
    "The results of tools at the end of a request."
    return [b for b in body['messages'][-1]['content'] if b['type'] == 'tool_result']


def last_words(loop):
    "The last sentence that the run has about itself."
    return [e.body['text'] for e in loop.recording.entries if e.kind == 'note'][-1]


def tools_called(loop): return [(e.body['name'], e.body['ok']) for e in loop.recording.entries if e.kind == 'tool']


def test_a_whole_conversation_for_real(wire, tmp_path):
    server = wire(profiles(BASE, version(1), thinking='Where does the time go?'),
                  submits('last', text='A remark.', usage={'cache_read_input_tokens': 4_000}))
    store, heard = Store(tmp_path/'runs.db'), []
    loop = AgentLoop('softmax', ReactAgent('claude-opus-5-5', exact=True), 'small', store=store, on_event=heard.append,
                     **OPTIONS)
    steps = list(loop)
    assert [(s.evaluation.status, s.move) for s in steps] == [(Status.CORRECT, 'first kernel'), (Status.CORRECT, 'try 1')]
    first, second = server.asked
    assert [t['name'] for t in first['tools']] == ['compile', 'verify', 'profile', 'submit']
    assert 'nisa.nc_matmul(' in first['system'][0]['text'] and 'tool_choice' not in first
    assert second['messages'][1]['content'][0] == {
        'type': 'thinking', 'thinking': 'Where does the time go?', 'signature': 'c2lnbmVk'}
    shown = results(second)
    calls = [b['id'] for b in second['messages'][1]['content'] if b['type'] == 'tool_use']
    assert [r['tool_use_id'] for r in shown] == calls and all('latency' in r['content'] for r in shown)
    assert not any(r['is_error'] for r in shown)
    kept = store.load_run(loop.run.id)
    same = [replace(s, evaluation=s.evaluation.kernel.hash) for s in kept.steps]
    assert same == [replace(s, evaluation=s.evaluation.kernel.hash) for s in steps]
    assert (kept.steps[1].tokens_in, kept.steps[1].tokens_out) == (100, 20) and 'Where does' in kept.steps[1].thought
    assert loop.spent.dollars == pytest.approx((200*4 + 40*20 + 4_000*0.2)/1e6)
    assert tools_called(loop) == [('profile', True), ('profile', True), ('submit', True)]
    assert last_words(loop) == 'Handed in: a move. a reason' and kept.config['model'] == 'claude-opus-5-5'
    assert ''.join(e.text for e in heard if e.kind == 'thinking') == 'Where does the time go?'
    assert [s.index for s in replayed(loop.recording, ReactAgent('claude-opus-5-5', exact=True))] == [0, 1]


def test_what_a_tool_evaluated_is_known_when_it_is_submitted(wire, tmp_path):
    wire(profiles(version(1)), submits(version(1)))
    loop, steps = played(ReactAgent('claude-opus-5-5'), Store(tmp_path / 'runs.db'), **OPTIONS)
    assert [s.move for s in steps] == ['try 1'] and steps[0].evaluation.speedup > 0
    assert last_words(loop).startswith('Handed in') and loop.run.state == 'finished'


def test_hostile_kernels_run_only_in_the_sandbox(wire):
    spy = 'import os\nimport nki\nraise ValueError(repr(dict(os.environ)))\n@nki.jit\ndef k(x): return x\n'
    leave = 'import os\nos._exit(3)\n' + BASE
    mark = 'import builtins\nbuiltins.was_here = True\n' + BASE
    server = wire(Say(calls=tuple((tool, {'source': s}) for s in (spy, leave, mark) for tool in ('compile', 'verify'))),
                  submits(version(1)))
    loop, _ = played(ReactAgent(exact=True), **OPTIONS)
    assert [ok for _, ok in tools_called(loop)] == [False, False, False, False, True, True, True]
    seen = results(server.asked[1])[0]['content']
    assert SECRET not in json.dumps(server.asked) and 'HOME' in seen and not hasattr(builtins, 'was_here')


def test_each_kernel_is_a_step_and_the_best_is_kept(wire, quick):
    wire(profiles(version(8), version(2)), submits(version(3)))
    loop, steps = played(ReactAgent())
    assert [s.evaluation.kernel.source for s in steps] == [version(8), version(2), version(3)]
    assert loop.best.index == 1 and loop.best.evaluation.speedup == pytest.approx(9) and steps[2].move == 'a move'
    assert [s.tokens_in for s in steps] == [100, 0, 100]                    # a request is paid for by the step after it


def test_endless_tool_calls_end_after_ten_turns(wire, quick):
    server = wire(*[profiles(version(n)) for n in range(1, 8)], profiles(version(8)))
    loop, steps = played(ReactAgent())
    assert len(server.asked) == 10 and 'All 10 turns' in last_words(loop) and loop.best.evaluation.kernel.source == version(8)
    texts = [b['text'] for b in server.asked[-1]['messages'][-1]['content'] if b['type'] == 'text']
    assert texts == ['This is your last turn: call submit now.'] and len(tools_called(loop)) == 10 and len(steps) == 8


def test_malformed_arguments_are_answered(wire, quick):
    bad = (('profile', {'src': BASE}), ('profile', [1, 2]), ('profile', {'source': 7}), ('rm -rf', {'source': ''}),
           ('submit', {'source': BASE}))
    server = wire(Say(calls=bad), submits(version(1)))
    _, steps = played(ReactAgent())
    said = results(server.asked[1])
    assert all(r['is_error'] and r['content'].startswith('Not run.') for r in said) and len(said) == 5
    assert [s.evaluation.kernel.source for s in steps] == [version(1)] and len(quick) == 2


def test_arguments_that_are_no_json_are_answered(wire, quick):
    server = wire(Say(calls=(('profile', '{"source": "x'), ('profile', 'nothing'))), submits(version(1)))
    loop, steps = played(ReactAgent())
    assert [s.evaluation.kernel.source for s in steps] == [version(1)] and loop.spent.requests == 1       # it was asked again
    assert server.asked[0] == server.asked[1] and loop.spent.tokens_in == 200


def test_nasty_sources_are_refused_or_evaluated(wire, quick):
    nasty = ['x'*1_000_000, '\0', '('*20_000, '']
    server = wire(Say(calls=tuple(('verify', {'source': s}) for s in nasty)), submits(version(1)))
    loop, steps = played(ReactAgent(exact=True, max_tokens=None))
    assert steps[-1].evaluation.status == Status.CORRECT and len(results(server.asked[1])) == 4
    assert all(len(r['content']) < 5_000 for r in results(server.asked[1]))


def test_only_some_calls_of_one_reply_are_run(wire, quick):
    server = wire(profiles(*map(version, range(1, 21))), submits(version(30)))
    played(ReactAgent())
    assert len(quick) == 1 + MAX_CALLS_PER_REPLY + 1 and len(results(server.asked[1])) == 20


def test_a_reply_that_was_cut_off_is_not_run(wire, quick):
    server = wire(profiles(version(1)[:500], stop='max_tokens'), submits(version(2)))
    _, steps = played(ReactAgent())
    assert 'cut off' in results(server.asked[1])[0]['content'] and [k.source for k in quick] == [BASE, version(2)]
    assert [s.evaluation.kernel.source for s in steps] == [version(2)]


def test_a_kernel_in_prose_is_taken(wire, quick):
    wire(Say(f'Here it is.\n```python\n{version(4)}```\nEnjoy.'))
    loop, (step,) = played(ReactAgent())
    assert step.evaluation.kernel.source.strip() == version(4).strip()
    assert step.move == 'from the reply' and step.why == 'Here it is.'


def test_of_two_kernels_in_prose_the_last_is_read_and_the_model_is_told(wire, quick):
    two = f'First:\n```python\n{BASE}```\nor\n```python\n@nki.jit\ndef k(: pass\n```\n'
    server = wire(Say(two), submits(version(2)))
    _, steps = played(ReactAgent())
    text = server.asked[1]['messages'][-1]['content'][0]['text']
    assert 'holds 2 kernels; the last one was read' in text and 'Not accepted' in text
    assert [s.evaluation.kernel.source.strip() for s in steps][1:] == [version(2).strip()]


@pytest.mark.parametrize(
    'text, stop',
    [
        ('It is perfect already.', None),
        ('', None),
        ('I will not.', 'refusal'),
        ('', 'refusal'),
        ('and on and', 'max_tokens'),
    ],
)
def test_a_reply_without_a_kernel(wire, quick, text, stop):
    server = wire(Say(text, stop=stop))
    loop = AgentLoop('softmax', ReactAgent(), 'small', store=False)
    steps = list(loop)
    assert len(server.asked) <= 2 and [s.move for s in steps] == ['first kernel']
    assert loop.run.state == 'finished' and loop.best.index == 0 and loop.spent.dollars > 0
    assert 'stopped' in last_words(loop) and all(m['content'] for body in server.asked for m in body['messages'])


def test_a_repeated_submission_is_told(wire, quick):
    server = wire(submits(BASE), submits(version(1)))
    _, (step,) = played(ReactAgent())
    assert 'step 0 tried exactly this' in results(server.asked[1])[0]['content']
    assert step.evaluation.kernel.source == version(1)


def test_a_wrong_submission_is_not_accepted(wire, quick):
    server = wire(submits('def k(x): return x'), submits(version(1)))
    _, steps = played(ReactAgent())
    assert [s.evaluation.status for s in steps] == [Status.NO_ENTRY, Status.CORRECT]
    assert results(server.asked[1])[0]['is_error']


def test_endless_text_is_cut_and_paid_for(wire, quick):
    wire(Endless('text'))
    loop = loop_of(ReactAgent(AnthropicModel('claude-opus-5-5', patience=Patience(whole=1))))
    with pytest.raises(ChatError, match='did not end'): loop.step()
    assert loop.run.state == 'interrupted' and loop.spent.dollars > 0 and loop.spent.open_requests == 0
    wire(submits(version(1)))
    assert loop.step().index == 1


def test_the_token_budget_counts_the_whole_run(wire, quick, tmp_path):
    server = wire(*[profiles(version(n), usage={'input_tokens': 30_000}) for n in range(1, 9)])
    store = Store(tmp_path/'runs.db')
    loop, steps = played(ReactAgent(max_tokens=150_000), store)
    assert 0 < len(steps) < 8 and loop.spent.tokens <= 150_000 and 'budget is used up' in loop.ended
    assert loop.run.state == 'finished' and loop.spent.requests == len(server.asked)
    asked = len(server.asked)
    again = AgentLoop(run=loop.run.id, agent=ReactAgent(max_tokens=150_000), store=store)
    assert again.step() is None and len(server.asked) == asked and 'budget' in again.ended
    more = AgentLoop(run=loop.run.id, agent=ReactAgent(max_tokens=200_000), store=store)
    assert more.step() and len(server.asked) == asked + 1 and more.spent.tokens <= 200_000


def test_the_dollar_budget(wire, quick):
    server = wire(*[profiles(version(n)) for n in range(1, 9)])
    loop, steps = played(ReactAgent('claude-opus-5-5', max_dollars=0.2))
    assert 0 < len(server.asked) and loop.spent.dollars == pytest.approx(0.0008*len(server.asked)) and loop.spent.dollars <= 0.2
    most = [e.body['most_usd'] for e in loop.recording.entries if e.kind == 'sent']
    assert all(0.0008 < m <= 0.2 for m in most)
    poor = loop_of(ReactAgent('claude-opus-5-5', max_dollars=0.002))
    assert poor.step() is None and '$0.002' in poor.ended and poor.spent.requests == 0 and poor.run.state == 'finished'
    with pytest.raises(UsageError, match='cannot be kept'): ReactAgent('openai:house-model', max_dollars=1)


def test_an_unknown_price_stays_unknown_in_the_run(wire, quick, tmp_path):
    wire(submits(version(1)))
    store = Store(tmp_path/'runs.db')
    loop = loop_of(ReactAgent(AnthropicModel('house-model-7b')), store)
    loop.step()
    assert store.load_run(loop.run.id).steps[1].cost_usd is None and loop.run._repr_html_()
    assert loop.spent.dollars is None and loop.spent.tokens == 120


def test_a_server_that_goes_away_keeps_what_was_paid_for(wire, quick, tmp_path):
    server = wire(profiles(version(5)), Refuse(529, headers=SOON))
    store = Store(tmp_path/'runs.db')
    loop = loop_of(ReactAgent(), store)
    step = loop.step()
    assert step.evaluation.kernel.source == version(5) and step.tokens_in == 100
    with pytest.raises(ChatError, match='overloaded'): loop.step()
    assert store.load_run(loop.run.id).state == 'interrupted' and len(server.asked) > 1
    later = wire(submits('last'))
    again = AgentLoop(run=loop.run.id, agent=ReactAgent(), store=store)
    assert again.step() is None and again.run.state == 'finished' and len(later.asked) == 1 and len(quick) == 2
    assert len(later.asked[0]['messages']) == 3 and last_words(again).startswith('Handed in')


def test_a_server_that_never_answers_interrupts_the_run(wire, quick, tmp_path):
    wire(Refuse(400, message='no such parameter'))
    store = Store(tmp_path/'runs.db')
    loop = loop_of(ReactAgent(), store)
    with pytest.raises(ChatError, match='no such parameter'): loop.step()
    assert store.load_run(loop.run.id).state == 'interrupted'
    wire(submits(version(1)))
    assert loop.step().index == 1


def test_ctrl_c_while_the_model_speaks(wire, quick, tmp_path):
    def stop(event):
        if event.kind == 'text': raise KeyboardInterrupt
    wire(Say('word ' * 5_000))
    store = Store(tmp_path/'runs.db')
    loop = loop_of(ReactAgent(), store, on_event=stop)
    with pytest.raises(KeyboardInterrupt): loop.step()
    kept = store.load_run(loop.run.id)
    assert kept.state == 'interrupted' and len(kept.steps) == 1
    wire(submits(version(1)))
    resumed = AgentLoop(run=kept.id, agent=ReactAgent(), store=store)
    assert resumed.spent.open_requests == 1 and resumed.spent.open_dollars > 0
    assert [s.index for s in resumed] == [1]


def test_no_key_says_so_before_anything_else(wire, quick, monkeypatch):
    server = wire(Say('x'))
    loop = loop_of(ReactAgent())
    monkeypatch.delenv('ANTHROPIC_API_KEY')
    with pytest.raises(ChatError, match='There is no key'): loop.step()
    assert not server.asked and loop.spent.dollars == 0 and loop.spent.open_requests == 0


def test_the_key_is_nowhere_after_a_run(wire, quick, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    wire(Drop(Say('word ' * 500), 5), profiles(version(1), text=f'The key is {SECRET}.'),
         Say(calls=(('verify', {'source': f'# {SECRET}'}),)), Refuse(429, headers=SOON, echo_key=True))
    store, heard = Store(tmp_path/'runs.db'), []
    agent = ReactAgent(exact=True)
    loop = loop_of(agent, store, on_event=heard.append)
    step = loop.step()
    with pytest.raises(ChatError, match='Too many requests') as e:
        while loop.step(): pass
    assert '[ANTHROPIC_API_KEY]' in step.thought and '[key]' in str(e.value)
    files = b''.join(p.read_bytes() for p in tmp_path.iterdir() if p.is_file())
    out, err = capfd.readouterr()
    for text in (json.dumps(loop.run.to_dict()), repr(loop.run), repr(agent), repr(vars(agent)), repr(vars(loop)),
                 caplog.text, out, err, loop.run._repr_html_(), files.decode('latin-1'), repr(heard),
                 repr(loop.recording.entries)):
        assert SECRET not in text


def test_what_a_store_cannot_hold_is_the_same_after_a_resume(wire, quick, tmp_path):
    odd = f'zero \0 half \ud800 secret {SECRET}'
    wire(profiles(version(1), text=odd, thinking=odd), Say(calls=(('verify', {'source': odd}),)), Refuse(400))
    store = Store(tmp_path/'runs.db')
    loop = loop_of(ReactAgent(exact=True), store)
    with pytest.raises(ChatError):
        while loop.step(): pass
    server = wire(submits(version(2)))
    again = AgentLoop(run=loop.run.id, agent=ReactAgent(exact=True), store=Store(tmp_path/'runs.db'))
    while again.step(): pass
    assert len(server.asked) == 1 and again.best.evaluation.kernel.source == version(2)
    assert last_words(again).startswith('Handed in')


def test_finding_a_kernel_in_prose_is_quick():
    since = time.process_time()
    assert kernel_in('`' * 200_000) is None and kernel_in(
        '```\n' * 50_000) is None and kernel_in('```python\n@nki.jit\n' + 'x\n' * 100_000)
    assert time.process_time() - since < 2
