"""Models on the wire: the real SDKs against a loopback server in three protocols, in good times and bad."""
import importlib.util
import json
import logging
import time
import traceback
from functools import cache

import pytest
from loopback import Drop, Endless, Hang, Raw, Refuse, Say, Server

from kernel_lab.agents.models import wire as wires
from kernel_lab.agents.models.anthropic import AnthropicModel
from kernel_lab.agents.models.bedrock import BedrockModel
from kernel_lab.agents.models.messages import ChatError, Request, STOPS
from kernel_lab.agents.models.openai import OpenAIModel
from kernel_lab.agents.models.prices import Usage
from kernel_lab.agents.models.registry import model_named, why_no_model
from kernel_lab.agents.models.wire import Patience

SECRET = 'sk-test-0123456789-do-not-tell'
AWS_SECRET, AWS_SESSION = 'aws+secret/0123456789', 'aws-session-9876543210'
HELLO = Request('system text', ({'role': 'user', 'content': 'Hello'},), max_tokens=2_000)
SOON = {'retry-after-ms': '5'}
QUICK = Patience(connect=1, silence=0.5, wait=1, whole=10)             # where a server is silent: three tries of half a second, more when starved
STEADY = Patience(connect=1, silence=3, wait=1, whole=4)               # never silent, but starved on a busy machine
CALM = Patience(connect=10, silence=10, wait=1, whole=40)               # elsewhere: a busy machine is no fault of the server
KINDS = ('anthropic', 'openai', 'bedrock')


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch, tmp_path):
    "An environment with planted keys, and nothing of this machine's."
    for name in ('ANTHROPIC_AUTH_TOKEN', 'ANTHROPIC_PROFILE', 'ANTHROPIC_CUSTOM_HEADERS', 'ANTHROPIC_LOG', 'ANTHROPIC_BASE_URL',
                 'ANTHROPIC_BEDROCK_BASE_URL', 'OPENAI_BASE_URL', 'OPENAI_LOG', 'KERNEL_LAB_MODEL', 'AWS_PROFILE',
                 'AWS_BEARER_TOKEN_BEDROCK', 'HTTP_PROXY', 'http_proxy', 'ALL_PROXY', 'all_proxy'):
        monkeypatch.delenv(name, raising=False)
    given = dict(ANTHROPIC_API_KEY=SECRET, OPENAI_API_KEY=SECRET, AWS_ACCESS_KEY_ID='AKIA0', AWS_SECRET_ACCESS_KEY=AWS_SECRET,
                 AWS_SESSION_TOKEN=AWS_SESSION, AWS_REGION='us-east-1', AWS_EC2_METADATA_DISABLED='true', NO_PROXY='127.0.0.1',
                 AWS_CONFIG_FILE=str(tmp_path / 'none'), AWS_SHARED_CREDENTIALS_FILE=str(tmp_path / 'none'))
    for name, value in given.items(): monkeypatch.setenv(name, value)
    monkeypatch.setattr(wires, 'sleep', lambda seconds: time.sleep(min(seconds, 0.02)))


@cache
def imported(kind):
    "The SDK of a protocol has sent once: what comes after may be held against a clock."
    with Server([Say('there')]) as server: model_of(kind, server.url).send(HELLO)


@pytest.fixture
def wire():
    "A function script → running server; all servers are stopped at the end."
    opened = []

    def start(*script):
        opened.append(server := Server(script).__enter__())
        return server

    yield start
    for server in opened: server.__exit__()


def model_of(kind, url, patience=CALM):
    "A model of a protocol, whose server is at `url`."
    if kind == 'bedrock' and not importlib.util.find_spec('boto3'): pytest.skip('boto3 is not installed')
    return {'anthropic': lambda: AnthropicModel('claude-opus-5-5', url, patience),
            'openai': lambda: OpenAIModel('house-model', url + '/v1', patience),
            'bedrock': lambda: BedrockModel('us.anthropic.claude-opus-4-6-v1', None, url, patience)}[kind]()


