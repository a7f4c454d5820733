"""The model agent: conversations through the real SDK with a loopback server, in good times and bad."""
import builtins
import json
import logging
import time
from dataclasses import replace

import pytest
from loopback import Drop, Refuse, Say, Server

from kernel_lab.agents.engine import session as loops
from kernel_lab.agents import tools
from kernel_lab.agents.engine.loop import AgentLoop
from kernel_lab.agents.models.anthropic import AnthropicModel
from kernel_lab.agents.models.messages import ChatError
from kernel_lab.agents.systems.react import MAX_CALLS_PER_REPLY, ReactAgent, kernel_in
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
        if '@nki.jit' not in kernel.source:
            return Evaluation(new_id(), task.name, workload.name, chip, 'nki', kernel, Status.NO_ENTRY,
                              baseline_us=baseline_us)
        n = int(kernel.source.rsplit('# version', 1)[1]) if '# version' in kernel.source else 0
        profile = replace(measured.profile, latency_us=100/(n + 1))
        return replace(measured, id=new_id(), kernel=kernel, baseline_us=baseline_us or profile.latency_us,
                       profile=profile)

    monkeypatch.setattr(loops, 'evaluate_kernel', fake)
    monkeypatch.setattr(benches, 'evaluate', fake)
    monkeypatch.setattr(benches, 'digest_of', lambda bench, kernel: kernel.hash)           # all copies have one timeline
    return made


def loop_of(agent, store=False, **kw):
    "A loop on the small softmax that stands after step 0."
    loop = AgentLoop('softmax', agent, 'small', store=store, **kw)
    loop.step()
    return loop


def test_a_whole_conversation_for_real(wire, tmp_path):
    server = wire(profiles(BASE, thinking='Where does the time go?'),
                  submits(version(1), text='A remark.', usage={'cache_read_input_tokens': 4_000}))
    store, heard = Store(tmp_path/'runs.db'), []
    agent = ReactAgent('claude-opus-5-5', on_text=heard.append, options=OPTIONS)
    loop = AgentLoop('softmax', agent, 'small', store=store, max_steps=1, **OPTIONS)
    steps = list(loop)
    assert [s.evaluation.status for s in steps] == [Status.CORRECT, Status.CORRECT] and steps[1].move == 'a move'
    first, second = server.asked
    assert [t['name'] for t in first['tools']] == ['compile', 'verify', 'profile', 'submit']
    assert 'nisa.nc_matmul(' in first['system'][0]['text']
    assert 'tool_choice' not in first and 'costliest lines' in first['messages'][0]['content']
    assert second['messages'][1]['content'][0] == {
        'type': 'thinking', 'thinking': 'Where does the time go?', 'signature': 'c2lnbmVk'}
    result = second['messages'][2]['content'][0]
    assert result['tool_use_id'] == second['messages'][1]['content'][1]['id'] and 'latency' in result[
        'content'] and not result['is_error']
    kept = store.load_run(loop.run.id).steps[1]
    assert replace(kept, evaluation=None) == replace(steps[1],
                                                     evaluation=None) and kept.evaluation.id == steps[1].evaluation.id
    assert (kept.tokens_in, kept.tokens_out) == (4_200, 40) and [c['name']
                                                                 for c in kept.tool_calls] == ['profile', 'submit']
    assert kept.cost_usd == pytest.approx((200*4 + 40*20 + 4_000*0.2)/1e6)
    assert 'Where does' in kept.thought and 'You make kernels' in kept.prompt
    assert ''.join(heard).startswith('Where does') and loop.run.config['model'] == 'claude-opus-5-5'


def test_what_a_tool_evaluated_is_known_when_it_is_submitted(wire, tmp_path):
    wire(profiles(version(1)), submits(version(1)))
    loop = AgentLoop('softmax', ReactAgent('claude-opus-5-5'), 'small', store=Store(tmp_path / 'runs.db'), max_steps=1,
                     **OPTIONS)
    first, second = loop
    assert not first.evaluation.cached and second.evaluation.cached and second.evaluation.speedup > 0


def test_hostile_kernels_run_only_in_the_sandbox(wire):
    spy = 'import os\nimport nki\nraise ValueError(repr(dict(os.environ)))\n@nki.jit\ndef k(x): return x\n'
    leave = 'import os\nos._exit(3)\n' + BASE
    mark = 'import builtins\nbuiltins.was_here = True\n' + BASE
    server = wire(Say(calls=tuple((tool, {'source': s}) for s in (spy, leave, mark) for tool in ('compile', 'verify'))),
                  submits(version(1)))
    step = loop_of(ReactAgent(options=OPTIONS), **OPTIONS).step()
    assert [c['ok'] for c in step.tool_calls] == [False, False, False, False, True, True, True]
    assert SECRET not in json.dumps(
        server.asked) and 'HOME' in step.tool_calls[0]['result'] and not hasattr(builtins, 'was_here')


