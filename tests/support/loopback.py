"""A loopback server that speaks enough of three protocols to misbehave in every way that matters: the Messages API,
chat completions (/chat/completions), and the event stream of Bedrock (/model/…). The path decides.

A script is a list of acts; each request plays the next one, and the last act plays for ever. Nothing leaves 127.0.0.1.
"""
import base64
import json
import socket
import struct
import threading
import time
import zlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {'input_tokens': 100, 'output_tokens': 20, 'cache_read_input_tokens': 0, 'cache_creation_input_tokens': 0}


@dataclass
class Say:
    """A reply in server-sent events.

    `calls`: (name, input) pairs; an input given as text goes out as it is, JSON or not."""
    text: str = ''
    calls: tuple = ()
    thinking: str = ''
    stop: str | None = None
    usage: dict = field(default_factory=dict)
    model: str | None = None


@dataclass
class Refuse:
    "A status other than 200, with headers."
    status: int
    kind: str = 'api_error'
    message: str = 'no'
    headers: dict = field(default_factory=dict)
    echo_key: bool = False      # put the headers with credentials into the message, as a careless proxy would


@dataclass
class Drop:
    """A reply that breaks off before event number `after`: 'cut' inside a chunk, 'reset' the connection, 'polite' as
    if it were the end."""
    say: Say
    after: int = 4
    how: str = 'cut'


@dataclass
class Raw:
    "Any bytes as a body, of a 200 if nothing else is said; `hold`: seconds before the server closes the line."
    body: bytes
    content_type: str = 'text/event-stream'
    status: int = 200
    headers: dict = field(default_factory=dict)
    hold: float = 0


@dataclass
class Hang:
    "A reply that neither goes on nor ends: 'silent' (no answer at all), 'open' (headers, then nothing)."
    how: str = 'silent'
    seconds: float = 20


@dataclass
class Endless:
    """A reply without an end: 'text', 'thinking', 'pings', 'event' (one event that does not end) or 'headers' (none of which
    ends); a pause between pieces."""
    how: str = 'text'
    pause: float = 0


def blocks_of(say):
    "The content blocks of a reply, each with the deltas that build it."
    if say.thinking:
        thinking = [{'type': 'thinking_delta', 'thinking': p} for p in cut(say.thinking)]
        yield {'type': 'thinking', 'thinking': '',
               'signature': ''}, [*thinking, {'type': 'signature_delta', 'signature': 'c2lnbmVk'}]
    if say.text:
        yield {'type': 'text', 'text': ''}, [{'type': 'text_delta', 'text': p} for p in cut(say.text)]
    for n, (name, given) in enumerate(say.calls):
        text = given if isinstance(given, str) else json.dumps(given)
        yield {'type': 'tool_use', 'id': f'call_{n}_{name}', 'name': name, 'input': {}}, [
            {'type': 'input_json_delta', 'partial_json': p} for p in cut(text)]


def cut(text, size=700): return [text[i:i + size] for i in range(0, len(text), size)]


def events_of(say, model):
    "The events of a whole reply, in the server's order."
    usage = {**USAGE, **say.usage}
    message = {
        'id': 'msg_1', 'type': 'message', 'role': 'assistant', 'model': say.model or model, 'content': [],
        'stop_reason': None, 'stop_sequence': None, 'usage': {**usage, 'output_tokens': 1}}
    yield {'type': 'message_start', 'message': message}
    yield {'type': 'ping'}
    for index, (block, deltas) in enumerate(blocks_of(say)):
        yield {'type': 'content_block_start', 'index': index, 'content_block': block}
        for delta in deltas: yield {'type': 'content_block_delta', 'index': index, 'delta': delta}
        yield {'type': 'content_block_stop', 'index': index}
    stop = say.stop or ('tool_use' if say.calls else 'end_turn')
    end = {'stop_reason': stop, 'stop_sequence': None}
    yield {'type': 'message_delta', 'delta': end, 'usage': {'output_tokens': usage['output_tokens']}}
    yield {'type': 'message_stop'}


