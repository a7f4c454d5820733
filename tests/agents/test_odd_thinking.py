"""Thinking that was cut off, damaged or left alone in a reply, against a server that refuses what the Messages API refuses: the
next request is well-formed, the run goes on, and what was paid is counted."""
import json

import pytest
from loopback import Drop, Raw, Refuse, Say, Server, frame
from mortal import version

from kernel_lab.agents.engine.loop import AgentLoop
from kernel_lab.agents.models.anthropic import AnthropicModel
from kernel_lab.agents.models.messages import ChatError, Request
from kernel_lab.agents.models.wire import Patience
from kernel_lab.agents.systems.react import ReactAgent

SIGNED = 'c2lnbmVk'


def fault_of(body):
    "What the API finds wrong with the thinking of a request, or None."
    for n, message in enumerate(body['messages']):
        kinds = [] if isinstance(message['content'], str) else [b['type'] for b in message['content']]
        if message['role'] == 'user' or not kinds: continue
        if kinds[-1] == 'thinking': return f'messages.{n}: The final block in an assistant message cannot be `thinking`.'
        if 'thinking' in kinds[1:] and kinds[0] != 'thinking': return f'messages.{n}: the first block must be `thinking`'
        if any(b.get('signature', SIGNED) != SIGNED for b in message['content']): return 'Invalid `signature` in `thinking` block'
    return None


class Strict(Server):
    "Refuses a request whose thinking is at fault; such a request plays no act of the script."
    def note(self, body, headers, path):
        if why := fault_of(body):
            self.refused = [*getattr(self, 'refused', ()), why]
            return Refuse(400, 'invalid_request_error', why)
        return super().note(body, headers, path)


def block(kind, *deltas, **start): return {'type': kind, **start}, deltas
def thought(signature=SIGNED):
    signed = [{'type': 'signature_delta', 'signature': signature}] if signature else []
    return block('thinking', {'type': 'thinking_delta', 'thinking': 'Where does it wait?'}, *signed, thinking='', signature='')
def text(said): return block('text', {'type': 'text_delta', 'text': said}, text='')
def profiles(n):
    given = json.dumps({'source': version(n)})
    return block('tool_use', {'type': 'input_json_delta', 'partial_json': given}, id='call', name='profile', input={})


def reply(*blocks, stop='tool_use'):
    "A whole reply of these blocks, as the server streams it."
    message = {'id': 'm', 'type': 'message', 'role': 'assistant', 'model': 'claude-opus-5-5', 'content': [], 'stop_reason': None,
               'stop_sequence': None, 'usage': {'input_tokens': 100, 'output_tokens': 1}}
    events = [{'type': 'message_start', 'message': message}]
    for n, (start, deltas) in enumerate(blocks):
        events += [{'type': 'content_block_start', 'index': n, 'content_block': start},
                   *({'type': 'content_block_delta', 'index': n, 'delta': d} for d in deltas),
                   {'type': 'content_block_stop', 'index': n}]
    end = {'stop_reason': stop, 'stop_sequence': None}
    events += [{'type': 'message_delta', 'delta': end, 'usage': {'output_tokens': 50}}, {'type': 'message_stop'}]
    return Raw(b''.join(map(frame, events)))


CASES = {   # the replies before the last one, and how often the server may refuse
    'only thinking, at the limit': ([reply(thought(), stop='max_tokens')], 0),
    'cut off before its signature': ([reply(thought(''), stop='max_tokens')], 0),
    'unsigned before a call': ([reply(thought(''), profiles(1))], 0),
    'unsigned, then signed': ([reply(thought(''), text('So'), thought(), profiles(1))], 0),
    'after the call': ([reply(profiles(1), thought())], 0),
    'before a blank text': ([reply(thought(), text('  '), stop='end_turn')], 0),
    'a damaged signature': ([reply(thought('%%%'), profiles(1))], 1),
    'the line dropped in the middle of it': ([Drop(Say('x', thinking='hm ' * 2_000), 5), reply(thought(), profiles(1))], 0)}


@pytest.mark.parametrize('case', CASES)
def test_the_next_request_is_well_formed_and_the_money_is_counted(quick, monkeypatch, case):
    monkeypatch.setenv('ANTHROPIC_API_KEY', 'sk-test-0123456789')
    monkeypatch.setenv('NO_PROXY', '127.0.0.1')
    before, refusals = CASES[case]
    handed = Say(calls=(('submit', dict(source=version(4), move='m', why='w', expected='e')),))
    with Strict([*before, handed]) as server:
        model = AnthropicModel('claude-opus-5-5', server.url, Patience(connect=10, silence=10, wait=1, whole=40))
        loop = AgentLoop('softmax', ReactAgent(model, max_dollars=1), 'small', store=False)
        for _ in loop: pass
        assert len(getattr(server, 'refused', ())) == refusals and len(server.asked) == len(before) + 1
    assert loop.run.state == 'finished' and loop.steps[-1].move == 'm'
    assert loop.spent.requests == 2 and loop.spent.open_requests == 0
    assert loop.spent.tokens_in == 100 * (len(before) + 1) and loop.spent.tokens_out >= 70 and loop.spent.dollars > 0


def test_another_refusal_is_not_sent_again(monkeypatch):
    monkeypatch.setenv('ANTHROPIC_API_KEY', 'sk-test-0123456789')
    monkeypatch.setenv('NO_PROXY', '127.0.0.1')
    said = ({'role': 'user', 'content': 'Hello'}, {'role': 'assistant', 'content': [
        {'type': 'thinking', 'thinking': 'hm', 'signature': SIGNED}, {'type': 'text', 'text': 'Well.'}]}, {'role': 'user', 'content': 'So?'})
    for act in (Refuse(400, message='max_tokens is too large'), Refuse(401, message='no thinking with this key')):
        with Server([act]) as server:
            with pytest.raises(ChatError): AnthropicModel('claude-opus-5-5', server.url).send(Request(messages=said))
            assert len(server.asked) == 1