def test_the_fastest_verified_kernel_is_proposed(wire, quick):
    wire(profiles(version(8), version(2)), submits(version(3)))
    step = loop_of(ReactAgent()).step()
    assert step.evaluation.kernel.source == version(8) and step.move == 'best of the conversation'
    assert step.evaluation.speedup == pytest.approx(9)


def test_endless_tool_calls_end_after_ten_turns(wire, quick):
    server = wire(*[profiles(version(n)) for n in range(1, 8)], profiles(version(8)))
    step = loop_of(ReactAgent()).step()
    assert len(server.asked) == 10 and 'All 10 turns' in step.why and step.evaluation.kernel.source == version(8)
    texts = [b['text'] for b in server.asked[-1]['messages'][-1]['content'] if b['type'] == 'text']
    assert texts == ['This is your last turn: call submit now.'] and len(step.tool_calls) == 10


def test_malformed_arguments_are_answered(wire, quick):
    bad = (('profile', {'src': BASE}), ('profile', [1, 2]), ('profile', {'source': 7}), ('rm -rf', {'source': ''}),
           ('submit', {'source': BASE}))
    server = wire(Say(calls=bad), submits(version(1)))
    step = loop_of(ReactAgent()).step()
    results = server.asked[1]['messages'][-1]['content']
    assert all(r['is_error'] and r['content'].startswith('Not run.') for r in results) and len(results) == 5
    assert step.evaluation.kernel.source == version(1) and len(quick) == 3


def test_nasty_sources_are_refused_or_evaluated(wire, quick):
    nasty = ['x'*1_000_000, '\0', '('*20_000, '']
    server = wire(Say(calls=tuple(('verify', {'source': s}) for s in nasty)), submits(version(1)))
    step = loop_of(ReactAgent()).step()
    assert step.evaluation.status == Status.CORRECT and all(
        len(r['content']) < 5_000 for r in server.asked[1]['messages'][-1]['content'])


def test_only_some_calls_of_one_reply_are_run(wire, quick):
    server = wire(profiles(*map(version, range(1, 21))), submits(version(30)))
    loop_of(ReactAgent()).step()
    assert len(quick) == 1 + MAX_CALLS_PER_REPLY + 2 and len(server.asked[1]['messages'][-1]['content']) == 20


def test_a_reply_that_was_cut_off_is_not_run(wire, quick):
    server = wire(profiles(version(1)[:500], stop='max_tokens'), submits(version(2)))
    step = loop_of(ReactAgent()).step()
    assert 'cut off' in server.asked[1]['messages'][-1]['content'][0][
        'content'] and step.evaluation.kernel.source == version(2)
    assert [k.source for k in quick] == [BASE, version(2), version(2)]        # the loop does not take the agent's word


def test_a_kernel_in_prose_is_taken(wire, quick):
    wire(Say(f'Here it is.\n```python\n{version(4)}```\nEnjoy.'))
    step = loop_of(ReactAgent()).step()
    assert step.evaluation.kernel.source.strip() == version(
        4).strip() and step.move == 'from the reply' and step.why == 'Here it is.'


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
    assert len(server.asked) <= 2 and [s.move for s in steps] == ['first kernel', 'gave up']
    assert loop.run.state == 'finished' and loop.best.index == 0 and steps[1].cost_usd > 0 and 'stopped' in steps[1].why
    assert all(m['content'] for body in server.asked for m in body['messages'])


def test_a_repeated_submission_is_told(wire, quick):
    server = wire(submits(BASE), submits(version(1)))
    step = loop_of(ReactAgent()).step()
    assert 'step 0 tried exactly this' in server.asked[1]['messages'][-1]['content'][0]['content']
    assert step.evaluation.kernel.source == version(1)


def test_a_wrong_submission_is_not_accepted(wire, quick):
    server = wire(submits('def k(x): return x'), submits(version(1)))
    assert loop_of(ReactAgent()).step().evaluation.status == Status.CORRECT
    assert server.asked[1]['messages'][-1]['content'][0]['is_error']