def failure(model, request=HELLO):
    "The ChatError that sending raises."
    with pytest.raises(ChatError) as caught: model.send(request)
    return caught.value


# ---- good times
# -------------------------------------------------------------------------------------------------------------------

@pytest.mark.sampled(3)
@pytest.mark.parametrize('kind', KINDS)
def test_text_and_thinking_stream_and_are_counted(wire, kind):
    used = {'input_tokens': 7, 'output_tokens': 900, 'cache_read_input_tokens': 5_000}
    server, pieces = wire(Say('Wider tiles. ' * 200, thinking='The DMA waits.', usage=used)), []
    model = model_of(kind, server.url)
    reply = model.send(HELLO, lambda *piece: pieces.append(piece))
    assert reply.text == ('Wider tiles. ' * 200).strip() and reply.thought == 'The DMA waits.'
    assert (reply.stop, reply.usage, reply.model) == ('end_turn', Usage(7, 900, 5_000), model.name)
    assert pieces[0] == ('thinking', 'The DMA waits.') and len(pieces) > 3 and {k for k, _ in pieces} == {'text', 'thinking'}
    path = {'anthropic': '/v1/messages', 'openai': '/v1/chat/completions',
            'bedrock': '/model/us.anthropic.claude-opus-4-6-v1/invoke-with-response-stream'}[kind]
    assert server.paths == [path] and SECRET not in json.dumps(server.asked)
    signed = server.headers_seen[0]['authorization']
    assert signed.startswith('AWS4-HMAC-SHA256') if kind == 'bedrock' else SECRET in signed


@pytest.mark.parametrize('kind', KINDS)
def test_two_tool_calls_of_a_reply(wire, kind):
    long = 'def k(x):\n' + '    pass\n' * 400
    server = wire(Say('Let me see.', calls=(('profile', {'source': long}), ('compile', {'source': 'é'}))))
    reply = model_of(kind, server.url).send(HELLO)
    assert [c.name for c in reply.calls] == ['profile', 'compile'] and reply.stop == 'tool_use'
    assert reply.calls[0].input == {'source': long} and reply.calls[1].input == {'source': 'é'}
    assert len({c.id for c in reply.calls}) == 2


@pytest.mark.parametrize('kind', KINDS)
def test_a_conversation_with_tools_goes_out_again(wire, kind):
    server = wire(Say('Let me see.', calls=(('profile', {'source': 'x'}),)), Say('Done.'))
    tools = ({'name': 'profile', 'description': 'Time it.', 'input_schema': {'type': 'object', 'properties': {}}},)
    model, said = model_of(kind, server.url), list(HELLO.messages)
    reply = model.send(Request('s', tuple(said), tools))
    said += [{'role': 'assistant', 'content': list(reply.content)}, {'role': 'user', 'content': [
        {'type': 'tool_result', 'tool_use_id': reply.calls[0].id, 'content': f'12 us of {SECRET}', 'is_error': False}]}]
    assert model.send(Request('s', tuple(said), tools)).text == 'Done.'
    body = json.dumps(server.asked[1])
    assert reply.calls[0].id in body and '12 us of [' in body and SECRET not in body and 'Time it.' in body


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('stop', STOPS)
def test_why_a_reply_ended_has_one_word_in_all_protocols(wire, kind, stop):
    calls = (('profile', {}),) if stop == 'tool_use' else ()
    server = wire(Say('' if stop == 'refusal' else 'Well', calls=calls, stop=stop))
    reply = model_of(kind, server.url).send(HELLO)
    assert reply.stop == stop and reply.text == ('' if stop == 'refusal' else 'Well')


@pytest.mark.parametrize('kind', KINDS)
def test_an_empty_answer_is_a_reply(wire, kind):
    reply = model_of(kind, wire(Say('')).url).send(HELLO)
    assert reply.text == '' and not reply.calls and reply.stop == 'end_turn' and reply.usage.total == 120


