"quick"
#| export
from dataclasses import dataclass
from math import prod
from kernel_lab.agents.templates.products import TunedRegion
from kernel_lab.tasks.codegen.graph import Graph, Node, Ref


#| export
def _one_view(graph, node):
    "(what a view is of, the text that makes it), None for a node that is no view."
    a = node.args
    if node.op in ('view', '_unsafe_view', 'reshape'): return a[0].name, f'.view({tuple(node.shape)})'
    if node.op in ('transpose', 'swapaxes'): return a[0].name, f'.transpose({a[1]}, {a[2]})'
    if node.op == 'permute': return a[0].name, f'.permute({tuple(a[1])})'
    if node.op in ('unsqueeze', 'squeeze') and len(a) == 2 and isinstance(a[1], int): return a[0].name, f'.{node.op}({a[1]})'
    if node.op == 'select': return a[0].name, f'.select({a[1]}, {a[2]})'
    if node.op == 'unflatten': return a[0].name, f'.unflatten({a[1]}, {tuple(a[2])})'
    if node.op == 'getitem' and graph[a[0].name].op == 'split' and isinstance(graph[a[0].name].args[1], int):
        x, size, axis = (*graph[a[0].name].args, 0)[:3]
        return x.name, f'.narrow({axis}, {a[1] * size}, {node.shape[axis]})'

def _behind(graph, name):
    "(name, text): the value behind the views of a value whose last axis is dense then, and the text that makes them."
    import torch
    chain, found = '', (name, '')
    while True:
        base = torch.empty(graph[name].shape, device='meta')
        try: made = eval(f'x{chain}', {'x': base})
        except RuntimeError: return found
        if made.stride(-1) == 1: found = name, chain
        step = _one_view(graph, graph[name]) if graph[name].op != 'input' else None
        if step is None: return found
        name, chain = step[0], step[1] + chain


#| export
def _inner(graph, name):
    "What stands between two products: (node of the first, name of a mask, scale, 'softmax' or 'relu', nodes) or None."
    nodes, mask, scale, kind = [], None, 1.0, None
    while True:
        n = graph[name]
        if n.op == 'input' or len(graph.users(name)) != 1 or name in graph.outputs: return None
        nodes.append(name)
        if n.op == 'dropout' and (not n.args[1] or not n.args[2]): pass
        elif n.op == 'softmax' and kind is None and n.args[1] in (-1, len(n.shape) - 1): kind = 'softmax'
        elif n.op == 'relu' and kind is None: kind = 'relu'
        elif n.op == 'masked_fill' and kind and mask is None and n.args[2] == -float('inf') and scale == 1.0:
            mask = n.args[1].name
        elif n.op in ('mul', 'div') and kind and isinstance(n.args[0], Ref) and isinstance(n.args[1], int | float):
            scale = scale * n.args[1] if n.op == 'mul' else scale / n.args[1]
        elif n.op in ('matmul', 'bmm') and kind: return n, mask, scale, kind, nodes
        else: return None
        name = n.args[0].name

