"Finds attention in a graph: products, elementwise operations on scores, a softmax, and a product with values."
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
import math
import numpy as np
from ..graph import Graph, Node, Ref
from ..layout import argument_of, broadcast_shape
from ..lowering_rules import RESHAPES, logical_form
from ..rowwise_ops import ELEMENTWISE_OPS
from .strided_views import StridedView, common_loops, expanded_view, inverse_view, view_of, whole_view

@dataclass(frozen=True)
class HalfPlane:
    "The scores (i, j) with j - i >= k where `above`, else those with j - i <= k."
    above: bool
    k: int

    def covers(self, i, j): return j - i >= self.k if self.above else j - i <= self.k
    @property
    def other(self): return HalfPlane(not self.above, self.k - 1 if self.above else self.k + 1)

_ALL_OPS, _NOT_OPS = ('ones', 'ones_like', 'new_ones'), ('logical_not', 'bitwise_not')
_COMPARED = {'ge': (1, 0), 'gt': (1, -1), 'le': (-1, 0), 'lt': (-1, -1)}    # (sign of a - b, what is added): >= 0

def _linear(a, graph):
    "(of i, of j, constant) of a whole-numbered tensor over (i, j) that is made of aranges; None for others."
    if not isinstance(a, Ref): return (0, 0, a) if isinstance(a, int) else None
    node = graph[a.name]
    if node.op == 'arange':
        start, step = (0, 1) if len(node.args) == 1 else (node.args[0], (*node.args, 1)[2])
        return (0, step, start) if all(isinstance(x, int) for x in (start, step)) else None
    if node.op in RESHAPES:
        found = _linear(node.args[0], graph)
        if not found or sum(n > 1 for n in node.shape) > 1: return None
        ci, cj, c = found
        column = len(node.shape) > 1 and node.shape[-1] == 1 and node.shape[-2] > 1
        row = node.shape and node.shape[-1] > 1
        return (ci + cj, 0, c) if column else (0, ci + cj, c) if row else None
    if node.op in ('add', 'sub') and not node.kwargs:
        a, b = (_linear(x, graph) for x in node.args)
        sign = 1 if node.op == 'add' else -1
        return a and b and tuple(x + sign * y for x, y in zip(a, b))

def _compared(node, graph):
    a, b = (_linear(x, graph) for x in node.args[:2])
    if not a or not b: return None
    sign, more = _COMPARED[node.op]
    i, j, c = (sign * (x - y) for x, y in zip(a, b))
    if (i, j) == (-1, 1): return [HalfPlane(True, -(c + more))]         # j - i + c + more >= 0
    return [HalfPlane(False, c + more)] if (i, j) == (1, -1) else None

def half_planes(name: str, graph: Graph, value: bool = True) -> list[HalfPlane] | None:
    "Where a truth value over (i, j) that depends on no input is `value`, as a union; None where it is no such union."
    node = logical_form(graph[name])
    inner = lambda k, v: half_planes(node.args[k].name, graph, v) if isinstance(node.args[k], Ref) else None
    if node.op in RESHAPES and max(graph[node.args[0].name].shape, default=0) > 1:
        same = [tuple(s) for s in (node.shape, graph[node.args[0].name].shape)]
        return inner(0, value) if same[0][-2:] == same[1][-2:] else None
    if node.op in ('triu', 'tril'):
        if graph[node.args[0].name].op not in _ALL_OPS: return None
        plane = HalfPlane(node.op == 'triu', (*node.args, 0)[1])
        return [plane if value else plane.other]
    if node.op in _NOT_OPS or node.op == 'eq' and node.args[1] in (0, False): return inner(0, not value)
    if node.op == 'ne' and node.args[1] in (0, False): return inner(0, value)
    if node.op in _COMPARED:
        found = _compared(node, graph)
        return found and (found if value else [p.other for p in found])
    if node.op == ('logical_or' if value else 'logical_and'):
        parts = [inner(0, value), inner(1, value)]
        return None if None in parts else [p for part in parts for p in part]

# --- the group

PRODUCTS = ('matmul', 'bmm')
SOFTMAX = ('softmax', '_softmax')
MASKED_BELOW = -1e30        # a score that is as good as -inf
MOST_TAIL = 24

@dataclass(frozen=True)
class AttentionSpec:
    """What one pass computes: softmax(chain(scale · Σ q kᵀ)) v.

    `takes` are the tensors it reads, whose places are those of the node's arguments; `terms` are pairs of (name, view)
    of q and k, `values` of v; `chain` are the elementwise nodes on the scores, `result` the last of them, `exponent` the
    factor behind it; `operands` are {name: (name, view)} of what the chain reads; `planes` are masked; `sink` is a
    score of each row that takes weight and gives nothing."""
    takes: tuple[str, ...]
    shape: tuple[int, ...]
    terms: tuple
    values: tuple
    out: StridedView
    dtype: str                              # of the probabilities
    scale: float = 1.0
    exponent: float = 1.0
    chain: tuple[Node, ...] = ()
    products: tuple[str, ...] = ()
    operands: tuple = ()
    planes: tuple[HalfPlane, ...] = ()
    sink: tuple | None = None
    loops: tuple[int, ...] = ()
    strides: tuple = field(default=(), repr=False)

    def __repr__(self): return f'scores {list(self.shape)}'

