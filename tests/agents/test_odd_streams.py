"""Replies that are whole but odd: packed, without counts, with pieces of calls in unusual places; bodies that are no stream."""
import gzip
import json
import re
import sqlite3
import time
import zlib
from dataclasses import replace

import mortal
import pytest
from loopback import COMPLETIONS, MESSAGES, Raw, Say, Server, chunks_of

from kernel_lab.agents.engine.loop import AgentLoop, replayed
from kernel_lab.agents.models import wire
from kernel_lab.agents.models.anthropic import AnthropicModel
from kernel_lab.agents.models.budget import Budget, BudgetOver
from kernel_lab.agents.models.messages import ChatError, Reply, Request
from kernel_lab.agents.models.openai import OpenAIModel
from kernel_lab.agents.models.prices import Usage
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.models.wire import Patience
from kernel_lab.agents.systems import beam
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.agents.systems.registry import replaying_agent
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.store.store import Store

HELLO = Request('system text', ({'role': 'user', 'content': 'Hello'},), max_tokens=2_000, attempts=1)
PATIENCE = Patience(connect=10, silence=5, wait=1, whole=30)
SPEAKS = {'anthropic': MESSAGES, 'openai': COMPLETIONS}
KINDS = list(SPEAKS)


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name in ('ANTHROPIC_API_KEY', 'OPENAI_API_KEY'): monkeypatch.setenv(name, 'sk-test-0123456789')
    monkeypatch.setenv('NO_PROXY', '127.0.0.1')


def events(kind, say): return list(SPEAKS[kind].events(say, 'claude-opus-5-5'))


def stream(kind, what):
    "A reply, or its events, as bytes."
    what = events(kind, what) if isinstance(what, Say) else what
    return b''.join(map(SPEAKS[kind].frame, what)) + SPEAKS[kind].end


def answer(kind, act):
    "What a model makes of one act of its server."
    with Server([act]) as server:
        if kind == 'anthropic': return AnthropicModel('claude-opus-5-5', server.url, PATIENCE).send(HELLO)
        return OpenAIModel('house', server.url + '/v1', PATIENCE).send(HELLO)


def failure(kind, act):
    with pytest.raises(ChatError) as caught: answer(kind, act)
    return caught.value


@pytest.mark.parametrize('kind', KINDS)
def test_a_packed_reply_is_read_and_a_bomb_does_not_fill_the_memory(kind):
    whole = stream(kind, Say('Größe 漢字'))
    for packed, packing in ((gzip.compress(whole), 'gzip'), (zlib.compress(whole), 'deflate')):
        assert answer(kind, Raw(packed, headers={'content-encoding': packing})).text == 'Größe 漢字'
    pack, (before, after) = zlib.compressobj(9, wbits=31), stream(kind, Say('QQQ')).split(b'QQQ')
    bomb = pack.compress(before) + b''.join(pack.compress(b'x' * 10**7) for _ in range(4)) + pack.compress(after) + pack.flush()
    error = failure(kind, Raw(bomb, headers={'content-encoding': 'gzip'}))
    assert error.kind == 'endless' and '3,0' in str(error)              # cut at its limit, not after all of it
    for broken, packing in ((b'no gzip at all', 'gzip'), (whole, 'zstd')):
        assert 'packed' in str(failure(kind, Raw(broken, headers={'content-encoding': packing})))


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('status', [201, 204])
def test_success_without_a_reply_is_no_traceback(kind, status):
    assert failure(kind, Raw(b'', status=status)).kind == 'dropped'


@pytest.mark.parametrize('kind', KINDS)
def test_what_a_body_says_that_is_no_stream_is_told(kind):
    said = json.dumps({'error': {'message': 'the quota is used up'}}).encode()
    error = failure(kind, Raw(said, 'application/json'))
    assert 'the quota is used up' in str(error) and error.usage.input == HELLO.size


def with_counts(kind, counts):
    "The events of a reply whose every record of tokens is `counts`."
    found = events(kind, Say('Well done. ' * 9))
    for e in found:
        if 'usage' in e: e['usage'] = counts
        if 'usage' in e.get('message', {}): e['message']['usage'] = counts
    return found


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('counts', [{}, {'input_tokens': 0, 'output_tokens': 0, 'prompt_tokens': 0, 'completion_tokens': 0}])
def test_a_reply_that_nobody_counted_is_not_free(kind, counts):
    used = answer(kind, Raw(stream(kind, with_counts(kind, counts)))).usage
    assert (used.input, used.output) == (HELLO.size, 99) and used.estimated == used.total


def test_a_reply_is_whole_with_its_last_event():
    since = time.monotonic()
    assert answer('anthropic', Raw(stream('anthropic', Say('hi')), hold=20)).text == 'hi' and time.monotonic() - since < 5