def attention_region(graph: Graph, node: Node) -> TunedRegion | None:
    """The attention of float32 whose last product is `node`, of family 'attention', with the turn of its heads where one
    follows; None for anything else. Its flops count a half where a mask is, whose values are unknown."""
    if node.dtype != 'float32' or len(node.shape) not in (3, 4): return None
    if node.op == 'scaled_dot_product_attention':
        rest = (*node.args[3:], None, 0.0, False)[:3] if len(node.args) == 3 else (*node.args[3:], 0.0, False)[:3]
        mask, dropout, causal = node.kwargs.get('attn_mask', rest[0]), rest[1], node.kwargs.get('is_causal', rest[2])
        names, kind, nodes, turned = [r.name for r in node.args[:3]], 'softmax', [], False
        if mask is not None or dropout or node.kwargs.get('enable_gqa'): return None
        scale = node.kwargs.get('scale') or graph[names[0]].shape[-1] ** -0.5
    elif node.op in ('matmul', 'bmm') and isinstance(node.args[0], Ref) and (found := _inner(graph, node.args[0].name)):
        first, mask, scale, kind, nodes = found
        names, causal, turned = [first.args[0].name, first.args[1].name, node.args[1].name], False, True
    else: return None
    shapes = [graph[n].shape for n in names]
    q, k, v = shapes[0], shapes[1][:-2] + shapes[1][:-3:-1] if turned else shapes[1], shapes[2]
    if not q[:-2] == k[:-2] == v[:-2] or q[-1] != k[-1] or k[-2] != v[-2] or v[-1] != q[-1]: return None
    if q[-1] % 16 or q[-1] > 2048 or min(q[-2], k[-2]) < 16 or causal and q[-2] != k[-2]: return None
    if mask and (graph[mask].dtype != 'bool' or prod(graph[mask].shape) != q[-2] * k[-2]): return None
    made = [_behind(graph, names[0]), _key(graph, names[1]) if turned else _behind(graph, names[1]),
            _behind(graph, names[2])]
    inputs = list(dict.fromkeys(n for n, _ in made)) + ([mask] if mask else [])
    out, target = _turned(graph, node)
    views = tuple(f'e{inputs.index(n)}{text}' for n, text in made)
    facts = (('views', views), ('heads', q[:-2]), ('queries', q[-2]), ('keys', k[-2]), ('depth', q[-1]),
             ('scale', float(scale)), ('kind', kind), ('causal', bool(causal)), ('mask', bool(mask)),
             ('extra', len(inputs)), ('shape', graph[out[-1]].shape), ('target', target))
    flops = 4.0 * prod(q) * k[-2] * (0.5 if causal or mask else 1)
    return TunedRegion('attention', (*nodes[::-1], node.name, *out[1:]), tuple(inputs), out[-1], facts, flops)

def _key(graph, name):
    "The keys of a second operand that is their transpose; (name, text) as `_behind` gives it."
    node = graph[name]
    if node.op in ('transpose', 'swapaxes') and {a % len(node.shape) for a in node.args[1:3]} == {len(node.shape) - 1,
                                                                                                 len(node.shape) - 2}:
        return _behind(graph, node.args[0].name)
    return name, '.transpose(-1, -2)'

def _turned(graph, node):
    "(nodes from the last product on, text that makes its view of `out`): a turn of two axes and a view behind it."
    users = graph.users(node.name)
    if len(users) != 1 or users[0].op != 'transpose' or node.name in graph.outputs: return [node.name], ''
    turn, (_, a, b) = users[0], users[0].args
    after = graph.users(turn.name)
    if len(node.shape) - 1 in {a % len(node.shape), b % len(node.shape)} or turn.name in graph.outputs: return [node.name], ''
    if len(after) != 1 or after[0].op not in ('view', 'reshape', '_unsafe_view'): return [node.name], ''
    return [node.name, turn.name, after[0].name], f'.view({tuple(turn.shape)}).transpose({a}, {b})'


