"""A fixer beside a conversation: what it is asked, what the model is told of it, and that its money and its attempts are kept."""
import json

import pytest
from mortal import call, version

from kernel_lab.agents.engine.loop import AgentLoop, replayed
from kernel_lab.agents.models.messages import Reply
from kernel_lab.agents.models.prices import Usage
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.suites.ablate import SWITCHES, ablation_rows
from kernel_lab.agents.suites.plan import agent_of_row
from kernel_lab.agents.systems.beam import BeamAgent
from kernel_lab.agents.systems.guided import GuidedAgent
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.agents.systems.registry import AGENTS, agent_of, asks_a_model
from kernel_lab.agents.systems.two_stage import TwoStageAgent
from kernel_lab.core.errors import UsageError

BROKEN = 'def ('


def says(*blocks): return Reply(blocks, 'tool_use', Usage(1000, 20))
def prose(text, tokens=1000): return Reply(({'type': 'text', 'text': text},), 'end_turn', Usage(tokens, 20))
def fenced(source): return prose(f'```python\n@nki.jit\n{source}\n```')
def submit(source='best'): return says(call('submit', source=source, move='handed in', why='It is right.', expected='Less.'))
def tries(*sources): return says(*(call('profile', source=s) for s in sources))


def run(agent, replies, store=False, **kw):
    model = ScriptedModel(replies, name='claude-haiku-4-5')
    loop = AgentLoop('softmax', agent(model, **kw), 'small', store=store)
    list(loop)
    return loop, model


def told(request): return [b['text'] for b in request.messages[-1]['content'] if b['type'] == 'text']


def same_again(loop, agent): assert [s.index for s in replayed(loop.recording, agent)] == [s.index for s in loop.branch.steps]


def test_a_failed_kernel_is_mended_beside_the_conversation(quick, store):
    loop, model = run(ReactAgent, [tries(BROKEN), fenced(version(3)), submit()], store, fixes=1)
    talk, aside, after = model.asked
    failed, mended = loop.steps[1:]
    assert (aside.system, aside.tools, len(aside.messages)) == ('', (), 1) and talk.tools == after.tools
    asked = aside.messages[0]['content']
    assert asked.startswith('A kernel for the task softmax') and 'def softmax' in asked and BROKEN in asked and 'parse_error' in asked
    assert after.messages[:2] == (*talk.messages, {'role': 'assistant', 'content': [*tries(BROKEN).content]})
    assert f'go on from kernel {mended.evaluation.kernel.hash[:8]}' in told(after)[0] and '\n-def (\n+@nki.jit\n' in told(after)[0]
    assert (mended.move, mended.after, mended.parent) == ('mend try 1', failed.index, failed.evaluation.kernel.hash)
    assert loop.best.index == mended.index and loop.spent.requests == 3
    same_again(loop, ReactAgent(ScriptedModel([]), fixes=1))
    kept = store.load_run(loop.run.id)
    assert kept.config['fixes'] == 1 and agent_of(kept, ScriptedModel([])).fixes == 1


def test_a_fixer_that_fails_is_told_and_the_conversation_goes_on(quick):
    replies = [tries(BROKEN), fenced('def ( # one'), fenced('def ( # two'), submit(version(2))]
    loop, model = run(ReactAgent, replies, fixes=2)
    assert 'failed too' in told(model.asked[3])[0] and '# two' in told(model.asked[3])[0] and 'def ( # one' in model.asked[2].messages[0]['content']
    assert [s.evaluation.is_accepted for s in loop.steps] == [True, False, False, False, True]


def test_answers_without_a_kernel_are_told(quick):
    loop, model = run(ReactAgent, [tries(BROKEN), prose('I cannot.'), prose('I cannot.'), submit(version(2))], fixes=2)
    assert 'found no other kernel' in told(model.asked[3])[0] and len(loop.steps) == 3
    assert [e.body['text'] for e in loop.recording.entries if e.kind == 'note'][:1] == ['turn 0/fix 0: the answer holds no kernel.']


def test_what_is_known_or_right_is_not_mended_again(quick):
    loop, model = run(ReactAgent, [tries(BROKEN, version(1)), tries(version(2)), tries(BROKEN), submit()], fixes=3)
    assert len(model.asked) == 4 and loop.best.evaluation.kernel.source == version(2)


def test_a_kernel_in_prose_is_mended_though_the_model_had_been_reminded(quick):
    loop, model = run(ReactAgent, [prose('Well.'), fenced(BROKEN), fenced(version(4)), submit('last')], fixes=1)
    assert loop.best.evaluation.kernel.source.strip().endswith('# version 4') and len(model.asked) == 4
    assert loop.recording.entries[-1].body['text'].startswith('Handed in')


def test_the_last_turn_is_mended_too_and_no_attempt_is_a_turn(quick):
    loop, model = run(ReactAgent, [tries(BROKEN), fenced(version(4)), tries(BROKEN + '\n'), fenced(version(5))], fixes=1, turns=2)
    assert loop.best.evaluation.speedup == pytest.approx(6) and 'All 2 turns' in loop.recording.entries[-1].body['text']
    assert told(model.asked[2])[-1].startswith('This is your last turn')


