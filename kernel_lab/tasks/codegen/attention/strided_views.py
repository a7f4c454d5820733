"Views of a tensor as strides over its elements."
from collections.abc import Callable
from dataclasses import dataclass, replace
import math
from ..graph import Graph, Node, Ref
from ..lowering_rules import RESHAPES

@dataclass(frozen=True)
class StridedView:
    """Where the elements of a view lie in a contiguous tensor of `size` elements.

    Each axis of the view is a tuple of factors (count, stride in elements), the outermost first; a stride of 0
    repeats."""
    size: int
    axes: tuple[tuple[tuple[int, int], ...], ...]
    offset: int = 0

    @property
    def shape(self): return tuple(math.prod(n for n, _ in axis) for axis in self.axes)

    def stride(self, axis):
        "The stride of an axis that is one factor, 0 for one element; None where it has several factors."
        return None if len(self.axes[axis]) > 1 else self.axes[axis][0][1] if self.axes[axis] else 0

def _merged(factors):
    "Factors without those of one element, and neighbours as one where they are a longer run."
    found = []
    for n, s in factors:
        if n == 1: continue
        if found and found[-1][1] == n * s: found[-1] = (found[-1][0] * n, s)
        else: found.append((n, s))
    return tuple(found)

def whole_view(shape: tuple[int, ...]) -> StridedView:
    "A contiguous tensor as a view of itself."
    return StridedView(math.prod(shape), tuple(_merged([(n, math.prod(shape[k + 1:]))]) for k, n in enumerate(shape)))

