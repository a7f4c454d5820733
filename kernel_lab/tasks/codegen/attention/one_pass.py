"The pass that computes attention: scores stay on chip."
from dataclasses import replace
import math
import numpy as np
from ..graph import Graph, Node, Ref, node_graph
from ..lowering_rules import formula_of, logical_form
from ..matmul import PSUM_BANK_COLUMNS, SQUARES_PER_BANK, matmul_dtype
from ..plan import KernelPlan
from ..tile_text import BLOCK_ROWS, KernelWriter, TileExpr
from .matching import SOFTMAX, AttentionSpec, all_views, attention_at
from .strided_views import indexed_text

def _indent(k, lines): return ['    ' * k + l for l in lines]

MASKED = -3e38

def mask_blocks(spec: AttentionSpec) -> tuple[list, dict]:
    """([(first row, rows, first key, last key, [(key, mask)]) of each block of queries], {mask: (keys, planes, distance)}).

    Keys that nobody in the block sees are left out; a mask is named where a part of a block of keys is masked."""
    Lq, Lk = spec.shape[-2:]
    blocks, masks = [], {}
    for at in range(0, Lq, BLOCK_ROWS):
        n, seen, part = min(BLOCK_ROWS, Lq - at), [], []
        for c in range(0, Lk, BLOCK_ROWS):
            m = min(BLOCK_ROWS, Lk - c)
            i, j = np.ogrid[at:at + n, c:c + m]
            hides = [(p, p.covers(i, j)) for p in spec.planes]
            hidden = np.logical_or.reduce([h for _, h in hides]) if hides else np.zeros((n, m), bool)
            if hidden.all(): continue
            seen.append(c)
            if hidden.any():
                key = (m, at - c, tuple(p for p, h in hides if h.any()))
                part.append((c, masks.setdefault(key, len(masks))))
        lo, hi = seen[0], min(seen[-1] + BLOCK_ROWS, Lk)
        blocks.append((at, n, lo, hi, part))
    return blocks, {k: key for key, k in masks.items()}

class NoText(Exception): "A part of a tensor has no text."

def _tile(name, shape, dtype='float32', buffer='sbuf'):
    return f'{name} = nl.ndarray({shape}, dtype=nl.{dtype}, buffer=nl.{buffer})'

class _Pass:
    "What the text of an `AttentionSpec`'s pass is made of: tensors by name, dtypes of tiles, blocks and masks."
    def __init__(self, spec, plan, refs):
        self.spec, self.plan, self.name = spec, plan, plan.pass_name
        self.places = {t: plan.materialise(r) for t, r in zip(spec.takes, refs)}
        self.views = [v for _, v in all_views(spec)]
        kind = lambda o: self.places[o[0]].dtype
        self.kind = matmul_dtype(*(kind(o) for term in spec.terms for o in term))
        self.p_kind = matmul_dtype(spec.dtype, kind(spec.values))
        self.blocks, self.masks = mask_blocks(spec)
        self.folded = self.kind == 'float32' or math.log2(abs(spec.scale)).is_integer()
        self.exponent = spec.exponent * (1.0 if self.folded or spec.chain or spec.scale < 0 else spec.scale)
        self.loads = [[] for _ in range(len(spec.loops) + 1)]           # lines ahead of the block, by depth

    def strides(self, view): return self.spec.strides[self.views.index(view)]

    def loops(self, strides): return [(f'b{k}', n, s) for k, (n, s) in enumerate(zip(self.spec.loops, strides))]

    def source(self, operand, *spans):
        "The text of a part of a tensor; spans are (start, length, count, stride)."
        if text := self.text(operand, *spans): return text
        raise NoText

    def text(self, operand, *spans):
        name, view = operand
        return indexed_text(self.places[name].name, view, self.loops(self.strides(view)), spans)

    def span(self, view, axis, start, length):
        return start, length, view.shape[axis] if length != 1 else 1, view.stride(axis)

    def blocks_source(self, operand, first, T, r, *columns):
        "The text of T blocks of r rows from row `first` on: [r, T, columns]; None where its rows do not split so."
        view = operand[1]
        s, cols = view.stride(-2), self.span(view, -1, *columns)
        if T == 1: return self.source(operand, self.span(view, -2, first, r), (0, 1, 1, 0), cols)
        return self.text(operand, (0, r, r, s), (0, T, T, s * r), cols)

    def depth(self, *operands):
        "How many loops are around a load: up to the last one that one of the operands depends on."
        return max((k + 1 for _, v in operands for k, s in enumerate(self.strides(v)) if s), default=0)

    def load(self, lines, *operands): self.loads[self.depth(*operands)] += lines

