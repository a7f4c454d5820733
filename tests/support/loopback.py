"""A loopback server that speaks enough of the Messages API to misbehave in every way that matters.

A script is a list of acts; each request plays the next one, and the last act plays for ever. Nothing leaves 127.0.0.1.
"""
import json
import socket
import struct
import threading
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
    echo_key: bool = False      # put the Authorization header into the message, as a careless proxy would


@dataclass
class Drop:
    """A reply that breaks off before event number `after`: 'cut' inside a chunk, 'reset' the connection, 'polite' as
    if it were the end."""
    say: Say
    after: int = 4
    how: str = 'cut'


@dataclass
class Raw:
    "Any bytes as the body of a 200."
    body: bytes
    content_type: str = 'text/event-stream'


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


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args): pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['content-length'])))
        act = self.server.note(body, dict(self.headers), self.path)
        try: getattr(self, f'play_{type(act).__name__.lower()}')(act, body)
        except (BrokenPipeError, ConnectionResetError): self.close_connection = True

    def open_stream(self, **headers):
        self.send_response(200)
        for name, value in {'content-type': 'text/event-stream', 'request-id': 'req_1', **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def chunk(self, data): self.wfile.write(b'%x\r\n%s\r\n' % (len(data), data)); self.wfile.flush()

    def play_say(self, act, body):
        self.open_stream(**{'transfer-encoding': 'chunked'})
        for event in events_of(act, body['model']): self.chunk(frame(event))
        self.chunk(b'')

    def play_drop(self, act, body):
        polite = act.how == 'polite'
        self.open_stream(**({'connection': 'close'} if polite else {'transfer-encoding': 'chunked'}))
        for event in list(events_of(act.say, body['model']))[:act.after]:
            self.wfile.write(frame(event)) if polite else self.chunk(frame(event))
        self.wfile.flush()
        if act.how == 'reset': self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        self.close_connection = True
        if act.how != 'polite': self.connection.close()

    def play_refuse(self, act, body):
        message = act.message + (' ' + self.headers['authorization'] if act.echo_key else '')
        data = json.dumps({'type': 'error', 'error': {'type': act.kind, 'message': message}}).encode()
        self.send_response(act.status)
        for name, value in {'content-type': 'application/json', 'content-length': str(len(data)),
                            **act.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def play_raw(self, act, body):
        self.open_stream(**{'content-type': act.content_type, 'content-length': str(len(act.body))})
        self.wfile.write(act.body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script):
        super().__init__(('127.0.0.1', 0), Handler)
        self.script, self.asked, self.headers_seen, self.paths, self.lock = list(script), [], [], [], threading.Lock()

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
        self.shutdown(); self.server_close(); self.thread.join(5)
