"""Parts of one's own in the walk of a person: models that answer nonsense, agents that propose nonsense, and careless
orders of edits, turns and limits. Each ends in a sentence, and the run goes on."""
import threading
from inspect import signature

import pytest
from mortal import ByRequest, call, react_reply, version

from kernel_lab.agents.engine.loop import UNHEARD, AgentLoop, Proposal, replayed
from kernel_lab.agents.engine.session import EVALUATION_OPTIONS
from kernel_lab.agents.models.messages import Reply
from kernel_lab.agents.models.prices import Usage
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.agents.systems.registry import agent_named
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.journal import Entry, spent_in
from kernel_lab.tasks.model.workload import Kernel
from kernel_lab.tasks.suite.registry import get_task

SOFTMAX = get_task('softmax')
pytestmark = pytest.mark.usefixtures('quick')


def sound(): return ReactAgent(ByRequest(react_reply))


def loop_of(agent, store, **kw): return AgentLoop('softmax', agent, 'small', store=store, **kw)


class Odd:
    "A model of one's own."
    name, host = 'odd', ''
    def __init__(self, answer): self.answer = answer
    def send(self, request, on_event=None): return self.answer


TEXT = ({'type': 'text', 'text': 'hi'},)
NONSENSE = {'nothing': None, 'a text': 'hi', 'a dict': {'content': TEXT}, 'plain content': Reply('hi'), 'plain blocks': Reply(('hi',)),
            'a number for a text': Reply(({'type': 'text', 'text': 5},)), 'no stop': Reply(TEXT, None), 'no usage': Reply(TEXT, usage=None),
            'half a token': Reply(TEXT, usage=Usage(1.5)), 'less than no token': Reply(TEXT, usage=Usage(-5))}


@pytest.mark.parametrize('what', NONSENSE)
def test_a_reply_that_cannot_be_read_is_not_kept_and_the_run_goes_on(store, what):
    loop = loop_of(ReactAgent(Odd(NONSENSE[what])), store)
    loop.step()
    for _ in range(2):
        with pytest.raises(UsageError, match='The model odd gave an answer that cannot be read'): loop.step()
    assert loop.run.state == 'interrupted' and loop.spent.open_requests == 2
    assert AgentLoop(agent=sound(), run=loop.run.id, store=store).step().index > 0


def test_what_was_cut_off_at_an_unknown_price_is_not_called_free(store):
    loop = loop_of(ReactAgent(Odd(None)), store)
    loop.step()
    with pytest.raises(UsageError): loop.step()
    assert str(loop.spent).endswith('unknown price, and unknown price for 1 cut off') and '$' not in str(loop.spent)


def test_a_request_is_counted_once_while_its_reply_comes():
    sent = Entry(0, None, 'sent', 'a', dict(request='', most_usd=2.0, most_tokens=9))
    reply = Entry(1, 0, 'reply', 'a', dict(sent=0, cost_usd=0.5, tokens_in=1, tokens_out=1))

    class Growing(list):
        "A journal to which another thread adds a reply as soon as it has been read once."
        def __iter__(self):
            seen = list(super().__iter__())
            if len(self) == 1: self.append(reply)
            return iter(seen)
    from kernel_lab.agents.engine.recording import Recording
    loop = loop_of(None, False)
    found = Recording(loop.run, None, Growing([sent])).spent
    assert (found.dollars, found.open_dollars) in ((0, 2.0), (0.5, 0)) and spent_in([sent, reply]).open_dollars == 0


class Proposes:
    name = 'own'
    def __init__(self, what): self.what = what
    def propose(self, run, task, workload): return self.what


@pytest.mark.parametrize('what', ['def k(x): return x', Kernel('def k(x): return x'), Proposal('def k(x): return x', 'a', 'b', 'c')])
def test_a_proposal_that_is_none_is_a_sentence(store, what):
    loop = loop_of(Proposes(what), store)
    loop.step()
    with pytest.raises(UsageError, match='The agent own proposes a .* without a kernel'): loop.step()
    assert loop.run.state == 'interrupted'