def call_pieces(*parts):
    "A reply of chat completions with these pieces of tool calls."
    found = list(chunks_of(Say('hi'), 'm'))
    new = [{**found[0], 'choices': [{'index': 0, 'delta': {'tool_calls': [p]}}]} for p in parts]
    return Raw(stream('openai', [*found[:1], {**found[0], 'choices': [{'index': 0, 'delta': None}]}, *new, *found[2:]]))


def piece(given, index=0, id=None, name=None): return {'index': index, 'id': id, 'function': {'name': name, 'arguments': given}}


CALLS = {'no number': [piece('{"a": ', None, 'x', 'f'), piece('1}', None), piece('{}', None, 'y', 'g')],
         'one number for all': [piece('{"a": 1}', 0, 'x', 'f'), piece('{}', 0, 'y', 'g')],
         'an object, not text': [piece({'a': 1}, 0, 'x', 'f'), piece('', 1, 'y', 'g')],
         'nothing in a piece': [piece('{"a": 1}', 0, 'x', 'f'), {'index': 0, 'function': None}, piece('{}', 1, 'y', 'g')],
         'a hundred pieces': [piece('', 0, 'x', 'f'), *(piece(c) for c in ' ' * 94 + '{"a": 1}'), piece('', 1, 'y', 'g')]}


@pytest.mark.parametrize('case', CALLS)
def test_calls_come_together_from_odd_pieces(case):
    found = answer('openai', call_pieces(*CALLS[case])).calls
    assert [(c.id, c.name, c.input) for c in found] == [('x', 'f', {'a': 1}), ('y', 'g', {})]


@pytest.mark.parametrize('depth', [60, 480, 3_000, 100_000])
def test_arguments_too_deep_to_handle_stay_text(depth):
    given = '{"a": ' + '[' * depth + ']' * depth + '}'
    assert answer('openai', call_pieces(piece(given, 0, 'x', 'f'))).calls[0].input == given


def test_a_free_model_has_a_budget_too(tmp_path, monkeypatch):
    (tmp_path / 'prices.json').write_text('{"openai:free": {"input": 0, "output": 0}, "openai:in": {"input": 1, "output": 0}}')
    monkeypatch.setenv('KERNEL_LAB_PRICES', str(tmp_path / 'prices.json'))
    made = Budget(1, 10_000).reserve(Request('x'), 'openai:free')
    assert made.tokens == 10_000 and made.pico == 0
    with pytest.raises(BudgetOver): Budget(1e-6).reserve(Request('x'), 'openai:in')


@pytest.fixture
def quick(monkeypatch):
    "Evaluate once, then in no time."
    mortal.make_quick(evaluate(mortal.TASK.first_kernel, mortal.TASK, 'small', seeds=1), monkeypatch.setattr)


def test_a_run_of_unknown_price_does_not_go_on_for_ever(quick):
    replies = [Reply((mortal.call('profile', source=mortal.version(n)),), 'tool_use', Usage(9, 9)) for n in range(1, 4)]
    loop = AgentLoop('softmax', ReactAgent(ScriptedModel(replies, 'openai:nobody')), 'small', store=False)
    with pytest.raises(UsageError, match='has spent is unknown'): loop.run_until(dollars=0.1)
    assert loop.spent.requests == 1 and loop.run_until(steps=1) is not None


def test_a_replay_needs_no_prices(quick, tmp_path, monkeypatch):
    (tmp_path / 'prices.json').write_text('{"openai:own": {"input": 1, "output": 2}}')
    monkeypatch.setenv('KERNEL_LAB_PRICES', str(tmp_path / 'prices.json'))
    agent = ReactAgent(ScriptedModel(['I think.', 'I stop.'], 'openai:own'), max_dollars=2)
    loop = AgentLoop('softmax', agent, 'small', store=False)
    steps = list(loop)
    monkeypatch.delenv('KERNEL_LAB_PRICES')
    assert loop.spent.requests == 2
    assert [s.index for s in replayed(loop.recording, replaying_agent(loop.run))] == [s.index for s in steps]


def test_a_file_of_the_task_that_is_written_meanwhile_spoils_no_beam(quick, monkeypatch):
    said = iter(['the reference', *['another text'] * 99])
    monkeypatch.setattr(beam, 'source_of', lambda fn: next(said))
    loop = AgentLoop('softmax', mortal.agent_for('beam'), 'small', store=False)
    while loop.step(): pass
    monkeypatch.setattr(beam, 'source_of', lambda fn: 'the reference')
    assert len(list(replayed(loop.recording, replaying_agent(loop.run)))) == len(loop.steps) > 8