def split_factors(factors: tuple, sizes: tuple[int, ...]) -> list[tuple] | None:
    "Factors cut into runs of these sizes; None where a size lies across two factors."
    left, found = [*factors][::-1], []
    for size in sizes:
        run = []
        while size > 1:
            if not left: return None
            n, s = left.pop()
            some = math.gcd(n, size)
            if some == 1: return None
            if some < n and some < size: return None
            run.append((some, s * (n // some)))
            if some < n: left.append((n // some, s))
            size //= some
        found.append(_merged(run))
    return found

def _reshaped(view, shape):
    axes = split_factors(_merged([f for axis in view.axes for f in axis]), shape)
    return None if axes is None else replace(view, axes=tuple(axes))

def _permuted(view, order): return replace(view, axes=tuple(view.axes[k] for k in order))

def _swapped(view, a=-2, b=-1):
    order = list(range(len(view.axes)))
    order[a], order[b] = order[b], order[a]
    return _permuted(view, order)

def _sliced(view, dim=0, start=None, end=None, step=1):
    n, s = view.shape[dim], view.stride(dim)
    if s is None or step != 1: return None
    a, b, _ = slice(start, end).indices(n)
    axes = list(view.axes)
    axes[dim] = _merged([(b - a, s)])
    return replace(view, axes=tuple(axes), offset=view.offset + a * s)

def _selected(view, dim, index):
    cut = _sliced(view, dim, index % view.shape[dim], index % view.shape[dim] + 1)
    return cut and replace(cut, axes=tuple(a for k, a in enumerate(cut.axes) if k != dim % len(cut.axes)))

def expanded_view(view: StridedView, shape: tuple[int, ...]) -> StridedView:
    "A view with its axes of one element repeated, and with axes before the first one."
    axes = [()] * (len(shape) - len(view.axes)) + list(view.axes)
    ones = [1] * (len(shape) - len(view.axes)) + list(view.shape)
    return replace(view, axes=tuple(((m, 0),) if n == 1 < m else a for a, n, m in zip(axes, ones, shape)))

def _interleaved(view, times, dim=None):
    if dim is None: return None
    axes = list(view.axes)
    axes[dim] = (*axes[dim], (times, 0)) if times > 1 else axes[dim]
    return replace(view, axes=tuple(axes))

_SPLIT_OPS = ('chunk', 'split', 'split_with_sizes', 'unbind')

def _part(view, whole, k):
    "The view of part `k` of what an operation splits."
    if whole.op == 'unbind': return _selected(view, (*whole.args[1:], 0)[0], k)
    dim = whole.kwargs.get('dim', (*whole.args[1:], 0, 0)[1])
    sizes = whole.args[1] if isinstance(whole.args[1], tuple) else (whole.shape[dim],) * (k + 1)
    start = sum(sizes[:k])
    return _sliced(view, dim, start, min(start + sizes[k], view.shape[dim]))

def _viewed(node, view, graph):
    "The view that a node makes of a view of its operand; None where it makes none."
    args, kwargs = node.args[1:], node.kwargs
    if node.op in RESHAPES: return _reshaped(view, node.shape)
    if node.op in ('expand', 'expand_as', 'broadcast_to'): return expanded_view(view, node.shape)
    if node.op == 'permute':
        order = args[0] if isinstance(args[0], tuple) else args
        return _permuted(view, [k % len(view.axes) for k in order])
    if node.op in ('transpose', 'swapaxes', 'swapdims'): return _swapped(view, *args, **kwargs)
    if node.op in ('t', 'mT') and len(view.axes) > 1: return _swapped(view)
    if node.op == 'slice': return _sliced(view, *args, **kwargs)
    if node.op == 'narrow': return _sliced(view, args[0], args[1], args[1] + args[2])
    if node.op == 'select': return _selected(view, *args, **kwargs)
    if node.op == 'repeat_interleave': return _interleaved(view, *args, **kwargs)

def view_of(name: str, graph: Graph) -> tuple[str, StridedView]:
    "(the tensor that a result is a view of, the `StridedView`); itself where it is none."
    node = graph[name]
    if node.args and isinstance(node.args[0], Ref):
        if node.op == 'getitem':
            whole = graph[node.args[0].name]
            if whole.op in _SPLIT_OPS and isinstance(whole.args[0], Ref):
                base, view = view_of(whole.args[0].name, graph)
                if found := _part(view, whole, node.args[1]): return base, found
        elif node.shape:
            base, view = view_of(node.args[0].name, graph)
            if (found := _viewed(node, view, graph)) and found.shape == tuple(node.shape): return base, found
    return name, whole_view(tuple(node.shape))

def inverse_view(view: StridedView, shape: tuple[int, ...]) -> StridedView | None:
    """Where the elements of a contiguous tensor of `shape` go when a view of them is written as contiguous.

    None where the view leaves some out or repeats some."""
    flat = [f for axis in view.axes for f in axis]
    if view.offset or any(s == 0 for _, s in flat) or math.prod(n for n, _ in flat) != math.prod(shape): return None
    places, after = [], 1
    for n, s in reversed(flat): places.append((s, n, after)); after *= n
    axes, stride = [], 1
    for size in reversed(shape):
        mine = sorted(((s, n, to) for s, n, to in places if stride <= s < stride * size), reverse=True)
        if math.prod(n for _, n, _ in mine) != size: return None
        axes.append(_merged([(n, to) for _, n, to in mine]))
        stride *= size
    return StridedView(view.size, tuple(axes[::-1]))

def common_loops(views: list[StridedView], rank: int) -> tuple[list[int], list[list[tuple]]] | None:
    """(sizes of loops, [factors of each loop] of each view) over the first `rank` axes, of the same sizes in all views.

    None where their factors have no common refinement."""
    sizes, strides = [], [[] for _ in views]
    for axis in range(rank):
        cuts = sorted({math.prod(n for n, _ in v.axes[axis][k:]) for v in views for k in range(len(v.axes[axis]) + 1)},
                      reverse=True)
        parts = [a // b for a, b in zip(cuts, cuts[1:])]
        if any(a % b for a, b in zip(cuts, cuts[1:])): return None
        for v, found in zip(views, strides):
            runs = split_factors(v.axes[axis], tuple(parts))
            if runs is None or any(len(r) > 1 for r in runs): return None
            found += [r[0][1] for r in runs]
        sizes += parts
    return sizes, strides

def _span_text(start, length, first):
    "The text of a slice from `start` on, a number or a text, behind the first `first` elements."
    if isinstance(start, int): return f'{first + start}:{first + start + length}' if isinstance(
        length, int) else f'{first + start}:{first + start} + {length}'
    at = f'{first} + {start}' if first else start
    return f'{at}:{at} + {length}'

def indexed_text(name: str, view: StridedView, loops: list[tuple], spans: list[tuple]) -> str | None:
    """The text of a part of a contiguous tensor `name`, whose axes are those of `spans`.

    `loops` are (index, count, stride), `spans` (start, length, count, stride) of slices; one of stride 0 is repeated.
    None where the strides do not nest."""
    all_of = [(s, n, k) for k, (*_, n, s) in enumerate([*loops, *spans]) if s and n > 1]
    shape, index, order, left, offset = [], [], [], view.size, view.offset
    for s, n, k in sorted(all_of, reverse=True):
        if left % s or s >= left or offset // s + n > left // s: return None
        first, offset = divmod(offset, s)
        shape.append(left // s)
        left = s
        if k < len(loops): index.append(f'{loops[k][0]} + {first}' if first else loops[k][0])
        else:
            index.append(_span_text(*spans[k - len(loops)][:2], first))
            order.append(k - len(loops))
    if left > 1: shape.append(left); index.append(str(offset))
    more = [k for k in range(len(spans)) if k not in order]
    shape, index, order = [*shape, *(1 for _ in more)], [*index, *('0:1' for _ in more)], [*order, *more]
    text = f'{name}.reshape({tuple(shape)})[{", ".join(index)}]'
    if order != sorted(order): text += f'.permute({tuple(order.index(k) for k in range(len(spans)))})'
    for k in more:
        if spans[k][2] > 1: text += f'.broadcast(dim={k}, size={spans[k][1]})'
    return text