@pytest.mark.parametrize('agent', ['react', ReactAgent, object()])
def test_what_is_no_agent_is_said_before_a_step(agent):
    with pytest.raises(UsageError, match='is no agent'): loop_of(agent, False)


def test_what_is_no_store_is_said_before_a_step(tmp_path):
    with pytest.raises(UsageError, match='is no store'): loop_of(sound(), str(tmp_path/'runs.db'))
    with pytest.raises(UsageError, match="Without a store there is no run 'r1'"): AgentLoop(agent=sound(), run='r1', store=False)
    with pytest.raises(UsageError, match="max_steps='3' is no amount"): loop_of(sound(), False, max_steps='3')


def test_a_kernel_by_hand_may_come_with_words(store):
    loop = loop_of(sound(), store)
    loop.step()
    step = loop.edit(version(2), message='It is wider.', plan=None)
    kept = [e.body for e in loop.recording.entries if e.kind == 'edit']
    assert step.index == 1 and kept[0]['step'] == 1 and kept[1] == {'message': 'It is wider.'}
    loop.step()
    assert not loop.is_unheard


def test_words_to_a_simple_agent_are_refused_before_the_kernel_is_evaluated(store):
    loop = loop_of(Proposes(None), store)
    loop.step()
    with pytest.raises(UsageError, match='takes kernels, and no words'): loop.edit(version(2), message='It is wider.')
    assert len(loop.steps) == 1


@pytest.mark.parametrize('kernel', [5, b'def k(x): return x', test_a_kernel_by_hand_may_come_with_words])
def test_a_kernel_that_is_no_text(store, kernel):
    loop = loop_of(sound(), store)
    loop.step()
    with pytest.raises(UsageError, match='given as text'): loop.edit(kernel)
    assert loop.run.state == 'running' and len(loop.steps) == 1


def test_no_message_is_no_word(store):
    loop = loop_of(sound(), store)
    loop.step()
    with pytest.raises(UsageError, match='nothing to edit'): loop.edit(message=None)
    assert loop.edit(message=3, plan=None) is None and loop.step()


def test_words_that_nobody_hears_are_said(store):
    "All six turns are used up."
    def sound(): return ReactAgent(ByRequest(react_reply), turns=6)
    loop = loop_of(sound(), store)
    loop.run_until()
    assert loop.ended == ''
    again = AgentLoop(agent=sound(), run=loop.run.id, store=store)
    again.edit(message='Go on.')
    assert again.step() is None and again.ended == UNHEARD
    again.rewind(2).edit(message='Go on.')
    assert again.ended == '' and again.step() and not again.is_unheard


def gives_up_until_it_is_asked(hands_in):
    "An answer by what was said last: a number asks for that version, anything else is the end."
    def answer(request):
        said = [b['text'] for m in request.messages if isinstance(m['content'], list) for b in m['content']
                if b['type'] == 'text' and b['text'].isdigit()]
        tried = sum(b['type'] == 'tool_use' and b['name'] == 'profile' for m in request.messages
                    if m['role'] == 'assistant' for b in m['content'])
        if tried < len(said): return [call('profile', source=version(int(said[tried])))]
        if not hands_in: return [{'type': 'text', 'text': 'I have no idea.'}]
        return [call('submit', source='best', move=f'hand in {tried}', why='It is the fastest.', expected='Nothing.')]
    return lambda: ReactAgent(ByRequest(answer), turns=20)