class _NoAttention(Exception): pass

def _need(found):
    if found is None or found is False: raise _NoAttention
    return found

class _Reader:
    "Reads a softmax and what is around it as an `AttentionSpec`."
    def __init__(self, graph, node):
        self.graph, self.softmax, self.members = graph, node, {node.name}
        _need(argument_of(node, 'dim', -1) % len(node.shape) == len(node.shape) - 1)

    def only_user(self, node):
        users = self.graph.users(node.name)
        _need(len(users) == 1 and node.name not in self.graph.outputs)
        return users[0]

    def is_ours(self, name): return name not in self.graph.outputs and all(
        u.name in self.members for u in self.graph.users(name))

    def forward(self):
        "The product with values."
        node, self.shape = self.softmax, tuple(self.softmax.shape)
        user = self.only_user(node)
        if user.op == 'slice':
            _need(user.args[1] % len(node.shape) == len(node.shape) - 1 and user.args[2] in (0, None))
            _need(user.shape[-1] == node.shape[-1] - 1)
            self.shape = tuple(user.shape)
            self.members.add(user.name)
            node, user = user, self.only_user(user)
        _need(user.op in PRODUCTS and user.args[0] == Ref(node.name) and user.args[1] != Ref(node.name))
        _need(len(node.shape) > 1 and tuple(user.shape[:-1]) == self.shape[:-1])
        _need(len(self.graph[user.args[1].name].shape) > 1)
        self.members.add(user.name)
        self.product, self.dtype = user, node.dtype

    def backward(self):
        "The last score, and the sink."
        self.top, self.sink = self.softmax.args[0], None
        if self.shape == tuple(self.softmax.shape): return
        node = self.graph[self.top.name]
        _need(node.op in ('cat', 'concat') and self.is_ours(node.name) and len(node.args[0]) == 2)
        _need((*node.args, 0)[1] % len(node.shape) == len(node.shape) - 1)
        self.top, extra = node.args[0]
        _need(tuple(self.graph[self.top.name].shape) == self.shape and self.graph[extra.name].shape[-1] == 1)
        self.members.add(node.name)
        self.sink = self.operand(extra.name)

    def operand(self, name, shape=None):
        "(tensor, view) of a result over all scores, or over `shape`."
        base, view = view_of(name, self.graph)
        _need('float' in self.graph[base].dtype or self.graph[base].dtype == 'bool')
        column = view.shape[-1:] == (1,) or not view.shape
        return base, expanded_view(view, shape or ((*self.shape[:-1], 1) if column else self.shape))

    def tail(self):
        "Peel the mask and positive factors behind the scores."
        self.exponent, self.planes = 1.0, []
        while True:
            node = self.graph[self.top.name]
            if not self.is_ours(node.name) or tuple(node.shape) != self.shape: return
            if (factor := _factor(node)) and factor > 0: self.exponent *= factor
            elif planes := self.masked(node): self.planes += planes
            else: return
            self.members.add(node.name)
            self.top = next(a for a in node.args[node.op == 'where':] if isinstance(a, Ref))

    def masked(self, node):
        "The half planes that a node masks by a constant; None where it does not."
        if node.op == 'masked_fill': (_, mask, value), hidden = node.args, True
        elif node.op == 'where' and not isinstance(node.args[2], Ref): (mask, _, value), hidden = node.args, False
        elif node.op == 'where' and not isinstance(node.args[1], Ref): (mask, value, _), hidden = node.args, True
        else: return None
        if isinstance(value, Ref) or not value <= MASKED_BELOW: return None
        found = half_planes(mask.name, self.graph, hidden)
        if not found or tuple(self.graph[mask.name].shape[-2:]) != self.shape[-2:]: return None
        i, j = np.ogrid[:self.shape[-2], :self.shape[-1]]
        hides = np.logical_or.reduce([p.covers(i, j) for p in (*self.planes, *found)])
        return None if hides.all(-1).any() else found

    def scores(self):
        "The products, and the elementwise nodes on them."
        graph, products, chain = self.graph, [], []
        upto = [n.name for n in graph.nodes].index(self.top.name)
        reached, made = {self.top.name}, self._made()
        for node in graph.nodes[upto::-1]:
            if node.name not in reached or not self.is_ours(node.name): continue
            if node.op in PRODUCTS and tuple(node.shape) == self.shape: products.append(node)
            elif _is_elementwise(node, graph) and (node.name in made or _grows(node, graph)): chain.append(node)
            else: continue
            self.members.add(node.name)
            if node in chain: reached |= set(node.refs())
        _need(products and len(chain) <= MOST_TAIL)
        return products, chain[::-1]

    def _made(self):
        "The names of what depends on products of the scores' shape, by elementwise operations."
        made = set()
        for node in self.graph.nodes:
            if node.op in PRODUCTS and tuple(node.shape) == self.shape: made.add(node.name)
            elif _is_elementwise(node, self.graph) and made & set(node.refs()): made.add(node.name)
        return made

    def leading(self, products, chain):
        "The factor on the scores ahead of other operations, and the terms of a sum of products."
        scale = 1.0
        while node := next((n for n in chain if {*n.refs()} == {p.name for p in products}), None):
            if any(len(self.graph.users(p.name)) > 1 for p in products): break
            if len(products) == 1 and (factor := _factor(node)): scale *= factor
            elif len(products) != 2 or node.op != 'add' or node.kwargs: break
            products, chain = [node], [n for n in chain if n is not node]
        _need(len(products) == 1)
        return scale, products[0].name, chain

    def read(self):
        self.forward()
        self.backward()
        self.tail()
        products, chain = self.scores()
        scale, start, chain = self.leading(products, chain)
        _need(self.top.name in {start, *(n.name for n in chain)})
        batch, (Lq, Lk) = self.shape[:-2], self.shape[-2:]
        terms = tuple((self.operand(p.args[0].name, (*batch, Lq, self.graph[p.args[0].name].shape[-1])),
                       _turned(self.operand(p.args[1].name, (*batch, self.graph[p.args[1].name].shape[-2], Lk))))
                      for p in products)
        values = self.operand(self.product.args[1].name, (*batch, Lk, self.product.shape[-1]))
        if not chain: scale, self.exponent = scale * self.exponent, 1.0
        mine = {start, *(n.name for n in chain)}
        reads = dict.fromkeys(r for n in chain for r in n.refs() if r not in mine)
        operands = tuple((r, self.operand(r)) for r in reads)
        spec = AttentionSpec((), self.shape, terms, values, None, self.dtype, scale, self.exponent, tuple(chain), (start,),
                             operands, tuple(dict.fromkeys(self.planes)), self.sink)
        return _with_out(spec, self)