# %%
def _row_parts(L):
    "[(tile's suffix, first row, blocks, rows of each)] of L rows."
    T, r = divmod(L, BLOCK_ROWS)
    return [*([('t', 0, T, BLOCK_ROWS)] if T else []), *([('rest', T * BLOCK_ROWS, 1, r)] if r else [])]

def _load_rows(p, operand, name, part, col, width, kind):
    "Lines that load blocks of rows side by side: `name` [rows, blocks, width]."
    _, first, T, r = part
    tile, text, view = _tile(name, f'({r}, {T}, {width})', kind), p.blocks_source(operand, first, T, r, col, width), operand[1]
    if text: return [tile, f'nisa.dma_copy(dst={name}, src={text})']
    one = p.source(operand, p.span(view, -2, 'j * ROWS', 'ROWS'), p.span(view, -1, col, width))
    return [tile, f'for j in range({T}): nisa.dma_copy(dst={name}[:, j, :], src={one})']

def _copy_line(dst, src, scale=1.0):
    if scale == 1: return f'nisa.tensor_copy(dst={dst}, src={src})'
    return f'nisa.tensor_scalar(dst={dst}, data={src}, op0=nl.multiply, operand0={scale!r})'

def _load_turned(p, operand, name, col, d, scale=1.0):
    "Lines that load a matrix with `d` of its columns, from `col` on, on partitions: `name` [d, rows]."
    view = operand[1]
    L, lines = view.shape[-2], [_tile(name, f'({d}, {view.shape[-2]})', p.kind)]
    if view.stride(-2) == 1 and view.stride(-1) != 1 and L > 1:
        lines.append(f'nisa.dma_copy(dst={name}, src='
                     f'{p.source(operand, p.span(view, -1, col, d), p.span(view, -2, 0, L))})')
        return [*lines, _copy_line(name, name, scale)] if scale != 1 else lines
    for part in _row_parts(L):
        suffix, first, T, r = part
        rows = f'{name}_{suffix}'
        lines += [*_load_rows(p, operand, rows, part, col, d, p.kind), f'for g in range(0, {T}, {SQUARES_PER_BANK}):',
                  *_indent(1, [f'w = min({SQUARES_PER_BANK}, {T} - g)', _tile('turn', f'({d}, w * {r})', p.kind, 'psum'),
                               f'for j in range(w): nisa.nc_transpose(dst=turn[:, j * {r}:(j + 1) * {r}], '
                               f'data={rows}[:, g + j, :])',
                               _copy_line(f'{name}[:, {first} + g * {r}:{first} + (g + w) * {r}]', 'turn', scale)])]
    return lines

def _load_products(p):
    "Emit the loads of q and k; returns [(tile of q, tile of k)], one for each 128 of the contraction."
    found = []
    for q, k in p.spec.terms:
        for col in range(0, q[1].shape[-1], BLOCK_ROWS):
            names, d = (f'q{len(found)}', f'k{len(found)}'), min(BLOCK_ROWS, q[1].shape[-1] - col)
            p.load(_load_turned(p, q, names[0], col, d, p.spec.scale if p.folded else 1.0), q)
            p.load(_load_turned(p, k, names[1], col, d), k)
            found.append(names)
    return found

def _load_values(p):
    for part in _row_parts(p.spec.shape[-1]):
        p.load(_load_rows(p, p.spec.values, f'v_{part[0]}', part, 0, p.spec.values[1].shape[-1], p.p_kind), p.spec.values)

