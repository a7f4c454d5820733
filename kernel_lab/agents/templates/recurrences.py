"quick"
#| export
from dataclasses import dataclass
from math import prod
from kernel_lab.agents.templates.products import TunedRegion
from kernel_lab.tasks.codegen.graph import Graph, Node, Ref


#| export
MOST_PROGRAMS, MOST_BATCH, MOST_STATE = 132, 64, 512
_CELLS = {'lstm': 'lstm', 'gru': 'gru', 'rnn_tanh': 'tanh', 'rnn_relu': 'relu'}

def recurrence_region(graph: Graph, node: Node) -> TunedRegion | None:
    """A recurrence of a graph, of family 'recurrence', whose output is its one result in use: the sequence (0), the
    last states (1), the last cells (2). None for a graph that uses two of them, drops out in training, or packs."""
    cell = _CELLS.get(node.op)
    if cell is None or len(node.args) != 9 or node.dtype != 'float32': return None
    x, first, weights, biases, layers, dropout, train, both, batch_first = node.args
    states = [first] if isinstance(first, Ref) else first
    users = graph.users(node.name)
    if not isinstance(x, Ref) or not isinstance(states, tuple | list) or len(users) != 1: return None
    if users[0].op != 'getitem' or node.name in graph.outputs or dropout and train: return None
    names = [x.name, *(r.name for r in states), *(r.name for r in weights)]
    shape, ways = graph[x.name].shape, 2 if both else 1
    if len(shape) != 3 or len(names) != 1 + (2 if cell == 'lstm' else 1) + (4 if biases else 2) * layers * ways: return None
    hidden = graph[weights[1].name].shape[-1]
    batch, times = shape[:2] if batch_first else (shape[1], shape[0])
    if batch > MOST_BATCH or hidden > MOST_STATE or shape[2] > hidden * ways or graph[weights[0].name].shape[1] != shape[2]:
        return None
    gates = {'lstm': 4, 'gru': 3}.get(cell, 1)
    flops = 2.0 * batch * times * gates * hidden * ways * sum((shape[2] if k == 0 else hidden * ways) + hidden
                                                              for k in range(layers))
    facts = (('cell', cell), ('batch', batch), ('times', times), ('wide', shape[2]), ('hidden', hidden),
             ('layers', layers), ('ways', ways), ('biases', bool(biases)), ('batch_first', bool(batch_first)),
             ('result', users[0].args[1]), ('shape', users[0].shape))
    return TunedRegion('recurrence', (node.name, users[0].name), tuple(names), users[0].name, facts, flops)


#| export
@dataclass(frozen=True)
class RecurrenceConfig:
    """How a recurrence is shared: hidden `units` of a program, `warps` that share each sum, `kind` of the products:
    'tf32', 'wide' or 'three'."""
    units: int
    warps: int
    kind: str

    def __str__(self): return f'{self.units} units a program, {self.warps} warps, {self.kind}'

def _up(n): return 1 << (n - 1).bit_length()