#| export
_HEAD = '''import torch
import triton
import triton.language as tl


@triton.jit
def halves(x):
    high = ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def product(ah, al, b, v):
    bh, bl = halves(b)
    v = tl.dot(al, bh, v, input_precision='tf32')
    v = tl.dot(ah, bl, v, input_precision='tf32')
    return tl.dot(ah, bh, v, input_precision='tf32')


@triton.jit
def last_column(mask, r, TQ, TK, i, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    end = TK
    if CAUSAL: end = tl.minimum(TK, (i + 1) * BM)
    if MASKED:
        end = 0
        for start in range(0, TK, BN):
            c = start + tl.arange(0, BN)
            out = tl.load(mask + r[:, None] * TK + c[None, :], mask=(r < TQ)[:, None] & (c < TK)[None, :], other=1)
            end = tl.maximum(end, tl.max(tl.where(out == 0, c[None, :] + 1, 0)))
    return end


@triton.jit
def kept(s, mask, r, c, TQ, TK, CAUSAL: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr):
    if CAUSAL: s = tl.where(c[None, :] <= r[:, None], s, -float('inf'))
    if MASKED:
        out = tl.load(mask + r[:, None] * TK + c[None, :], mask=(r < TQ)[:, None] & (c < TK)[None, :], other=1)
        s = tl.where(out == 0, s, -float('inf'))
    if not EVEN: s = tl.where(c[None, :] < TK, s, -float('inf'))
    return s


'''
_ONLINE = '''@triton.jit
def attention(q, k, v, mask, out, TQ, TK, scale, HEADS, qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot,
              BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr):
    i, z = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    b, h = (z // HEADS).to(tl.int64), (z % HEADS).to(tl.int64)
    q, k, v, out = q + b * qb + h * qh, k + b * kb + h * kh, v + b * vb + h * vh, out + b * ob + h * oh
    r, n = i * BM + tl.arange(0, BM), tl.arange(0, BN)
    inside = (r < TQ)[:, None]
    end = last_column(mask, r, TQ, TK, i, BM, BN, CAUSAL, MASKED)
    {start}
    top, total = tl.full((BM,), -float('inf'), tl.float32), tl.zeros((BM,), tl.float32)
    for start in range(0, end, BN):
        c = start + n
        on = (c < TK)[:, None]
        s = tl.zeros((BM, BN), tl.float32)
        {scores}
        s = kept(s * scale, mask, r, c, TQ, TK, CAUSAL, MASKED, EVEN)
        {weights}
        ph, pl = halves(p)
        {values}
    {end}


'''
_SOFTMAX = ['above = tl.maximum(top, tl.max(s, axis=1))', "at = tl.where(above == -float('inf'), 0.0, above)",
            'shrink = tl.exp(top - at)', 'p = tl.exp(s - at[:, None])', 'total = total * shrink + tl.sum(p, axis=1)',
            'top = above']