def _turned(operand): return operand[0], replace(operand[1], axes=(*operand[1].axes[:-2], *operand[1].axes[:-3:-1]))

def _factor(node):
    "The number that a node multiplies by; None where it does not."
    if node.op == 'mul' and len(node.refs()) == 1:
        return next((float(a) for a in node.args if not isinstance(a, Ref)), None)
    if node.op == 'div' and len(node.args) == 2 and not node.kwargs and not isinstance(node.args[1], Ref):
        return 1 / node.args[1]

def _is_elementwise(node, graph):
    node = logical_form(node)
    kinds = {node.dtype, *(graph[r].dtype for r in node.refs())}
    return node.op in ELEMENTWISE_OPS and bool(node.refs()) and not any('int' in d for d in kinds) and '16' not in node.dtype

def _grows(node, graph):
    "Whether a result is larger than each of its operands."
    return math.prod(node.shape) > max(math.prod(graph[r].shape) for r in node.refs())

def all_views(spec: AttentionSpec) -> list[tuple[str, StridedView]]:
    "(tensor, view) of everything that the pass reads."
    return [*(o for term in spec.terms for o in term), spec.values, *(o for _, o in spec.operands),
            *([spec.sink] if spec.sink else [])]

def _with_out(spec, reader):
    "(the spec with its loops, the node whose result it writes): through transpositions and reshapes, where they allow."
    graph, chain = reader.graph, [reader.product]
    while chain[-1].name not in graph.outputs and len(users := graph.users(chain[-1].name)) == 1:
        if users[0].op not in (*RESHAPES, 'transpose', 'permute', 'swapaxes'): break
        chain.append(users[0])
    rank = len(spec.shape) - 2
    for node in reversed(chain):
        base, view = view_of(node.name, _cut(graph, reader.product))
        if base != reader.product.name: continue
        out = inverse_view(view, tuple(reader.product.shape)) if node is not reader.product else whole_view(
            tuple(node.shape))
        if out is None or out.stride(-2) is None or out.stride(-1) != 1 and node.shape[-1] > 1: continue
        found = common_loops([v for _, v in all_views(spec)] + [out], rank)
        if found is None: continue
        takes = tuple(dict.fromkeys(name for name, _ in all_views(spec)))
        return replace(spec, out=out, takes=takes, loops=tuple(found[0]), strides=tuple(map(tuple, found[1]))), node
    raise _NoAttention

def _cut(graph, node):
    "The graph with a node as an input: views are followed to it and not through it."
    return Graph((*graph.inputs, replace(node, op='input', args=(), kwargs={})),
                 tuple(n for n in graph.nodes if n is not node), graph.outputs)

def _is_supported(spec):
    one = lambda view, axis: view.stride(axis) is not None
    return all(one(v, -1) and one(v, -2) for _, v in all_views(spec))

def attention_at(graph: Graph, node: Node) -> tuple[AttentionSpec, Node] | None:
    "(what the pass around a softmax computes, the node whose result it writes); None where there is no such pass."
    try: spec, out = _Reader(graph, node).read()
    except _NoAttention: return None
    return (spec, out) if _is_supported(spec) else None