# %%
def _load_operand(p, writer, k, operand):
    "The tile of an operand of the chain for the scores of n queries from `at` on and m keys from `c` on."
    view, tile = operand[1], lambda name, cols: TileExpr(writer, name, cols, 'm' if cols > 1 else '', 'n')
    Lq, name = p.spec.shape[-2], f'x{k}'
    column = view.shape[-1] == 1
    if view.stride(-2) == 0 or Lq == 1:                     # the same for all queries
        width = view.shape[-1]
        p.load([_tile(name, f'(ROWS, {width})'), f'nisa.dma_copy(dst={name}, src='
                f'{p.source(operand, (0, "ROWS", BLOCK_ROWS, 0), p.span(view, -1, 0, width))})'], operand)
        return tile(f'{name}[0:n, :]' if column else f'{name}[0:n, c:c + m]', 1 if column else PSUM_BANK_COLUMNS)
    if column and Lq % BLOCK_ROWS == 0:
        p.load(_load_rows(p, operand, name, _row_parts(Lq)[0], 0, 1, 'float32'), operand)
        return tile(f'{name}[0:n, at // ROWS, :]', 1)
    writer.emit(_tile(name, '(n, 1)' if column else '(n, m)'))
    cols = (0, 1, 1, 0) if column else p.span(view, -1, 'c', 'm')
    writer.emit(f'nisa.dma_copy(dst={name}, src={p.source(operand, p.span(view, -2, "at", "n"), cols)})')
    return tile(name, 1 if column else PSUM_BANK_COLUMNS)

def _chain_lines(p):
    "(lines of the elementwise operations on `s`, the name of their result)."
    spec, writer = p.spec, KernelWriter(0, {*'snmcikpjbgw', 'at', 'lo', 'hi', 'count', 'chunks', 'lows', 'masks', 'mask', 'first', 'made', 'kept', 'blocks'})
    scores = TileExpr(writer, 's', PSUM_BANK_COLUMNS, 'm', 'n')
    if not p.folded and (spec.chain or spec.scale < 0): scores = scores * spec.scale
    env = {spec.products[0]: scores}
    for k, (name, operand) in enumerate(spec.operands): env[name] = _load_operand(p, writer, k, operand)
    for node in spec.chain:
        node = logical_form(node)
        env[node.name] = formula_of(node)(*(env[r] for r in node.refs()))
        res = env[node.name]
    last = res if spec.chain else scores
    if last is scores and max(hi - lo for _, _, lo, hi, _ in p.blocks) > MOST_COLUMNS_IN_PSUM: last = last.copy_as('float32')
    return writer.lines, last.name

MOST_COLUMNS_IN_PSUM = 3 * PSUM_BANK_COLUMNS

def _score_lines(p, products):
    "Lines that compute the scores of a block of queries, in `chunks`, and the negative of the largest one, `low`."
    chain, name = _chain_lines(p)
    masked = [f'for j in range(len(masks)):', '    first, mask = masks[j]',
              f'    if c <= first < c + m: nisa.tensor_tensor(dst={name}[:, first - c:first - c + mask.shape[1]], '
              f'data1={name}[:, first - c:first - c + mask.shape[1]], data2=mask[0:n, :], op=nl.add)'] if p.masks else []
    W = PSUM_BANK_COLUMNS
    return [f'count = (hi - lo + {W - 1}) // {W}', 'chunks = []', _tile('lows', '(n, count)'), 'for k in range(count):',
            *_indent(1, [f'c = lo + k * {W}', f'm = min({W}, hi - c)', _tile('s', '(n, m)', buffer='psum'),
                         *(f'nisa.nc_matmul(dst=s, stationary={q}[:, at:at + n], moving={k}[:, c:c + m])'
                           for q, k in products), *chain, *masked,
                         f'nisa.tensor_reduce(dst=lows[:, k:k + 1], op=nl.maximum, data={name}, axis=1, negate=True)',
                         f'chunks.append({name})'])]

def _least_lines(p, exponent):
    "Lines that make `low`, the negative of the largest exponent of each row."
    lines = ['low = lows', 'if count > 1:', '    ' + _tile('low', '(n, 1)'),
             '    nisa.tensor_reduce(dst=low, op=nl.minimum, data=lows, axis=1)']
    if p.spec.sink:
        view = p.spec.sink[1]
        tile = _load_operand(p, KernelWriter(0), 's', p.spec.sink)
        lines += [_tile('least', '(n, 1)'), _tile('sink', '(n, 1)'), _copy_line('sink', tile.name, -1.0),
                  f'nisa.scalar_tensor_tensor(dst=least, data=low, op0=nl.multiply, operand0={exponent!r}, '
                  'op1=nl.minimum, operand1=sink)']
    elif exponent != 1: lines += [_tile('least', '(n, 1)'), _copy_line('least', 'low', exponent)]
    else: lines = [l.replace('low =', 'least =').replace('dst=low', 'dst=least') for l in lines]
    return lines