_RELU = ['p = tl.where(s < 0.0, 0.0, s)']
_STAGED = '''@triton.jit
def scores(q, k, mask, to, TQ, TK, scale, HEADS, qb, qh, qt, kb, kh, kt, D: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr, BK: tl.constexpr, CHUNK: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
           EVEN: tl.constexpr):
    wide, pid, z = tl.cdiv(TK, BN), tl.program_id(0), tl.program_id(1)
    i, j = pid // wide, pid % wide
    b, h = (z // HEADS).to(tl.int64), (z % HEADS).to(tl.int64)
    r, c, d = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    p = q + b * qb + h * qh + r[:, None] * qt + d[None, :]
    w = k + b * kb + h * kh + c[:, None] * kt + d[None, :]
    s, depth = tl.zeros((BM, BN), tl.float32), D
    if CAUSAL: depth = tl.where(j * BN < (i + 1) * BM, D, 0)
    for start in range(0, depth, CHUNK):
        part = tl.zeros((BM, BN), tl.float32)
        for at in range(start, min(start + CHUNK, D), BK):
            xh, xl = halves(tl.load(p + at, mask=(r < TQ)[:, None], other=0.0))
            part = product(xh, xl, tl.load(w + at, mask=(c < TK)[:, None], other=0.0).T, part)
        s += part
    s = kept(s * scale, mask, r, c, TQ, TK, CAUSAL, MASKED, EVEN)
    tl.store(to + z.to(tl.int64) * TQ * TK + r[:, None] * TK + c[None, :], s,
             mask=(r < TQ)[:, None] & (c < TK)[None, :])


@triton.jit
def weighted(given, v, out, TQ, TK, HEADS, vb, vh, vt, ob, oh, ot, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
             BK: tl.constexpr, CHUNK: tl.constexpr, CAUSAL: tl.constexpr):
    wide, pid, z = tl.cdiv(D, BD), tl.program_id(0), tl.program_id(1)
    i, j = pid // wide, pid % wide
    b, h = (z // HEADS).to(tl.int64), (z % HEADS).to(tl.int64)
    r, d, n = i * BM + tl.arange(0, BM), j * BD + tl.arange(0, BD), tl.arange(0, BK)
    rows = given + z.to(tl.int64) * TQ * TK + r[:, None] * TK
    inside, end = (r < TQ)[:, None], TK
    if CAUSAL: end = tl.minimum(TK, (i + 1) * BM)
    {top}
    sum = tl.zeros((BM, BD), tl.float32)
    for start in range(0, end, CHUNK):
        part = tl.zeros((BM, BD), tl.float32)
        for at in range(start, min(start + CHUNK, end), BK):
            c = at + n
            x = tl.load(rows + c[None, :], mask=inside & (c < TK)[None, :], other=-float('inf'))
            {weights}
            ph, pl = halves(p)
            y = tl.load(v + b * vb + h * vh + c[:, None] * vt + d[None, :], mask=(c < TK)[:, None] & (d < D)[None, :],
                        other=0.0)
            part = product(ph, pl, y, part)
        sum += part
    tl.store(out + b * ob + h * oh + r[:, None] * ot + d[None, :], sum{share},
             mask=inside & (d < D)[None, :])


'''
_HOST = '''def kernel({names}):
    q, k, v = {views}
    out = torch.empty({shape}, dtype=q.dtype, device=q.device)
    o = out{target}
    q, k, v, o = (t if t.dim() == 4 else t.unsqueeze(0) for t in (q, k, v, o))
    TQ, TK, (B, H) = {queries}, {keys}, q.shape[:2]
{launch}    return out
'''
_LAUNCH = {'online': '''    attention[(triton.cdiv(TQ, {BM}), B * H)](
        q, k, v, {mask}, out, TQ, TK, {scale!r}, H, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *o.stride()[:3],
        BM={BM}, BN={BN}, CAUSAL={causal}, MASKED={masked}, EVEN={even}, num_warps={warps}, num_stages={stages})
''', 'staged': '''    s = torch.empty(B * H * TQ * TK, dtype=q.dtype, device=q.device)
    scores[(triton.cdiv(TQ, {BM}) * triton.cdiv(TK, {BN}), B * H)](
        q, k, {mask}, s, TQ, TK, {scale!r}, H, *q.stride()[:3], *k.stride()[:3], D={depth}, BM={BM}, BN={BN}, BK={BK},
        CHUNK=128, CAUSAL={causal}, MASKED={masked}, EVEN={even}, num_warps={warps}, num_stages={stages})
    weighted[(triton.cdiv(TQ, {BM}) * triton.cdiv({depth}, {BN}), B * H)](
        s, v, out, TQ, TK, H, *v.stride()[:3], *o.stride()[:3], D={depth}, BM={BM}, BD={BN}, BK={BK}, CHUNK=128,
        CAUSAL={causal}, num_warps={warps}, num_stages={stages})
'''}

@dataclass(frozen=True)
class AttentionConfig:
    """How attention is cut: tiles of `BM` queries × `BN` keys, warps, stages; `BK`: depth of a step of the staged way,
    0: the online way."""
    BM: int
    BN: int
    warps: int
    stages: int
    BK: int = 0

    def __str__(self):
        way = f'staged, steps of {self.BK}' if self.BK else 'online'
        return f'{self.BM}×{self.BN}, {self.warps} warps, {self.stages} stages, {way}'

ATTENTION_CONFIGS = (AttentionConfig(128, 64, 8, 2), AttentionConfig(64, 64, 4, 2), AttentionConfig(128, 32, 8, 2),
                     AttentionConfig(64, 32, 4, 2), AttentionConfig(128, 64, 4, 1), AttentionConfig(64, 64, 4, 1))