def test_the_token_budget_counts_the_whole_run(wire, quick, tmp_path):
    server = wire(profiles(version(1)), submits(version(2)), profiles(version(3)), submits(version(4)))
    store = Store(tmp_path/'runs.db')
    loop = loop_of(ReactAgent(max_tokens=330), store)
    loop.step()                                         # 240 tokens
    late = loop.step()                                  # 120 more: over the cap after one request
    assert len(server.asked) == 3 and 'budget of 330 tokens' in late.why and late.evaluation.kernel.source == version(3)
    assert [b['max_tokens'] for b in server.asked] == [330, 210, 90]
    again = AgentLoop(run=loop.run.id, agent=ReactAgent(max_tokens=330), store=store)
    assert again.step() is None and len(server.asked) == 3 and again.run.state == 'finished'


def test_the_dollar_budget(wire, quick):
    server = wire(*[profiles(version(n)) for n in range(1, 9)])
    step = loop_of(ReactAgent('claude-opus-5-5', max_dollars=0.002)).step()            # 0.0008 a request
    assert len(server.asked) == 2 and '$0.002' in step.why and step.cost_usd == pytest.approx(0.0016)
    with pytest.raises(UsageError, match='cannot be kept'): ReactAgent('openai:house-model', max_dollars=1)


def test_an_unknown_price_stays_unknown_in_the_run(wire, quick, tmp_path):
    wire(submits(version(1)))
    store = Store(tmp_path/'runs.db')
    loop = loop_of(ReactAgent(AnthropicModel('house-model-7b')), store)
    loop.step()
    assert store.load_run(loop.run.id).steps[1].cost_usd is None and loop.run._repr_html_()


def test_a_server_that_goes_away_keeps_what_was_paid_for(wire, quick):
    wire(profiles(version(5)), Refuse(529, headers=SOON))
    loop = loop_of(ReactAgent())
    step = loop.step()
    assert step.evaluation.kernel.source == version(5) and 'overloaded' in step.why and step.tokens_in == 100


def test_a_server_that_never_answers_interrupts_the_run(wire, quick, tmp_path):
    wire(Refuse(400, message='no such parameter'))
    store = Store(tmp_path/'runs.db')
    loop = loop_of(ReactAgent(), store)
    with pytest.raises(ChatError, match='no such parameter'): loop.step()
    assert store.load_run(loop.run.id).state == 'interrupted'
    wire(submits(version(1)))
    assert loop.step().index == 1


def test_ctrl_c_while_the_model_speaks(wire, quick, tmp_path):
    def stop(piece): raise KeyboardInterrupt
    wire(Say('word ' * 5_000))
    store = Store(tmp_path/'runs.db')
    loop = loop_of(ReactAgent(on_text=stop), store)
    with pytest.raises(KeyboardInterrupt): loop.step()
    kept = store.load_run(loop.run.id)
    assert kept.state == 'interrupted' and len(kept.steps) == 1
    wire(submits(version(1)))
    resumed = AgentLoop(run=kept.id, agent=ReactAgent(), store=store, max_steps=1)
    assert [s.index for s in resumed] == [1]


def test_no_key_says_so_before_anything_else(wire, quick, monkeypatch):
    server = wire(Say('x'))
    loop = loop_of(ReactAgent())
    monkeypatch.delenv('ANTHROPIC_API_KEY')
    with pytest.raises(ChatError, match='There is no key'): loop.step()
    assert not server.asked


def test_the_key_is_nowhere_after_a_run(wire, quick, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    wire(Drop(Say('word ' * 500), 5), profiles(version(1), text=f'The key is {SECRET}.'),
         Say(calls=(('verify', {'source': f'# {SECRET}'}),)), Refuse(429, headers=SOON, echo_key=True))
    store = Store(tmp_path/'runs.db')
    agent = ReactAgent()
    loop = loop_of(agent, store)
    step = loop.step()
    assert '[ANTHROPIC_API_KEY]' in step.thought and '[key]' in step.why
    files = b''.join(p.read_bytes() for p in tmp_path.iterdir() if p.is_file())
    out, err = capfd.readouterr()
    for text in (json.dumps(loop.run.to_dict()), repr(loop.run), repr(agent), repr(vars(agent)), repr(vars(loop)),
                 caplog.text, out, err, loop.run._repr_html_(), files.decode('latin-1')):
        assert SECRET not in text


def test_finding_a_kernel_in_prose_is_quick():
    since = time.process_time()
    assert kernel_in('`' * 200_000) is None and kernel_in(
        '```\n' * 50_000) is None and kernel_in('```python\n@nki.jit\n' + 'x\n' * 100_000)
    assert time.process_time() - since < 2