@pytest.mark.parametrize('hands_in', [False, True])
def test_words_after_the_model_has_ended_take_it_up_again(store, hands_in):
    "From the next session too, more than once, and a replay is the same."
    agent = gives_up_until_it_is_asked(hands_in)
    loop = loop_of(agent(), store)
    loop.edit(message='1')
    loop.run_until()
    assert [s.evaluation.kernel.source for s in loop.steps[1:]] == [version(1)] and loop.run.state == 'finished'
    for n in (5, 9):
        loop = AgentLoop(agent=agent(), run=loop.run.id, store=store)
        loop.edit(message=str(n))
        step = loop.step()
        assert step.evaluation.kernel.source == version(n) and not loop.is_unheard
        asked = loop.spent.requests
        loop.run_until()
        assert loop.done and loop.ended == '' and loop.run.state == 'finished' and loop.spent.requests > asked
    ends = {e.key: e.body['text'] for e in loop.recording.entries if e.kind == 'note'}
    assert list(ends) == ['end', 'end 2', 'end 3']
    assert [t.split('.')[0] for t in ends.values()] == (
        [f'Handed in: hand in {n}' for n in (1, 2, 3)] if hands_in else ['The model stopped without a new correct kernel'] * 3)
    asked = loop.spent
    again = list(replayed(loop.recording, agent(), 'softmax'))
    assert [s.index for s in again] == [s.index for s in loop.steps] and loop.spent == asked


@pytest.mark.parametrize('limit', [dict(steps='3'), dict(seconds=-1), dict(dollars=float('nan')), dict(speedup=True)])
def test_limits_that_are_none_are_refused(store, limit):
    with pytest.raises(UsageError, match='is no amount'): loop_of(sound(), store).run_until(**limit)


def test_two_threads_at_one_loop(store):
    begun, go = threading.Event(), threading.Event()

    class Slow(ByRequest):
        def send(self, request, on_event=None):
            begun.set()
            go.wait(30)
            return super().send(request)
    loop = loop_of(ReactAgent(Slow(react_reply)), store)
    loop.step()
    turn = threading.Thread(target=loop.step)
    turn.start()
    begun.wait(30)
    with pytest.raises(UsageError, match='at work already'): loop.step()
    go.set()
    turn.join(30)
    assert loop.run.state == 'running' and len(loop.steps) > 1 and loop.step()


def test_a_reminder_names_a_tool_that_is_offered(store):
    asked = []

    class Prose(Odd):
        def send(self, request, on_event=None):
            asked.append(request)
            return self.answer
    loop = loop_of(ReactAgent(Prose(Reply(TEXT)), profiling=False), store)
    loop.run_until()
    offered, said = [t['name'] for t in asked[1].tools], str(asked[1].messages[-1])
    assert 'verify another one' in said and 'verify' in offered and 'profile' not in offered and 'profile' not in said


def test_another_model_of_a_beam_writes_its_kernels_too(store):
    from mortal import beam_reply

    from kernel_lab.agents.systems.beam import BeamAgent
    from kernel_lab.agents.systems.registry import agent_of
    small = dict(rounds=1, beam=1, plans=2, samples=1)
    loop = loop_of(BeamAgent(ByRequest(beam_reply), **small), store)
    loop.step(), loop.step()
    mine = ByRequest(beam_reply)
    assert agent_of(loop.run, mine).executor is mine and agent_of(loop.run, mine, executor='claude-opus-5').executor is not mine
    again = AgentLoop(agent=agent_of(loop.run, mine), run=loop.run.id, store=store)
    list(again)
    assert again.run.state == 'finished'
    apart = loop_of(BeamAgent(ByRequest(beam_reply), executor='claude-opus-5', **small), store)
    assert agent_of(apart.run, mine).executor.name == 'claude-opus-5'


def test_what_is_no_run_and_no_option_is_said_at_once():
    with pytest.raises(UsageError, match="run=5 is no run"): AgentLoop(run=5)
    with pytest.raises(UsageError, match="no option frobnicate of an evaluation"): AgentLoop('softmax', sound(), store=False, frobnicate=1)


def test_the_options_of_a_loop_are_those_of_an_evaluation():
    taken = {name for name, p in signature(evaluate).parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert taken == {*EVALUATION_OPTIONS, 'baseline_us', 'store'}           # these two a session gives


@pytest.mark.parametrize('name, value', [('turns', -1), ('turns', 0), ('max_tokens', -1), ('fixes', -1), ('max_dollars', float('nan')),
                                         ('max_dollars', float('inf')), ('model', 5)])
def test_a_setting_that_cannot_be_is_named_with_its_value(name, value):
    with pytest.raises(UsageError, match=f'{name}={value}'): agent_named('react', **{'model': 'claude-opus-5', name: value})