STAGED_CONFIGS = (AttentionConfig(128, 128, 8, 3, 32), AttentionConfig(128, 128, 8, 2, 32),
                  AttentionConfig(64, 128, 4, 3, 32), AttentionConfig(128, 64, 4, 3, 32),
                  AttentionConfig(64, 64, 4, 3, 32))

def attention_configs(region: TunedRegion) -> tuple[AttentionConfig, ...]:
    "The configurations worth a race: online for heads up to 128, staged beyond."
    return ATTENTION_CONFIGS if region.known['depth'] <= 128 else STAGED_CONFIGS

def _parts(depth):
    "(begin, size) of powers of two that sum up to a depth."
    at, found = 0, []
    for size in (1 << k for k in range(11, 3, -1)):
        if depth & size:
            found.append((at, size))
            at += size
    return found

def _indented(texts, deep): return f'\n{" " * deep}'.join(texts)

def attention_source(region: TunedRegion, config: AttentionConfig) -> str:
    "A Triton submission, `kernel(*inputs)`, for a region of family 'attention'."
    f = region.known
    soft, parts = f['kind'] == 'softmax', [*enumerate(_parts(f['depth']))]
    even = f['keys'] % config.BN == 0
    if config.BK:
        top = ["top, total = tl.full((BM,), -float('inf'), tl.float32), tl.zeros((BM,), tl.float32)",
               'for at in range(0, end, 64):', '    c = at + tl.arange(0, 64)',
               "    s = tl.load(rows + c[None, :], mask=inside & (c < TK)[None, :], other=-float('inf'))",
               *('    ' + t for t in _SOFTMAX), "top = tl.where(top == -float('inf'), 0.0, top)"]
        body = _STAGED.replace('{top}', _indented(top * soft, 4))
        texts = ['p = tl.exp(x - top[:, None])'] if soft else ['p = tl.where(x < 0.0, 0.0, x)']
        body = body.replace('{weights}', _indented(texts, 12)).replace('{share}', ' / total[:, None]' if soft else '')
    else:
        columns = lambda at, size: f'{at} + tl.arange(0, {size})'
        start = [t for k, (at, size) in parts for t in (
            f'd{k}, o{k} = {columns(at, size)}, tl.zeros((BM, {size}), tl.float32)',
            f'qh{k}, ql{k} = halves(tl.load(q + r[:, None] * qt + d{k}[None, :], mask=inside, other=0.0))')]
        scores = [f's = product(qh{k}, ql{k}, tl.load(k + c[:, None] * kt + d{k}[None, :], mask=on, other=0.0).T, s)'
                  for k, _ in parts]
        values = [f'o{k} = o{k}{" * shrink[:, None]" * soft} + product(ph, pl, tl.load(v + c[:, None] * vt + '
                  f'd{k}[None, :], mask=on, other=0.0), tl.zeros((BM, {size}), tl.float32))' for k, (_, size) in parts]
        end = [f'tl.store(out + r[:, None] * ot + d{k}[None, :], o{k}{" / total[:, None]" * soft}, mask=inside)'
               for k, _ in parts]
        body = _ONLINE
        for name, texts, deep in (('start', start, 4), ('scores', scores, 8), ('values', values, 8), ('end', end, 4),
                                  ('weights', _SOFTMAX if soft else _RELU, 8)):
            body = body.replace('{' + name + '}', _indented(texts, deep))
    names = [f'e{k}' for k in range(f['extra'])]
    launch = _LAUNCH['staged' if config.BK else 'online'].format(
        **vars(config), mask=names[-1] if f['mask'] else 'out', scale=f['scale'], causal=f['causal'], masked=f['mask'],
        even=even, depth=f['depth'])
    host = _HOST.format(names=', '.join(names), views=', '.join(f['views']), shape=repr(tuple(f['shape'])),
                        target=f['target'], queries=f['queries'], keys=f['keys'], launch=launch)
    return _HEAD + body + host