@pytest.mark.parametrize('kind', KINDS)
def test_a_count_that_no_server_can_mean_is_no_count(kind):
    huge = dict.fromkeys(['input_tokens', 'prompt_tokens', 'output_tokens', 'completion_tokens'], int('9' * 310))
    used = answer(kind, Raw(stream(kind, with_counts(kind, huge)))).usage
    assert (used.input, used.output) == (HELLO.size, 99) and used.estimated == used.total


def test_a_python_model_that_counts_too_many_tokens_is_told(quick):
    for usage, says in ((Usage(10**400, 1), 'input is above'), (Usage(1, -10**5_000), 'output is below 0')):
        loop = AgentLoop('softmax', ReactAgent(ScriptedModel([Reply(usage=usage)], 'claude-opus-5')), 'small', store=False)
        with pytest.raises(UsageError, match=says): list(loop)
        assert loop.spent.open_requests == 1 and loop.spent.open_dollars > 0


def test_a_failure_that_counts_too_many_tokens_stays_that_failure(quick):
    class Failing(ScriptedModel):
        def send(self, request, on_event=None): raise ChatError('server', usage=Usage(10**400))
    loop = AgentLoop('softmax', ReactAgent(Failing(['never'], 'claude-opus-5')), 'small', store=False)
    with pytest.raises(ChatError, match='server failed'): list(loop)
    assert loop.spent.open_requests == 1


def test_a_stored_run_with_such_a_count_goes_on(quick, tmp_path):
    store = Store(tmp_path / 'lab.sqlite3')
    replies = [Reply((mortal.call('profile', source=mortal.version(n)),), 'tool_use', Usage(9, 9)) for n in range(1, 4)]
    agent = lambda some: ReactAgent(ScriptedModel(some, 'openai:nobody'))
    loop = AgentLoop('softmax', agent(replies), 'small', store=store, max_steps=2)
    for _ in range(2): loop.step()
    with sqlite3.connect(store.path) as base:           # as an earlier version kept it
        for table in ('journal', 'steps'):
            for row, body in base.execute(f'SELECT rowid, body FROM {table}').fetchall():
                body = re.sub(r'"(input|tokens_in)":( ?)9\b', rf'"\1":\g<2>{"9" * 400}', body)
                base.execute(f'UPDATE {table} SET body = ? WHERE rowid = ?', (body, row))
    again = AgentLoop(agent=agent(replies[1:]), run=store.load_run(loop.run.id), store=store, max_steps=3)
    assert again.run.steps[1].tokens_in == int('9' * 400) and again.step() is not None
    assert str(again.spent) == '2 requests, at least 9 tokens in, 18 out, unknown price'


@pytest.mark.parametrize(('said', 'kind', 'waits'), [('overloaded_error', 'overloaded', [0.5, 1.0]), ('rate_limit_error', 'rate limited', [0.5, 1.0]),
                                                     ('api_error', 'dropped', [0, 0])])
def test_a_server_that_is_overloaded_in_a_stream_is_given_time(monkeypatch, said, kind, waits):
    waited, request = [], replace(HELLO, attempts=3)
    monkeypatch.setattr(wire, 'sleep', waited.append)
    found = [*events('anthropic', Say('half'))[:3], {'type': 'error', 'error': {'type': said, 'message': 'Overloaded'}}]
    for headers, expected in (({}, waits), ({'retry-after': '0.7'}, [0.7, 0.7] if kind != 'dropped' else waits)):
        with Server([Raw(stream('anthropic', found), headers=headers)]) as server, pytest.raises(ChatError) as caught:
            AnthropicModel('claude-opus-5-5', server.url, PATIENCE).send(request)
        assert caught.value.kind == kind and 'Overloaded' in str(caught.value) and waited == expected and len(server.asked) == 3
        assert caught.value.usage.input == 300                  # each of them may be charged
        waited.clear()


def test_a_paid_request_that_broke_off_is_told(quick):
    class Broken(ScriptedModel):
        def send(self, request, on_event=None): raise ChatError('dropped', usage=Usage(46_084, 6))
    loop = AgentLoop('softmax', ReactAgent(Broken(['never'], 'claude-opus-5')), 'small', store=False)
    with pytest.raises(ChatError): list(loop)
    assert str(loop.spent).startswith('0 requests answered, 1 broken off, 46,084 tokens in, 6 out, $')


def test_a_budget_that_is_put_aside_says_so(quick):
    agent = ReactAgent(ScriptedModel([Reply(usage=Usage(10**400))], 'claude-opus-5'))          # of which nobody knows the end
    loop = AgentLoop('softmax', agent, 'small', store=False)
    with pytest.raises(UsageError): list(loop)
    loop.agent.max_dollars = 0.2
    assert loop.step() is None
    assert f'$0.0000 of $0.2000 is left, as ${loop.spent.open_dollars:.2f} is put aside' in loop.ended