def _exp_lines(p):
    "Lines that make the probabilities `p`, not divided yet, and `inverse` of their sum."
    scale, W, sink = p.exponent, PSUM_BANK_COLUMNS, p.spec.sink is not None
    more = f', scale={scale!r}' if scale != 1 else ''
    lines = [*_least_lines(p, scale), _tile('p', '(n, hi - lo)', p.p_kind), _tile('sums', f'(n, count{" + 1" * sink})'),
             'for k in range(count):', *_indent(1, [
                 f'm = min({W}, hi - lo - k * {W})',
                 f'nisa.activation_reduce(dst=p[:, k * {W}:k * {W} + m], op=nl.exp, data=chunks[k], reduce_op=nl.add, '
                 f'reduce_res=sums[:, k:k + 1], bias=least{more})'])]
    if sink: lines.append('nisa.activation(dst=sums[:, count:count + 1], op=nl.exp, data=sink, scale=-1.0, bias=least)')
    lines += ['total = sums', f'if count > {1 - sink}:', '    ' + _tile('total', '(n, 1)'),
              '    nisa.tensor_reduce(dst=total, op=nl.add, data=sums, axis=1)', _tile('inverse', '(n, 1)'),
              'nisa.reciprocal(dst=inverse, data=total)']
    return lines

def _turn_lines(p):
    "Lines that bring the keys of the probabilities `p` onto partitions: `turned`, [(tile, first block of keys, blocks)]."
    W, T, r = PSUM_BANK_COLUMNS, *divmod(p.spec.shape[-1], BLOCK_ROWS)
    def some(count, rows, engine):
        return [_tile('turn', f'({rows}, {count} * n)', p.p_kind, 'psum'),
                f'for j in range({count}): nisa.nc_transpose(dst=turn[:, j * n:(j + 1) * n], '
                f'data=p[:, b - lo + j * ROWS:b - lo + j * ROWS + {rows}])',
                _tile('columns', f'({rows}, {count} * n)', p.p_kind),
                f'nisa.tensor_copy(dst=columns, src=turn, engine=nisa.engine.{engine})']
    engine = 'scalar' if p.spec.chain else 'vector'
    lines = ['turned = []']
    if T: lines += [f'for b in range(lo, min(hi, {T * BLOCK_ROWS}), {W}):', *_indent(1, [
        f'w = min({W}, hi - b) // ROWS', *some('w', BLOCK_ROWS, engine), 'turned.append((columns, b // ROWS, w))'])]
    if r: lines += [f'if hi > {T * BLOCK_ROWS}:', *_indent(1, [f'b = {T * BLOCK_ROWS}', *some(1, r, engine),
                                                              f'turned.append((columns, {T}, 1))'])]
    return lines

def _mix_lines(p):
    "Lines that multiply the probabilities with the values, and store the result."
    dv, (place, view), (T, r) = p.spec.values[1].shape[-1], p.out, divmod(p.spec.shape[-1], BLOCK_ROWS)
    one = 'nisa.nc_matmul(dst=acc, stationary=columns[:, j * n:(j + 1) * n], moving={})'
    whole, rest = f'for j in range(w): {one.format("v_t[:, b + j, :]")}', f'for j in range(w): {one.format("v_rest[:, j, :]")}'
    lines = [_tile('acc', f'(n, {dv})', buffer='psum'), 'for g in range(len(turned)):', '    columns, b, w = turned[g]']
    if T and r: lines += [f'    if b < {T}:', f'        {whole}', '    else:', f'        {rest}']
    else: lines.append(f'    {whole if T else rest}')
    span = (('at', 'n', view.shape[-2], view.stride(-2)), (0, dv, dv, view.stride(-1)))
    text = indexed_text(place.name, view, p.loops(p.spec.strides[-1]), span)
    if text is None: raise NoText
    return [*lines, _tile('result', f'(n, {dv})', place.dtype),
            'nisa.tensor_scalar(dst=result, data=acc, op0=nl.multiply, operand0=inverse)',
            f'nisa.dma_copy(dst={text}, src=result)']