def _programs(f, config): return -(-f['hidden'] // config.units) * (f['ways'] if f['ways'] > 1 else f['layers'])

def recurrence_configs(region: TunedRegion) -> list[RecurrenceConfig]:
    "The configurations worth a race: those whose programs are on a card at once, and whose weights fit into registers."
    f, found = region.known, []
    columns = 4 if f['cell'] in ('lstm', 'gru') else 1
    depth = _up(max(f['wide'], f['hidden'] * f['ways'])) + _up(f['hidden'])
    for units in (4, 8, 16, 32):
        for warps, kind, words in ((8, 'tf32', 1), (8, 'wide', 1.5), (8, 'three', 2), (16, 'tf32', 1), (4, 'tf32', 1)):
            c, held = RecurrenceConfig(units, warps, kind), depth * units * columns * words / 32 / warps
            if _programs(f, c) > MOST_PROGRAMS or units * columns < 16: continue
            if held <= (192 if warps <= 8 else 96): found.append(c)
    fewest = min((c.units for c in found), default=0)
    return [c for c in found if c.units == fewest] + [c for c in found if c.units == 2 * fewest][:1]


#| export
_HEAD = '''import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def rounded(x):
    return ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def arrived(p, on, awaited):
    bits = tl.load(p, mask=on, other=1, volatile=True)
    while tl.sum(((bits == 0) & awaited).to(tl.int32)) > 0:
        bits = tl.load(p, mask=on, other=1, volatile=True)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def product(h, high, low, v, KIND: tl.constexpr):
    r = rounded(h)
    if KIND != 'tf32':
        v = tl.dot(h - r, high, v, input_precision='tf32')
        if KIND == 'wide': v = tl.dot(h.to(tl.bfloat16), low, v)
        else: v = tl.dot(r, low, v, input_precision='tf32')
    return tl.dot(r, high, v, input_precision='tf32')


@triton.jit
def halves(w, KIND: tl.constexpr):
    high = rounded(w)
    low = (w - high).to(tl.bfloat16) if KIND == 'wide' else w - high
    return high, low


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


'''
_KERNEL = '''@triton.jit
def recurrence(x, first, {cells}{weights}hist, out, batch_step, time_step, B: tl.constexpr, T: tl.constexpr,
               I: tl.constexpr, H: tl.constexpr, L: tl.constexpr, D: tl.constexpr, M: tl.constexpr, U: tl.constexpr,
               S: tl.constexpr, KX: tl.constexpr, KH: tl.constexpr, KIND: tl.constexpr):
    N: tl.constexpr = U * {columns}
    P: tl.constexpr = (H + U - 1) // U
    pid = tl.program_id(0)
    mine, place = pid % P, pid // P
    begin, end, way = {span}
    part, b, n = tl.arange(0, S)[:, None, None], tl.arange(0, M)[None, :, None], tl.arange(0, N)
    kx, kh = tl.arange(0, KX // S), tl.arange(0, KH // S)
    x_row, h_row = part * (KX // S) + kx[None, None, :], part * (KH // S) + kh[None, None, :]
    x_deep, h_deep = part * (KX // S) + kx[None, :, None], part * (KH // S) + kh[None, :, None]
    unit, gate = mine * U + n // {columns}, n % {columns}
    {gates}
    row, u = tl.arange(0, M)[:, None], mine * U + tl.arange(0, U)[None, :]
    inside = (row < B) & (u < H)
    x_bits, first_bits = x.to(tl.pointer_type(tl.int32), bitcast=True), first.to(tl.pointer_type(tl.int32), bitcast=True)
    for layer in range(begin, end):
        cell = layer * D + way
        wide = tl.where(layer == 0, I, H * D)
{select}
        mx, mh = (unit < H) & {on_x}, (unit < H) & {on_h}
        wx, wx_low = halves(tl.load(wi + (gx * H + unit)[None, None, :] * wide + x_deep,
                                    mask=mx[None, None, :] & (x_deep < wide), other=0.0), KIND)
        wh_, wh_low = halves(tl.load(wh + (gh * H + unit)[None, None, :] * H + h_deep,
                                     mask=mh[None, None, :] & (h_deep < H), other=0.0), KIND)
        bias = {bias}
        if D == 1: below = b * H + x_row
        else: below = x_row // H * (T * B * H) + b * H + x_row % H
        x_from = tl.where(layer == 0, x_bits, hist + (layer - 1) * (D * T * B * H))
        x_at, x_on = tl.where(layer == 0, b * batch_step + x_row, below), (b < B) & (x_row < wide)
        step, h_at, h_on = tl.where(layer == 0, time_step, B * H), b * H + h_row, (b < B) & (h_row < H)
        own = tl.load(first + cell * (B * H) + row * H + u, mask=inside, other=0.0)
{first_cell}
        t, turn = tl.where(way == 0, -1, T), tl.where(way == 0, 1, -1)
        v, h = tl.zeros((S, M, N), tl.float32), tl.zeros((S, M, KH // S), tl.float32)
        for s in range(-1, T):
            if s >= 0:
                g = tl.sum(product(h, wh_, wh_low, v, KIND), axis=0) + bias[None, :]
{update}
                bits = own.to(tl.int32, bitcast=True)
                tl.store(hist + cell * (T * B * H) + t * (B * H) + row * H + u, tl.where(bits == 0, -2147483648, bits),
                         mask=inside)
{output}
            ahead = tl.minimum(tl.maximum(t + turn, 0), T - 1)
            v = product(arrived(x_from + ahead * step + x_at, x_on, layer > 0), wx, wx_low,
                        tl.zeros((S, M, N), tl.float32), KIND)
            h_from = tl.where(s < 0, first_bits + cell * (B * H), hist + cell * (T * B * H) + t * (B * H))
            h = arrived(h_from + h_at, h_on, s >= 0)
            t = ahead
{last}

'''
_FOUR = ['even, odd = tl.split(tl.reshape(g, (M, U, 2, 2)))', 'g0, g2 = tl.split(even)', 'g1, g3 = tl.split(odd)']
_UPDATES = {
    'lstm': [*_FOUR, 'carried = sigmoid(g1) * carried + sigmoid(g0) * libdevice.tanh(g2)',
             'own = sigmoid(g3) * libdevice.tanh(carried)'],
    'gru': [*_FOUR, 'new = libdevice.tanh(g2 + sigmoid(g0) * g3)', 'own = new + sigmoid(g1) * (own - new)'],
    'tanh': ['own = libdevice.tanh(g)'], 'relu': ['own = tl.where(g < 0.0, 0.0, g)']}
_HOST = '''
def kernel(x, first, {cells}{weights}):
    hist = torch.zeros({states}, dtype=torch.int32, device=x.device)
    out = torch.empty({shape}, dtype=x.dtype, device=x.device)
    recurrence[({programs},)](x, first, {cells}{weights}, hist, out, x.stride({batch_axis}), x.stride({time_axis}),
                              B={B}, T={T}, I={I}, H={H}, L={L}, D={D}, M={M}, U={U}, S={S}, KX={KX}, KH={KH},
                              KIND={kind!r}, num_warps={warps})
    return out
'''

def _bias(f):
    "The text of a bias of a program's columns."
    if not f['biases']: return 'tl.zeros((N,), tl.float32)'
    read = 'tl.load({0} + {1} * H + unit, mask={2}, other=0.0)'
    return f"({read.format('bi', 'gx', 'mx')} + {read.format('bh', 'gh', 'mh')})"

def recurrence_source(region: TunedRegion, config: RecurrenceConfig) -> str:
    "A Triton submission, `kernel(x, first states, [first cells,] *weights)`, for a region of family 'recurrence'."
    f = region.known
    lstm, gru, kinds = f['cell'] == 'lstm', f['cell'] == 'gru', ('wi', 'wh', 'bi', 'bh')[:4 if f['biases'] else 2]
    B, T, H, L, D = (f[k] for k in ('batch', 'times', 'hidden', 'layers', 'ways'))
    every = [[f'{n}{k}' for n in kinds] for k in range(L * D)]
    weights = ', '.join(n for names in every for n in names)
    lines = lambda texts, deep: '\n'.join(' ' * deep + t for t in texts)
    select = [f'{n} = {n}0' for n in kinds]
    select += [f'{n} = tl.where(cell == {k}, {n}{k}, {n})' for k in range(1, L * D) for n in kinds]
    place = f'row * {T * D * H} + t * {D * H}' if f['batch_first'] else f't * {B * D * H} + row * {D * H}'
    output = [f'if layer == L - 1: tl.store(out + {place} + way * H + u, own, mask=inside)'] if f['result'] == 0 else []
    ends = {1: 'own', 2: 'carried'}.get(f['result'])
    kernel = _KERNEL.format(
        cells='cells, ' if lstm else '', weights=f'{weights}, ', columns=4 if lstm or gru else 1,
        span='place, place + 1, 0' if D == 1 else '0, L, place', select=lines(select, 8),
        gates='gx, gh = tl.minimum(gate, 2), tl.where(gate == 3, 2, gate)' if gru else 'gx, gh = gate, gate',
        on_x='(gate < 3)' if gru else '(gate < 4)', on_h='(gate != 2)' if gru else '(gate < 4)', bias=_bias(f),
        first_cell=lines(['carried = tl.load(cells + cell * (B * H) + row * H + u, mask=inside, other=0.0)'] * lstm, 8),
        update=lines(_UPDATES[f['cell']], 16), output=lines(output, 16),
        last=lines([f'tl.store(out + cell * (B * H) + row * H + u, {ends}, mask=inside)'] * bool(ends), 8))
    host = _HOST.format(
        cells='cells, ' if lstm else '', weights=weights, states=L * D * B * T * H, shape=repr(tuple(f['shape'])),
        programs=_programs(f, config), batch_axis=0 if f['batch_first'] else 1, time_axis=1 if f['batch_first'] else 0,
        B=B, T=T, I=f['wide'], H=H, L=L, D=D, M=max(16, _up(B)), U=config.units, S=config.warps,
        KX=max(_up(max(f['wide'], H * D if L > 1 else 1)), 16 * config.warps), KH=max(_up(H), 16 * config.warps),
        kind=config.kind, warps=config.warps)
    return _HEAD + kernel + host