def test_without_a_profile_the_verdict_has_no_time(quick):
    for profiling in (True, False):
        tool = 'profile' if profiling else 'verify'
        _, model = run(ReactAgent, [says(call(tool, source=BROKEN)), fenced(version(4)), submit()], fixes=1, profiling=profiling)
        assert ('latency' in told(model.asked[2])[0]) == profiling


def test_each_stage_has_its_model_and_a_mended_kernel_opens_the_next(quick):
    fast = ScriptedModel([tries(BROKEN + ' # fast'), fenced(version(8)), submit()], name='claude-haiku-4-5')
    loop, model = run(TwoStageAgent, [says(call('verify', source=BROKEN)), fenced(version(4)), submit()], fixes=1, fast_model=fast)
    assert len(model.asked) == len(fast.asked) == 3 and loop.best.evaluation.speedup == pytest.approx(9)
    assert 'latency' not in told(model.asked[2])[0] and 'latency' in told(fast.asked[2])[0]


def test_a_guided_model_has_one(quick, monkeypatch):
    from kernel_lab.agents.tools import tool_sets
    from kernel_lab.agents.tools.calls import Tool

    def optimise(bench, source: str, take: int = 0, show: int = 0):
        """Proposals.

        source: A kernel.
        take: One.
        show: One."""
        return 'nothing', True
    monkeypatch.setitem(tool_sets.ALL_TOOLS, 'optimise', Tool('optimise', optimise))
    loop, model = run(GuidedAgent, [tries(BROKEN), fenced(version(4)), submit()], fixes=1)
    assert loop.best.evaluation.speedup == pytest.approx(5) and 'go on from kernel' in told(model.asked[2])[0]


def test_the_reservation_of_the_next_turn_goes_on_with_the_conversation(quick):
    loop, _ = run(ReactAgent, [tries(version(1)), tries(version(2)), submit()])
    other, _ = run(ReactAgent, [tries(version(1)), tries(BROKEN), fenced(version(2)), submit()], fixes=1)
    most = [[e.body['most_tokens'] for e in x.recording.entries if e.kind == 'sent'] for x in (loop, other)]
    assert most[0][1] < most[0][0] and most[1][3] < most[1][0]


def test_a_run_keeps_the_attempts_that_it_was_begun_with(quick, store):
    model = ScriptedModel([tries(BROKEN), tries(BROKEN + '\n'), submit(version(2))], name='claude-haiku-4-5')
    loop = AgentLoop('softmax', ReactAgent(model), 'small', store=store)
    loop.step(), loop.step()
    again = AgentLoop(agent=ReactAgent(model, fixes=5), run=loop.run.id, store=store)
    list(again)
    assert len(model.asked) == 3 and again.best.evaluation.kernel.source == version(2)


def test_money_ends_a_fixer_and_the_run_as_any_request(quick):
    replies = [tries(BROKEN), *[prose(f'```python\n@nki.jit\ndef ( # {n}\n```', 1_500) for n in range(50)]]
    loop, model = run(ReactAgent, replies, fixes=50, max_tokens=75_000)
    assert 'budget is used up' in loop.ended and loop.spent.tokens <= 75_000 and 1 < len(model.asked) < 50


def test_the_first_of_two_kernels_of_a_beam_is_read_and_that_is_said(quick):
    two = prose(f'```python\n@nki.jit\n{version(1)}\n```\nor\n```python\n@nki.jit\n{version(2)}\n```')
    loop, _ = run(BeamAgent, [prose('A plan.'), two], rounds=1, beam=1, plans=1, samples=1)
    notes = [e.body['text'] for e in loop.recording.entries if e.kind == 'note']
    assert any('holds 2 kernels; the first was read' in n for n in notes) and loop.steps[1].evaluation.kernel.source.endswith('# version 1\n')


def test_less_than_no_attempt_is_refused():
    with pytest.raises(UsageError, match='fixes=-1: react takes a number of at least 0'): ReactAgent(ScriptedModel([]), fixes=-1)


def test_every_agent_that_asks_a_model_can_be_ablated():
    for name in filter(asks_a_model, AGENTS):
        on, off = ablation_rows(name, ['fixer'], singly=True)
        assert (agent_of_row(on, model=ScriptedModel([])).fixes, agent_of_row(off, model=ScriptedModel([])).fixes) == (1, 0)
        assert [r.settings['fixes'] for r in ablation_rows(name, ['fixer'], {'fixes': 4})] == [4, 0]
    assert set(SWITCHES) == set(AGENTS)


def test_without_fixes_nothing_is_asked_or_said_otherwise(quick):
    course = [tries(BROKEN), says(call('edit', kernel='last', old='x', new='y')), submit(version(2))]
    plain, _ = run(ReactAgent, course)
    assert [e.key for e in plain.recording.entries if e.kind in ('reply', 'tool')] == [
        'turn 0', 'turn 0/0', 'turn 1', 'turn 1/0', 'turn 2', 'turn 2/0'] and 'fix' not in json.dumps([e.key for e in plain.recording.entries])