def test_a_cut_call_keeps_what_came(wire):
    "The arguments of a reply that was cut at its limit are no JSON; the reply says so by its stop."
    cut = Say(calls=(('submit', '{"source": "def k(x'),), stop='max_tokens')
    assert model_of('openai', wire(cut).url).send(HELLO).calls[0].input == '{"source": "def k(x'
    assert model_of('anthropic', wire(cut).url).send(HELLO).stop == 'max_tokens'


# ---- the fault table: (what the server does, how it ends); a kind of error, or None where a retry mends it
# -------------------------------------------------------------------------------------------------------------------

LONG = Say('word ' * 1_000)
FAULTS = {
    '400': ([Refuse(400)], 'bad request', 1), '401': ([Refuse(401)], 'bad key', 1), '403': ([Refuse(403)], 'bad key', 1),
    '404': ([Refuse(404)], 'no model', 1), '413': ([Refuse(413)], 'bad request', 1),
    '429 for ever': ([Refuse(429)], 'rate limited', 3),
    '429 once, with retry-after': ([Refuse(429, headers=SOON), Say('there')], None, 2),
    '429 that asks for an hour': ([Refuse(429, headers={'retry-after': '3600'})], 'rate limited', 1),
    '429 with a date': ([Refuse(429, headers={'retry-after': 'Sat, 21 Nov 2026 00:00:00 GMT'})], 'rate limited', 1),
    '429 with nonsense': ([Refuse(429, headers={'retry-after': 'nan'})], 'rate limited', None),
    '500 once': ([Refuse(500), Say('there')], None, 2), '500 for ever': ([Refuse(500)], 'server', 3),
    '503 for ever': ([Refuse(503)], 'overloaded', 3), '529 twice': ([Refuse(529), Refuse(529), Say('there')], None, 3),
    '529 for ever': ([Refuse(529)], 'overloaded', 3), '418': ([Refuse(418)], 'server', 1),
    'a redirect': ([Refuse(307, headers={'location': 'http://127.0.0.1:9/'})], 'unreachable', 1),
    'dropped once': ([Drop(LONG, 4), Say('there')], None, 2), 'dropped for ever': ([Drop(LONG, 4)], 'dropped', 3),
    'reset': ([Drop(LONG, 4, 'reset')], 'dropped', 3), 'an early end': ([Drop(LONG, 4, 'polite')], 'dropped', 3),
    'nothing at all': ([Drop(LONG, 0, 'polite')], 'dropped', 3), 'a page': ([Raw(b'<html>no</html>')], 'dropped', 3),
    'half an event': ([Raw(b'event: message_start\ndata: {"type"\n\n')], 'dropped', 3),
    'bytes': ([Raw(b'\xff\xfe\x00' * 50)], 'dropped', 3), 'a list': ([Raw(b'data: []\n\n')], 'dropped', 3),
    'no answer': ([Hang('silent')], 'unreachable', 3), 'headers only': ([Hang('open')], 'dropped', 3),
    'endless text': ([Endless('text')], 'endless', 1), 'endless thinking': ([Endless('thinking')], 'endless', 1),
    'an event without end': ([Endless('event')], 'endless', 1), 'endless pings': ([Endless('pings')], 'endless', 1),
    'a slow drip': ([Endless('text', 0.1)], 'endless', 1), 'headers without end': ([Endless('headers', 0.1)], 'endless', 1)}