def frame(event): return f'event: {event["type"]}\ndata: {json.dumps(event)}\n\n'.encode()


FINISH = {'end_turn': 'stop', 'tool_use': 'tool_calls', 'max_tokens': 'length', 'refusal': 'content_filter'}


def deltas_of(say):
    "The deltas of a reply in chat completions."
    yield {'role': 'assistant', 'content': ''}
    for piece in cut(say.thinking): yield {'reasoning_content': piece}
    for piece in cut(say.text): yield {'content': piece}
    for n, (name, given) in enumerate(say.calls):
        text = given if isinstance(given, str) else json.dumps(given)
        yield {'tool_calls': [{'index': n, 'id': f'call_{n}_{name}', 'type': 'function',
                               'function': {'name': name, 'arguments': ''}}]}
        for piece in cut(text): yield {'tool_calls': [{'index': n, 'function': {'arguments': piece}}]}


def chunks_of(say, model):
    "The chunks of a whole reply in chat completions, in the server's order; the counts come last."
    def chunk(choices, **more):
        return {'id': 'c1', 'object': 'chat.completion.chunk', 'created': 1, 'model': say.model or model,
                'choices': choices, **more}

    for delta in deltas_of(say): yield chunk([{'index': 0, 'delta': delta, 'finish_reason': None}])
    stop = say.stop or ('tool_use' if say.calls else 'end_turn')
    yield chunk([{'index': 0, 'delta': {}, 'finish_reason': FINISH.get(stop, stop)}])
    u = {**USAGE, **say.usage}
    prompt = u['input_tokens'] + u['cache_read_input_tokens'] + u['cache_creation_input_tokens']
    yield chunk([], usage={
        'prompt_tokens': prompt, 'completion_tokens': u['output_tokens'], 'total_tokens': prompt + u['output_tokens'],
        'prompt_tokens_details': {'cached_tokens': u['cache_read_input_tokens']}})


def data_line(chunk): return f'data: {json.dumps(chunk)}\n\n'.encode()


def aws_frame(event):
    "An event in the frames of AWS's event stream: lengths, headers, payload, two checksums."
    payload = json.dumps({'bytes': base64.b64encode(json.dumps(event).encode()).decode()}).encode()
    named = {':event-type': 'chunk', ':content-type': 'application/json', ':message-type': 'event'}
    headers = b''.join(struct.pack('>B', len(k)) + k.encode() + struct.pack('>BH', 7, len(v)) + v.encode()
                       for k, v in named.items())
    whole = aws_start(16 + len(headers) + len(payload), len(headers)) + headers + payload
    return whole + struct.pack('>I', zlib.crc32(whole))


def aws_start(length, headers=0):
    "The start of a frame: its length, that of its headers, a checksum."
    start = struct.pack('>II', length, headers)
    return start + struct.pack('>I', zlib.crc32(start))


@dataclass
class Protocol:
    "How a protocol writes a reply: its events, the bytes of one, what stands at the end, the type of its streams."
    events: object
    frame: object
    end: bytes = b''
    content_type: str = 'text/event-stream'


MESSAGES = Protocol(events_of, frame)
COMPLETIONS = Protocol(chunks_of, data_line, b'data: [DONE]\n\n')
BEDROCK = Protocol(events_of, aws_frame, content_type='application/vnd.amazon.eventstream')
PINGS = {'text/event-stream': b': ping\n\nevent: ping\ndata: {"type": "ping"}\n\n',
         'application/vnd.amazon.eventstream': aws_frame({'type': 'ping'})}