# %%
def _mask_lines(p):
    "Lines that make the masks, once: 0 where a score counts, else so low that its exponential is 0."
    if not p.masks: return []
    lines = [_tile(f'{p.name}_zero', '(ROWS, ROWS)'), f'nisa.memset(dst={p.name}_zero, value=0.0)']
    for k, (m, distance, planes) in p.masks.items():
        mask, last = f'{p.name}_mask_{k}', f'{p.name}_zero[:, 0:{m}]'
        lines.append(_tile(mask, f'(ROWS, {m})'))
        for plane in planes:                      # kept where sign · (i - j + distance) + more >= 0
            sign, more = (1, plane.k - 1) if plane.above else (-1, -plane.k - 1)
            lines.append(f'nisa.affine_select(dst={mask}, pattern=[[{-sign}, {m}]], channel_multiplier={sign}, '
                         f'offset={sign * distance + more}, on_true_tile={last}, '
                         f'on_false_value={MASKED / max(1.0, p.exponent)}, cmp_op=nl.greater_equal)')
            last = mask
    return lines

def _table(p):
    "The text of the list of the blocks of queries."
    masks = lambda part: '[' + ', '.join(f'({c}, {p.name}_mask_{k})' for c, k in part) + ']'
    return [f'({at}, {n}, {lo}, {hi}{", " + masks(part) if p.masks else ""})' for at, n, lo, hi, part in p.blocks]

def _pipelined(p, scores, turn, mix):
    """Lines that compute all blocks of queries.

    While the scores of one block are made, those of the block before are turned, and those before that one are
    multiplied with the values: no engine waits for a block that has just begun."""
    names = 'at, n, lo, hi' + ', masks' * bool(p.masks)
    table = _table(p)
    if len(table) == 1: return [f'{names} = {table[0][1:-1]}', *scores, *turn, *mix]
    return [f'blocks = [{", ".join(table)}]', 'made, kept = [], []', f'for i in range({len(table)} + 2):', *_indent(1, [
        f'if i < {len(table)}:', *_indent(1, [f'{names} = blocks[i]', *scores, 'made.append((p, inverse))']),
        f'if 0 < i <= {len(table)}:', *_indent(1, [f'{names} = blocks[i - 1]', 'p, inverse = made[i - 1]', *turn,
                                                   'kept.append(turned)']),
        'if i > 1:', *_indent(1, [f'{names} = blocks[i - 2]', 'turned, (p, inverse) = kept[i - 2], made[i - 2]', *mix])])]

def lower_attention(node: Node, plan: KernelPlan) -> list[str] | None:
    "Lines of the pass of a node `attention`; None for other nodes."
    if node.op != 'attention': return None
    spec = node.kwargs['spec']
    p = _Pass(spec, plan, node.args)
    p.out = plan.allocate(node), spec.out
    products = _load_products(p)
    _load_values(p)
    inner = _pipelined(p, [*_score_lines(p, products), *_exp_lines(p)], _turn_lines(p), _mix_lines(p))
    for k in range(len(spec.loops), -1, -1):
        inner = [*p.loads[k], *inner]
        if k: inner = [f'for b{k - 1} in nl.affine_range({spec.loops[k - 1]}):', *_indent(1, inner)]
    return _indent(1, [*_mask_lines(p), *inner])

def is_lowerable(node: Node, graph: Graph) -> bool:
    "Whether a node `attention` of a graph has a pass: all parts of its tensors can be written."
    try: lower_attention(node, KernelPlan(node_graph(graph, node)))
    except NoText: return False
    return True

def with_attention(graph: Graph) -> Graph:
    "The graph with each attention that can be one pass as one node `attention`; itself where there is none."
    for node in graph.nodes:
        found = node.op in SOFTMAX and attention_at(graph, node)
        if not found: continue
        spec, out = found
        one = Node(out.name, 'attention', tuple(map(Ref, spec.takes)), {'spec': spec}, out.shape, out.dtype)
        if not is_lowerable(one, graph): continue
        nodes, wanted, kept = [one if n is out else n for n in graph.nodes], set(graph.outputs), []
        for n in reversed(nodes):
            if n.name in wanted: wanted |= set(n.refs()); kept.append(n)
        graph = Graph(graph.inputs, tuple(reversed(kept)), graph.outputs)
    return graph