def fault_cases():
    "Every fault of every protocol; one without end takes seconds, so that two protocols of it are slow."
    for n, (fault, (_, ends, _)) in enumerate(FAULTS.items()):
        for kind in KINDS:
            is_slow = ends == 'endless' and kind != list(KINDS)[n % len(KINDS)]
            yield pytest.param(kind, fault, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.sampled(3)
@pytest.mark.parametrize('kind, fault', fault_cases())
def test_a_fault_ends_in_the_right_kind_in_time(wire, kind, fault):
    script, ends, requests = FAULTS[fault]
    imported(kind)
    server, since = wire(*script), time.monotonic()
    patience = QUICK if isinstance(script[0], Hang) else STEADY if ends == 'endless' else CALM
    model = model_of(kind, server.url, patience)
    if ends is None: assert model.send(HELLO).text == 'there'
    else:
        error = failure(model)
        assert error.kind == ends and error.__context__ is None, str(error)
        paid = ends in ('dropped', 'endless') or fault == 'no answer'
        assert (error.usage.total > 0) == paid
    assert requests in (None, len(server.asked)) and time.monotonic() - since < patience.whole + 4


@pytest.mark.parametrize('kind', KINDS)
def test_nobody_listens(wire, kind):
    server = wire(Say('x'))
    server.__exit__()
    error = failure(model_of(kind, server.url))
    assert error.kind == 'unreachable' and error.usage == Usage()


@pytest.mark.parametrize('kind', KINDS)
def test_tokens_of_broken_attempts_are_in_the_reply(wire, kind):
    server = wire(Drop(LONG, 5), Drop(LONG, 5), Say('whole'))
    used = model_of(kind, server.url).send(HELLO).usage
    assert used.output > 20 and used.estimated > 0
    assert used.input == (300 if kind != 'openai' else 100 + 2*HELLO.size)


@pytest.mark.parametrize('kind', KINDS)
def test_a_request_is_sent_no_more_often_than_it_says(wire, kind):
    server = wire(Drop(LONG, 4))
    failure(model_of(kind, server.url), Request('s', HELLO.messages, attempts=1))
    assert len(server.asked) == 1


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('act', [Refuse(401, message='refused:', echo_key=True), Drop(Say(f'{SECRET} ' * 400), 4),
                                 Say(f'The key is {SECRET}.')], ids=['refused', 'dropped', 'said'])
def test_keys_are_in_no_reply_error_log_or_repr(wire, kind, act, caplog):
    caplog.set_level(logging.DEBUG)
    model, texts = model_of(kind, wire(act).url), []
    try: texts.append(repr(model.send(HELLO)))
    except ChatError as error:
        found = traceback.TracebackException.from_exception(error, capture_locals=True)
        frames = [repr(frame.locals) for frame in found.stack if frame.filename != __file__]
        texts += [str(error), repr(vars(error)), *frames]
        assert len(frames) > 1
        assert error.__context__ is None and error.__cause__ is None
    for text in (*texts, caplog.text, repr(model), repr(vars(model))):
        for secret in (SECRET, AWS_SECRET, AWS_SESSION): assert secret not in text


@pytest.mark.parametrize('kind', KINDS)
def test_a_listener_that_fails_is_our_fault_and_is_not_hidden(wire, kind):
    server = wire(Say('x'))
    def listener(kind, piece): raise ValueError('panel')
    with pytest.raises(ValueError, match='panel'): model_of(kind, server.url).send(HELLO, listener)
    assert len(server.asked) == 1


# ---- what is missing
# -------------------------------------------------------------------------------------------------------------------

def test_no_key_no_request(wire, monkeypatch):
    for name in ('ANTHROPIC_API_KEY', 'AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'AWS_SESSION_TOKEN'): monkeypatch.delenv(name)
    for kind in ('anthropic', 'bedrock'):
        server = wire(Say('x'))
        assert failure(model_of(kind, server.url)).kind == 'no key' and not server.asked
    monkeypatch.delenv('OPENAI_API_KEY')
    server = wire(Say('x'))
    assert model_of('openai', server.url).send(HELLO).text == 'x'       # a server of one's own may need none
    assert failure(OpenAIModel('any')).kind == 'no key' and 'OPENAI_API_KEY' in why_no_model('openai:any')


def test_a_model_is_the_same_by_its_name(wire, monkeypatch):
    server = wire(Say('x'))
    monkeypatch.setenv('OPENAI_BASE_URL', server.url + '/v1')
    both = model_named('openai:a+openai:b')
    asked = [both.send(Request(messages=({'role': 'user', 'content': str(n)},))).model for n in range(12)]
    assert set(asked) == {'openai:a', 'openai:b'} and why_no_model('openai:a+openai:b') is None
    assert [f'openai:{body["model"]}' for body in server.asked] == asked