def protocol_of(path):
    "The protocol that a path speaks."
    return COMPLETIONS if path.endswith('/chat/completions') else BEDROCK if path.startswith('/model/') else MESSAGES


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args): pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['content-length'])))
        act = self.server.note(body, dict(self.headers), self.path)
        self.speaks = protocol_of(self.path)
        body.setdefault('model', self.path.split('/')[2] if self.speaks is BEDROCK else '')
        try: getattr(self, f'play_{type(act).__name__.lower()}')(act, body)
        except (BrokenPipeError, ConnectionResetError): self.close_connection = True

    def open_stream(self, status=200, **headers):
        self.send_response(status)
        for name, value in {'content-type': self.speaks.content_type, 'request-id': 'req_1', **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def chunk(self, data): self.wfile.write(b'%x\r\n%s\r\n' % (len(data), data)); self.wfile.flush()

    def play_say(self, act, body):
        self.open_stream(**{'transfer-encoding': 'chunked'})
        for event in self.speaks.events(act, body['model']): self.chunk(self.speaks.frame(event))
        if self.speaks.end: self.chunk(self.speaks.end)
        self.chunk(b'')

    def play_drop(self, act, body):
        polite = act.how == 'polite'
        self.open_stream(**({'connection': 'close'} if polite else {'transfer-encoding': 'chunked'}))
        for event in list(self.speaks.events(act.say, body['model']))[:act.after]:
            data = self.speaks.frame(event)
            self.wfile.write(data) if polite else self.chunk(data)
        self.wfile.flush()
        if act.how == 'reset': self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        self.close_connection = True
        if act.how != 'polite': self.connection.close()

    def play_refuse(self, act, body):
        credentials = (self.headers.get(name) or '' for name in ('authorization', 'x-api-key', 'x-amz-security-token'))
        message = ' '.join([act.message, *(credentials if act.echo_key else ())])
        data = json.dumps({'type': 'error', 'error': {'type': act.kind, 'message': message}}).encode()
        self.send_response(act.status)
        for name, value in {'content-type': 'application/json', 'content-length': str(len(data)),
                            **act.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def play_hang(self, act, body):
        if act.how == 'open': self.open_stream(**{'transfer-encoding': 'chunked'})
        self.server.closing.wait(act.seconds)
        self.close_connection = True

    def play_endless(self, act, body):
        if act.how == 'headers': return self.drip(act.pause)
        say = Say(**{'thinking' if act.how == 'thinking' else 'text': 'word ' * 140 * 3})
        events = list(self.speaks.events(say, body['model']))
        piece = max(range(len(events)), key=lambda n: len(json.dumps(events[n])))
        self.open_stream(**{'transfer-encoding': 'chunked'})
        for event in events[:piece]: self.chunk(self.speaks.frame(event))
        if act.how == 'event' and self.speaks is BEDROCK: self.chunk(aws_start(20_000_000))
        again = {'event': b'data: ' + b'x' * 700, 'pings': PINGS[self.speaks.content_type]}.get(act.how)
        while not self.server.closing.is_set():
            self.chunk(again or self.speaks.frame(events[piece]))
            time.sleep(act.pause)

    def drip(self, pause):
        self.wfile.write(b'HTTP/1.1 200 OK\r\ncontent-type: ')
        while not self.server.closing.wait(pause): self.wfile.write(b'x')

    def play_raw(self, act, body):
        length = {'connection': 'close'} if act.hold else {'content-length': str(len(act.body))}
        self.open_stream(act.status, **{'content-type': act.content_type, **length, **act.headers})
        self.wfile.write(act.body)
        self.wfile.flush()
        self.server.closing.wait(act.hold)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script):
        super().__init__(('127.0.0.1', 0), Handler)
        self.script, self.asked, self.headers_seen, self.paths, self.lock = list(script), [], [], [], threading.Lock()
        self.closing = threading.Event()

    def handle_error(self, request, client_address): pass      # a reset connection is part of the play

    def note(self, body, headers, path):
        "Keep a request and pick the act that answers it."
        with self.lock:
            self.asked.append(body)
            self.headers_seen.append({k.lower(): v for k, v in headers.items()})
            self.paths.append(path)
            return self.script[min(len(self.asked), len(self.script)) - 1]

    @property
    def url(self): return f'http://127.0.0.1:{self.server_address[1]}'

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever, kwargs={'poll_interval': 0.02}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.closing.set(); self.shutdown(); self.server_close(); self.thread.join(5)
