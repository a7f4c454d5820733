"""Random small kernels as source text, in both dialects, and what plain numpy makes of the same random program.

A kernel is drawn as a list of statements (`For`, `New`, `Op`). From one such list come the text of a kernel
(`render`) and, computed apart from kernel_lab by an eager interpreter (`Oracle`), the outputs: values in the dtypes
they are stored in, how far a result may be off (0: not one bit;
infinite: undefined, such as what a mask left out), and which elements were written."""
import random
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from hypothesis import assume, strategies as st

DTYPES = {
    "float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "int32": np.int32, "int16": np.int16,
    "uint8": np.uint8, "int8": np.int8, "uint16": np.uint16, "uint32": np.uint32}
FLOATS = ("float32", "bfloat16", "float16")
ULP = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


class Undefined(Exception):
    """The program reads what nobody wrote, or reaches outside a tensor: a kernel like this must be refused, or may be
    where it says so (`either`)."""
    def __init__(self, why, either=False):
        super().__init__(why)
        self.either = either


# --- statements ---

@dataclass(frozen=True)
class Lin:
    "const + Σ coefficient · loop variable."
    const: int = 0
    terms: tuple = ()

    def at(self, env): return self.const + sum(c * env[v] for v, c in self.terms)

    def __str__(self):
        parts = [f"{c} * {v}" if c != 1 else v
                 for v, c in self.terms] + ([str(self.const)] if self.const or not self.terms else [])
        return " + ".join(parts)


@dataclass(frozen=True)
class Ref:
    """Part of a tensor: for each dimension a `Lin` (an index) or (`Lin`, count, step); `form` says how slices are
    spelled."""
    name: str
    keys: tuple
    form: str = "slice"

    @property
    def shape(self): return tuple(k[1] for k in self.keys if isinstance(k, tuple))

    def numpy_key(self, env, shape):
        out = []
        for k, n in zip(self.keys, shape):
            start, count, step = (k[0].at(env), k[1], k[2]) if isinstance(k, tuple) else (k.at(env), 1, 1)
            if start < 0 or start + (count - 1) * step >= n:
                raise Undefined(f"{self.name}: {start}+{count}*{step} of {n}")
            out.append(slice(start, start + (count - 1) * step + 1, step) if isinstance(k, tuple) else start)
        return tuple(out)

    def __str__(self):
        if self.form == "whole": return self.name
        if self.form == "dots": return f"{self.name}[...]"
        axes, place = sum(isinstance(k, tuple) for k in self.keys), 0
        out = []
        for k in self.keys:
            if not isinstance(k, tuple): out.append(str(k)); continue
            start, count, step = k
            if self.form == "arange":
                where = ", ".join(":" if a == place else "None" for a in range(axes))
                out.append(f"{start} + {step} * nl.arange({count})[{where}]" if step !=
                           1 else f"{start} + nl.arange({count})[{where}]")
            elif self.form == "ds" and step == 1: out.append(f"nl.ds({start}, {count})")
            else: out.append(f"{start}:{start} + {(count - 1) * step + 1}" + (f":{step}" if step != 1 else ""))
            place += 1
        return f"{self.name}[{', '.join(out)}]"


@dataclass(frozen=True)
class Mask:
    "Σ coefficient · (position in the tile's axis) + lin < limit."
    axes: tuple         # a coefficient for each axis of the tile
    lin: Lin
    limit: int
    shape: tuple

    def bits(self, env):
        grids = np.meshgrid(*[np.arange(n) for n in self.shape], indexing="ij")
        return sum(c * g for c, g in zip(self.axes, grids)) + self.lin.at(env) < self.limit

    def __str__(self):
        place = lambda a: ", ".join(":" if k == a else "None" for k in range(len(self.shape)))
        parts = [f"{c} * nl.arange({n})[{place(a)}]" for a, (c, n) in enumerate(zip(self.axes, self.shape)) if c]
        return f"{' + '.join([*parts, str(self.lin)])} < {self.limit}"


@dataclass(frozen=True)
class New:
    "A tensor declared here; `blocks` block dimensions stand before the partition dimension (earlier dialect)."
    name: str
    shape: tuple
    dtype: str
    where: str = "sbuf"
    blocks: int = 0
    zeros: bool = False


@dataclass(frozen=True)
class For:
    var: str
    count: int
    kind: str
    body: list = field(hash=False)


@dataclass(frozen=True)
class Op:
    "One instruction: destination (a Ref, or a New that is declared by it), operands by name, attributes, mask."
    op: str
    dst: object
    ins: dict = field(hash=False)
    at: dict = field(default_factory=dict, hash=False)
    mask: Mask | None = None


# --- numpy ---

def _act(f, slope): return lambda x, e: (f(x), slope(x, e) + 2.0**-20 * (1 + np.abs(f(x))))
def _plain(f): return lambda x, e: (f(x), e)


UNARY = {
    "copy": _plain(lambda x: x), "relu": _plain(lambda x: np.maximum(x, np.float32(0))), "abs": _plain(np.abs),
    "square": lambda x, e: (np.square(x), 2 * np.abs(x) * e + e * e), "tanh": _act(np.tanh, lambda x, e: e),
    "exp": _act(np.exp, lambda x, e: np.exp(np.abs(x) + e) * e), "sigmoid": _act(lambda x: 1 / (1 + np.exp(-x)),
                                                                                 lambda x, e: e)}
WAVES = {
    f: lambda x, e, g=g: (g(x), np.where(np.abs(x) < 1e3, e + 2.0 ** -20 * (1 + np.abs(x)), np.inf))
    for f, g in (("sin", np.sin), ("cos", np.cos))}
COMPARE = {"less": np.less, "greater_equal": np.greater_equal, "equal": np.equal, "not_equal": np.not_equal}
BINARY = {
    "add": lambda a, ea, b, eb: (a + b, ea + eb), "subtract": lambda a, ea, b, eb: (a - b, ea + eb),
    "multiply": lambda a, ea, b, eb: (a * b, np.abs(a) * eb + np.abs(b) * ea + ea * eb), "maximum": lambda a, ea, b, eb:
    (np.maximum(a, b), np.maximum(ea, eb)), "minimum": lambda a, ea, b, eb: (np.minimum(a, b), np.maximum(ea, eb))}


def _binary(op, a, ea, b, eb):
    "fp32 result and error of one ALU operation."
    if op in COMPARE:
        unsure = (ea + eb > 0) & ~(np.abs(a - b) > ea + eb)
        return COMPARE[op](a, b).astype(np.float32), np.where(unsure, np.inf, 0.0)
    v, e = BINARY[op](a, ea, b, eb)
    e = np.where(np.isnan(e), np.inf, e)         # undefined times nothing is undefined
    return v, np.where(e > 0, e + 2.0**-23 * np.abs(v), e)


def _sum_error(x, e, axis, keepdims=False):
    "Error of a sum in any order: none where everything is a small multiple of 2^-10."
    fine = np.all(x * 1024 == np.rint(x * 1024), axis=axis, keepdims=keepdims) & (np.sum(
        np.abs(x), axis=axis, keepdims=keepdims) < 2 ** 13)
    return np.sum(e, axis=axis, keepdims=keepdims) + np.where(
        fine, 0.0, x.size * 2.0 ** -23 * np.sum(np.abs(x), axis=axis, keepdims=keepdims))


def _whole(v, dtype):
    "fp32 as integers: nearest, ties to even; what is out of range stays at its end, NaN is 0."
    most = np.iinfo(dtype)
    near = np.rint(np.where(np.isnan(v), 0, v).astype(np.float64))
    return np.where(near > most.max, most.max, np.where(near < most.min, most.min, near)).astype(np.int64).astype(dtype)


# what an operand does not hold, the result does not hold
POINTWISE = {"copy", "unary", "binary", "scalar", "scalar_tensor", "affine_select"}


class Oracle:
    "Runs a statement list eagerly: `values`, `errors`, `written` by tensor name."
    def __init__(self, dialect, inputs):
        self.dialect, self.info = dialect, {}
        self.values = {k: v.copy() for k, v in inputs.items()}
        self.errors = {k: np.zeros(v.shape) for k, v in inputs.items()}
        self.written = {k: np.ones(v.shape, bool) for k, v in inputs.items()}
        # the turns of loops in which something was written; the present one
        self.turns, self.turn, self.carried = [()], (), False
        self.stamps = {k: np.zeros(v.shape, int) for k, v in inputs.items()}
        self.holes = [
        ]  # of the operands of the present statement, which elements of the result they leave without a value

    def run(self, body, env):
        for s in body:
            if isinstance(s, For):
                before = self.turn
                for k in range(s.count):
                    self.turn = (*before, (s.var, k, s.kind))
                    self.run(s.body, {**env, s.var: k})
                self.turn = before
            elif isinstance(s, New): self.new(s)
            else: self.op(s, env)

    def new(self, s):
        self.info[s.name] = s
        self.values[s.name] = np.zeros(s.shape, DTYPES[s.dtype])
        self.errors[s.name] = np.full(s.shape, 0.0 if s.zeros else np.inf)
        self.written[s.name] = np.full(s.shape, s.zeros)
        self.stamps[s.name] = np.zeros(s.shape, int)

    def note_carried(self, stamps):
        "Whether what is read was written in another turn of an affine loop that is still running."
        for then in {self.turns[k] for k in np.unique(stamps)}:
            other = next(((a, b) for a, b in zip(then, self.turn) if a != b), None)
            if other and other[0][0] == other[1][0] and other[1][2] == "nl.affine_range": self.carried = True

    def read(self, x, env, mask=None):
        "(fp32 values, errors) of an operand; numbers too."
        if not isinstance(x, Ref): return np.float32(x), 0.0
        key = x.numpy_key(env, self.values[x.name].shape) if mask is None else self._masked_key(x, env, mask)
        seen = self.written[x.name][key]
        if not (seen if mask is None or mask.shape != x.shape else seen | ~mask).all(): self.handed_on(x, seen, mask)
        self.note_carried(self.stamps[x.name][key])
        return self.values[x.name][key].astype(np.float32), self.errors[x.name][key]

    def handed_on(self, x, seen, mask):
        """An operand with holes: pointwise the result has them too, lane by lane or turned; otherwise, and from HBM,
        it is a mistake. Under a mask it may be either."""
        lanes = seen.reshape(len(seen), -1)
        whole = (lanes.all(1) | ~lanes.any(1)).all()
        fine = seen.any() and (self.what in POINTWISE or self.what == "reduce" and whole or self.what == "transpose")
        if mask is not None or self.info[x.name].where in ("hbm", "scratch") or not fine:
            raise Undefined(f"{x.name} is read before it is written", mask is not None)
        self.holes.append(lanes.any(1) if self.what == "reduce" else lanes.T if self.what == "transpose" else seen)

    def _masked_key(self, x, env, mask):
        "An index of arrays that only the mask keeps inside."
        shape, n = self.values[x.name].shape, iter(np.meshgrid(*map(np.arange, x.shape), indexing="ij"))
        key = [k[0].at(env) + k[2] * next(n) if isinstance(k, tuple) else np.full(x.shape, k.at(env)) for k in x.keys]
        for k, most in zip(key, shape):
            if ((k < 0) | (k >= most))[np.broadcast_to(mask, k.shape)].any():
                raise Undefined(f"{x.name} is left under its mask")
        return tuple(np.clip(k, 0, most - 1) for k, most in zip(key, shape))

    def write(self, dst, env, v, e, mask=None):
        "Round to the tensor's dtype and store."
        if isinstance(dst, New): self.new(dst); dst = Ref(dst.name, tuple((Lin(), n, 1) for n in dst.shape))
        home, dtype = self.values[dst.name], self.values[dst.name].dtype
        key = dst.numpy_key(env, home.shape) if mask is None else self._masked_key(dst, env, mask)
        v, e = (np.broadcast_to(np.asarray(o).reshape(dst.shape) if np.size(o) == np.prod(dst.shape) else o, dst.shape)
                for o in (v, e))
        with np.errstate(all="ignore"): stored = _whole(v, dtype) if dtype.kind in "iu" else v.astype(dtype)
        if self.turns[-1] != self.turn: self.turns.append(self.turn)
        self.stamps[dst.name][key] = len(self.turns) - 1
        e = np.where(np.isnan(e), np.inf, e)
        e = np.where(e > 0, e + (1.0 if dtype.kind in "iu" else ULP[dtype.name] * np.abs(v)), e)
        if mask is None: home[key], self.errors[dst.name][key], self.written[dst.name][key] = stored, e, True; return
        key = tuple(k[mask] for k in key)
        home[key], self.errors[dst.name][key], self.written[dst.name][key] = stored[mask], e[mask], True
        # a masked write on chip counts as a write of all of the tile: the rest is undefined, not unwritten
        if self.info[dst.name].where not in ("hbm", "scratch"):
            self.written[dst.name][...] = True

    def op(self, s, env):
        mask = None if s.mask is None else s.mask.bits(env)
        if (mask is not None and not mask.any()) or ("left" in s.at and not s.at["left"].bits(env).any()):
            for x in s.ins.values():
                # nothing is done, but a compiler may not see that
                if isinstance(x, Ref): self.note_carried(self.stamps[x.name])
            if isinstance(s.dst, New): self.new(s.dst)
            # undefined, as what a mask leaves out of a tile
            if self.info[s.dst.name].where not in ("hbm", "scratch"): self.written[s.dst.name][...] = True
            return
        self.what, self.holes = s.op, []
        ins = {k: self.read(x, env, mask) for k, x in s.ins.items() if x is not None}
        with np.errstate(all="ignore"): v, e = getattr(self, "do_" + s.op)(ins, s.at, s, env)
        self.write(s.dst, env, v, e, mask)
        for bits in self.holes: self.leave_out(s.dst, env, bits)

    def leave_out(self, dst, env, bits):
        "What was written without a value, according to one operand: all of it, or a bit a partition."
        shape = dst.shape
        bits = np.broadcast_to(
            bits.reshape(shape if bits.size == np.prod(shape) else (len(bits), *[1] * (len(shape) - 1))), shape)
        key = ... if isinstance(dst, New) else dst.numpy_key(env, self.values[dst.name].shape)
        self.written[dst.name][key] &= bits

    # one method an instruction; each gives fp32 values and errors

    def do_copy(self, ins, at, s, env): return ins["src"]
    do_load = do_store = do_copy

    def do_memset(self, ins, at, s, env): return np.float32(at["value"]), 0.0

    def do_unary(self, ins, at, s, env):
        x, e = ins["data"]
        if "scale" in at: x, e = _binary("multiply", x, e, np.float32(at["scale"]), 0.0)
        if "bias" in ins: x, e = _binary("add", x, e, *(o.reshape(len(o), *[1] * (x.ndim - 1)) for o in ins["bias"]))
        return (UNARY | WAVES)[at["func"]](x, e)

    def do_binary(self, ins, at, s, env): return _binary(at["op"], *ins["data1"], *ins["data2"])

    def do_scalar(self, ins, at, s, env):
        y = ins["data"]
        for k in ("0", "1"):
            if "op" + k not in at: continue
            o, eo = ins["operand" + k]
            if np.ndim(o): o, eo = (a.reshape(len(a), *[1] * (y[0].ndim - 1)) for a in (o, eo))
            y = _binary(at["op" + k], o, eo, *y) if at.get("reverse" + k) else _binary(at["op" + k], *y, o, eo)
        return y

    def do_scalar_tensor(self, ins, at, s, env):
        o, eo = ins["operand0"]
        if np.ndim(o): o, eo = (a.reshape(len(a), *[1] * (ins["data"][0].ndim - 1)) for a in (o, eo))
        return _binary(at["op1"], *_binary(at["op0"], *ins["data"], o, eo), *ins["operand1"])

    def do_reduce(self, ins, at, s, env):
        (x, e), axis = ins["data"], tuple(at["axis"])
        if "left" in at:        # a mask on the reduced axis
            keep = at["left"].bits(env)[0]
            x, e = x[:, keep], e[:, keep]
        if at["op"] == "add": v, e = np.sum(x, axis=axis, dtype=np.float32), _sum_error(x, e, axis)
        else: v, e = (np.max if at["op"] == "maximum" else np.min)(x, axis=axis), np.max(e, axis=axis)
        return (-v if at.get("negate") else v), e

    def do_matmul(self, ins, at, s, env):
        (a, ea), (b, eb) = ins["stationary"], ins["moving"]
        parts = a[:, :, None] * b[:, None, :]
        errors = np.abs(a)[:, :, None] * eb[:, None, :] + np.abs(b)[:, None, :] * ea[:, :, None] + (ea[:, :, None] *
                                                                                                    eb[:, None, :])
        v, e = parts.astype(np.float64).sum(0).astype(np.float32), _sum_error(parts, errors, 0)
        name = s.dst.name
        there = not isinstance(s.dst, New) and self.written[name].all()
        if at.get("flag") and not there: raise Undefined(f"accumulate=True adds to {name}, which nobody wrote")
        if at["accumulate"] and there: v, e = _binary("add", v, e, self.values[name], self.errors[name])
        return v, e

    def do_transpose(self, ins, at, s, env): return tuple(o.reshape(len(o), -1).T for o in ins["data"])

    def do_iota(self, ins, at, s, env):
        grids = np.meshgrid(*map(np.arange, s.dst.shape), indexing="ij")
        return (at["offset"] + sum(c * g for c, g in zip(at["steps"], grids))).astype(np.float32), 0.0

    def do_affine_select(self, ins, at, s, env):
        keep = self.do_iota(ins, at, s, env)[0] >= 0
        (x, e), fill = ins["data"], np.float32(at["fill"])
        return np.where(keep, x, fill), np.where(keep, e, 0.0)


# --- text ---

def _current(s):
    "An Op as a line of the current dialect, after the declaration of a new tile."
    i, at = s.ins, s.at
    dst = s.dst.name if isinstance(s.dst, New) else s.dst
    steps = lambda: (
        f"pattern={[[c, n] for c, n in zip(at['steps'][1:], s.dst.shape[1:])]}, offset={at['offset']},"
        f" channel_multiplier={at['steps'][0]}"
    )
    extra = "".join(f", op{k}=nl.{at['op' + k]}, operand{k}={i['operand' + k]}, "
                    f"reverse{k}={at.get('reverse' + k, False)}" for k in "01" if "op" + k in at)
    return {
        "load": lambda: f"nisa.dma_copy(dst={dst}, src={i['src']})",
        "store": lambda: f"nisa.dma_copy(dst={dst}, src={i['src']})",
        "copy": lambda: f"nisa.tensor_copy(dst={dst}, src={i['src']})",
        "memset": lambda: f"nisa.memset(dst={dst}, value={at['value']})",
        "unary": lambda: f"nisa.activation(dst={dst}, op=nl.{at['func']}, data={i['data']}" +
        (f", bias={i['bias']}" if "bias" in i else "") + (f", scale={at['scale']}" if "scale" in at else "") + ")",
        "binary": lambda: f"nisa.tensor_tensor(dst={dst}, data1={i['data1']}, data2={i['data2']}, "
        f"op=nl.{at['op']})", "scalar": lambda: f"nisa.tensor_scalar(dst={dst}, data={i['data']}{extra})",
        "scalar_tensor": lambda: f"nisa.scalar_tensor_tensor(dst={dst}, data={i['data']}, op0=nl.{at['op0']}, "
        f"operand0={i['operand0']}, "
        f"op1=nl.{at['op1']}, operand1={i['operand1']})",
        "reduce": lambda: f"nisa.tensor_reduce(dst={dst}, op=nl.{at['op']}, data={i['data']}, axis={at['axis']}" +
        (", negate=True)" if at.get("negate") else ")"), "matmul": lambda:
        f"nisa.nc_matmul(dst={dst}, stationary={i['stationary']}, moving={i['moving']}" + (f", accumulate={at['flag']})"
                                                                                           if "flag" in at else ")"),
        "transpose": lambda: f"nisa.nc_transpose(dst={dst}, data={i['data']}{at.get('engine', '')})",
        "iota": lambda: f"nisa.iota(dst={dst}, {steps()})",
        "affine_select": lambda: f"nisa.affine_select(dst={dst}, {steps()}, on_true_tile={i['data']}, "
        f"on_false_value={at['fill']}, cmp_op=nl.greater_equal)"}[s.op]()


def _earlier(s):
    "An Op as a line of the earlier dialect."
    i, at, new = s.ins, s.at, isinstance(s.dst, New)
    kind = f", dtype=nl.{s.dst.dtype if new else at.get('dtype', 'float32')}"
    if s.op == "store": return f"nl.store({s.dst}, value={i['src']}" + (f", mask={s.mask})" if s.mask else ")")
    mask = f", mask={s.mask or at.get('left')}" if s.mask or "left" in at else ""
    shape = s.dst.shape
    axis = lambda a: ", ".join(":" if a == k else "None" for k in range(len(shape)))
    grid = " + ".join([
        *(f"{c} * nl.arange({n})[{axis(a)}]" for a, (c, n) in enumerate(zip(at.get("steps", ()), shape))),
        str(at.get("offset"))])
    extra = "".join(f", op{k}=np.{at['op' + k]}, operand{k}={i['operand' + k]}, "
                    f"reverse{k}={at.get('reverse' + k, False)}" for k in "01" if "op" + k in at)
    text = {
        "load": lambda: f"nl.load({i['src']}{kind}{mask})", "copy": lambda: f"nisa.tensor_copy({i['src']}{kind}{mask})",
        "memset": lambda: f"nisa.memset({tuple(shape)}, {at['value']}{kind})", "unary": lambda:
        f"nisa.activation(op={'nl' if at['func'] in ('copy', 'relu', 'sigmoid') else 'np'}.{at['func']}, "
        f"data={i['data']}"
        + (f", bias={i['bias']}" if "bias" in i else "") + (f", scale={at['scale']}"
                                                            if "scale" in at else "") + f"{kind}{mask})",
        "binary": lambda: f"nisa.tensor_tensor({i['data1']}, {i['data2']}, op=np.{at['op']}{kind}{mask})",
        "scalar": lambda: f"nisa.tensor_scalar({i['data']}{extra}{kind}{mask})", "scalar_tensor": lambda:
        f"nisa.scalar_tensor_tensor(data={i['data']}, op0=np.{at['op0']}, operand0={i['operand0']}, "
        f"op1=np.{at['op1']}, "
        f"operand1={i['operand1']}{kind}{mask})",
        "reduce": lambda: f"nisa.tensor_reduce(np.{at['op']}, {i['data']}, axis={at['axis']}{kind}{mask}" +
        (", negate=True)"
         if at.get("negate") else ")"), "matmul": lambda: f"nisa.nc_matmul({i['stationary']}, {i['moving']})",
        "transpose": lambda: f"nisa.nc_transpose({i['data']}{at.get('engine', '')}{kind})",
        "iota": lambda: f"nisa.iota({grid}{kind})", "affine_select": lambda:
        f"nisa.affine_select(pred={grid} >= 0, on_true_tile={i['data']}, on_false_value={at['fill']}{kind})"}[s.op]()
    if new: return f"{s.dst.name} = {text}"
    return f"{s.dst} {'+=' if s.op == 'matmul' and at['accumulate'] else '='} {text}"


SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "less": "<", "greater_equal": ">="}


def _operator(s):
    "An Op as an expression of nl, in either dialect."
    i, at = s.ins, s.at
    if s.op == "reduce":
        return (
            f"{s.dst.name} = nl.{ {'add': 'sum', 'maximum': 'max', 'minimum': 'min'}[at['op']]}({i['data']},"
            f" axis={at['axis']})"
        )
    if s.op == "unary": return f"{s.dst.name} = nl.{at['func']}({i['data']})"
    a, b = i["data1"], i["data2"]
    return f"{s.dst.name} = {a} {SIGNS[at['op']]} {b}" if at["op"] in SIGNS and at[
        "sign"] else f"{s.dst.name} = nl.{at['op']}({a}, {b})"


def _declare(s, dialect):
    shape = "(" + ", ".join(f"nl.par_dim({n})" if s.blocks and k == s.blocks else str(n)
                            for k, n in enumerate(s.shape)) + ",)"
    where = {"hbm": "nl.shared_hbm", "scratch": "nl.private_hbm", "sbuf": "nl.sbuf", "psum": "nl.psum"}[s.where]
    return f"{s.name} = nl.{'zeros' if s.zeros else 'ndarray'}({shape}, dtype=nl.{s.dtype}, buffer={where})"


def render(recipe):
    "The text of a recipe's kernel."
    lines = {
        "nki": ["import nki", "import nki.isa as nisa", "import nki.language as nl"], "neuronxcc.nki": [
            "import neuronxcc.nki as nki", "import neuronxcc.nki.isa as nisa",
            "import neuronxcc.nki.language as nl"]}[recipe.dialect]
    lines = ["import numpy as np", *lines, "", "@nki.jit", f"def kernel({', '.join(recipe.inputs)}):"]

    def block(body, depth):
        pad = "    " * depth
        for s in body:
            if isinstance(s, For):
                lines.append(f"{pad}for {s.var} in {s.kind}({s.count}):")
                block(s.body, depth + 1)
            elif isinstance(s, New): lines.append(pad + _declare(s, recipe.dialect))
            elif "sign" in s.at: lines.append(pad + _operator(s))
            elif recipe.dialect == "nki":
                if isinstance(s.dst, New): lines.append(pad + _declare(s.dst, recipe.dialect))
                lines.append(pad + _current(s))
            else: lines.append(pad + _earlier(s))
    block(recipe.body, 1)
    return "\n".join([*lines, f"    return {', '.join(recipe.outputs)}", ""])


# --- random programs ---

@dataclass
class Recipe:
    "A random kernel: what `render` and `Oracle` read."
    dialect: str
    inputs: dict            # name -> (shape, dtype)
    outputs: list
    body: list
    seed: int = 0
    tile: New | None = None     # the loaded tile, there for mistakes to be made with

    def arrays(self):
        rng = np.random.default_rng(self.seed)
        draw = lambda shape, dtype: (rng.integers(0, 9, shape) if np.dtype(DTYPES[dtype]).kind in "iu" else rng.
                                     integers(-16, 17, shape) / 4).astype(DTYPES[dtype])
        return {k: draw(*v) for k, v in self.inputs.items()}

    def expected(self):
        "[(values, errors)] of the outputs; `Undefined` where the kernel must be refused."
        oracle = Oracle(self.dialect, self.arrays())
        oracle.run(self.body, {})
        self.carried = oracle.carried and self.dialect != "nki"
        for k in self.outputs:
            if not oracle.written[k].all(): raise Undefined(f"{k} is not written everywhere")
        return [(oracle.values[k], oracle.errors[k]) for k in self.outputs]

    def sound(self):
        "Whether nothing in the kernel may be refused."
        try: self.expected()
        except Undefined: return False
        return not self.carried


class Maker:
    "Draws a recipe statement by statement; `tiles` are the tensors that can be read here."
    def __init__(self, draw):
        self.draw, self.count = draw, 0
        self.dialect = draw(st.sampled_from(["nki", "neuronxcc.nki"]))
        self.old = self.dialect != "nki"
        self.p, self.f = self.pick(1, 2, 5, 32, 40, 64, 128), self.pick(1, 2, 3, 8, 16)
        self.reckless = self.chance(10)

    def pick(self, *options): return self.draw(st.sampled_from(options))
    def chance(self, percent): return self.draw(st.integers(0, 99)) >= 100 - percent
    def name(self, stem="t"): self.count += 1; return f"{stem}{self.count}"
    def dtype(self):
        return self.pick("float32", "float32", "bfloat16", "float16", "int32", "uint8", "int8",
                         "uint16") if self.chance(40) else "float32"

    def whole(self, t):
        "A reference to all of a tile, in one of its spellings."
        forms = ["slice", "whole", "dots", "ds"] + (["arange"] * 2 if self.old and len(t.shape) > 1 else [])
        return Ref(t.name, tuple((Lin(), n, 1) for n in t.shape), self.pick(*forms))

    def part(self, t, columns=False):
        "Some of a tile: a block of partitions that engines can reach, free elements with a step."
        p = t.shape[0]
        start = self.pick(*[s for s in (0, 0, 32, 64, 96) if s < p])
        most = min(p - start, {32: 32, 64: 64, 96: 32}.get(start, p))
        keys = [(Lin(start), self.draw(st.integers(1, most)), 1)]
        for n in t.shape[1:]:
            first, step = self.draw(st.integers(0, n - 1)), self.pick(1, 1, 2)
            keys.append((Lin(first), self.draw(st.integers(1, (n - 1 - first) // step + 1)), step))
        return Ref(t.name, tuple(keys), self.pick("slice", *(["arange"] if self.old else ["ds"])))

    def readable(self, tiles, shape=None, where=("sbuf",), floats=False):
        return [
            t for t in tiles
            if t.where in where and (shape is None or t.shape == shape) and (not floats or t.dtype in FLOATS)]

    def dest(self, shape, tiles, where="sbuf", dtype=None):
        "Where a result goes: a new tile, or a tile of that shape that is there."
        there = [t for t in self.readable(tiles, shape, (where,)) if dtype in (None, t.dtype)]
        if there and self.chance(25):
            t = self.draw(st.sampled_from(there))
            return self.whole(t), t, t.dtype
        t = New(self.name(), shape, dtype or self.dtype(), where)
        return t, t, t.dtype

    def result(self, op, shape, tiles, ins, at=None, dtype=None, where="sbuf", mask=None):
        dst, t, kind = self.dest(shape, tiles, where, dtype)
        if not isinstance(dst, New) and self.old and op in ("memset", "iota") and len(shape) < 2: return []
        if t not in tiles: tiles.append(t)
        return [Op(op, dst, ins, {**(at or {}), "dtype": kind}, mask)]

    # the statements; each returns a list, empty where there is nothing to work on

    def unary(self, tiles):
        t = self.draw(st.sampled_from(tiles))
        ins, at = {"data": self.whole(t)}, {"func": self.pick(*UNARY)}
        if self.chance(30): at["scale"] = self.pick(0.5, -2.0, 1.0, 0.25)
        column = [c for c in tiles if c.shape == (t.shape[0], 1) and c.dtype == "float32" and c.where == "sbuf"]
        if column and self.chance(30): ins["bias"] = self.whole(self.draw(st.sampled_from(column)))
        return self.result("unary", t.shape, tiles, ins, at)

    def binary(self, tiles):
        a = self.draw(st.sampled_from(tiles))
        same = [t for t in tiles if t.shape == a.shape and not (t.where == a.where == "psum")]
        if not same: return []
        b = self.draw(st.sampled_from(same))
        return self.result("binary", a.shape, tiles, {"data1": self.whole(a), "data2": self.whole(b)},
                           {"op": self.pick(*BINARY, *COMPARE)})

    def scalar(self, tiles):
        t = self.draw(st.sampled_from(tiles))
        columns = [c for c in tiles if c.shape == (t.shape[0], 1) and c.dtype == "float32" and c.where == "sbuf"]
        ins, at = {"data": self.whole(t)}, {}
        for k in "01" if self.chance(50) else "0":
            at |= {"op" + k: self.pick(*BINARY, *COMPARE), "reverse" + k: self.chance(25)}
            ins["operand" + k] = self.whole(self.draw(
                st.sampled_from(columns))) if columns and self.chance(40) else self.pick(0.0, 1.0, -0.5, 2.0, 3.25)
        return self.result("scalar", t.shape, tiles, ins, at)

    def scalar_tensor(self, tiles):
        a = self.draw(st.sampled_from(tiles))
        same = [t for t in tiles if t.shape == a.shape and not (t.where == a.where == "psum")]
        if not same: return []
        at = {"op0": self.pick(*BINARY, *COMPARE), "op1": self.pick(*BINARY, *COMPARE)}
        ins = {
            "data": self.whole(a), "operand0": self.pick(1.0, 0.5, -2.0),
            "operand1": self.whole(self.draw(st.sampled_from(same)))}
        return self.result("scalar_tensor", a.shape, tiles, ins, at)

    def reduce(self, tiles):
        t = self.draw(st.sampled_from(tiles))
        first = self.draw(st.integers(1, len(t.shape) - 1))
        left = t.shape[:first] if first > 1 else (t.shape[0], 1)
        at = {
            "op": self.pick("add", "maximum", "minimum"), "axis": list(range(first, len(t.shape))),
            "negate": self.chance(20)}
        return self.result("reduce", left, tiles, {"data": self.whole(t)}, at, dtype="float32")

    def copy_part(self, tiles):
        "Move or overwrite a part of a tile, in place."
        t = self.draw(st.sampled_from(self.readable(tiles) or tiles))
        if t.where != "sbuf": return []
        part = self.part(t)
        if self.chance(40) and not self.old:
            return [Op("memset", part, {}, {"value": self.pick(0.0, 1.0, -3.0), "dtype": t.dtype})]
        other = Ref(t.name, part.keys, self.pick("slice", "ds"))
        return [
            Op("scalar", part, {"data": other, "operand0": 2.0},
               {"op0": self.pick("add", "multiply"), "dtype": t.dtype})]

    def shift(self, tiles):
        "A tile's columns copied over their neighbours: source and destination overlap."
        wide = [t for t in self.readable(tiles) if len(t.shape) == 2 and t.shape[1] > 1]
        if not wide: return []
        t = self.draw(st.sampled_from(wide))
        n, by, rows = t.shape[1], self.draw(st.integers(1, t.shape[1] - 1)), (Lin(), t.shape[0], 1)
        left, right = Ref(t.name, (rows, (Lin(), n - by, 1))), Ref(t.name, (rows, (Lin(by), n - by, 1)))
        dst, src = (left, right) if self.chance(50) else (right, left)
        if self.chance(50): return [Op("copy", dst, {"src": src}, {"dtype": t.dtype})]
        return [Op("binary", dst, {"data1": src, "data2": dst}, {"op": self.pick("add", "maximum"), "dtype": t.dtype})]

    def memset(self, tiles):
        shape = self.pick((self.p, self.f), (self.p, 1))
        t = New(self.name(), shape, self.dtype())
        tiles.append(t)
        return [Op("memset", t, {}, {"value": self.pick(0.0, 1.0, 2.0), "dtype": t.dtype})]

    def iota(self, tiles):
        t = New(self.name(), (self.p, self.f), self.pick("int32", "float32"))
        tiles.append(t)
        return [
            Op("iota", t, {}, {
                "steps": (self.pick(0, 1, -1, 3), self.pick(1, -1, 2)), "offset": self.draw(st.integers(-5, 9)),
                "dtype": t.dtype})]

    def affine_select(self, tiles):
        some = [t for t in self.readable(tiles, floats=True) if len(t.shape) == 2]
        if not some: return []
        t = self.draw(st.sampled_from(some))
        new = New(self.name(), t.shape, t.dtype)
        tiles.append(new)
        at = {
            "steps": (self.pick(0, 1, -1), self.pick(1, -1)), "offset": self.draw(st.integers(-5, 9)),
            "fill": self.pick(0.0, -1.0, 9.5), "dtype": t.dtype}
        return [Op("affine_select", new, {"data": self.whole(t)}, at)]

    def matmul(self, tiles):
        some = [t for t in self.readable(tiles, floats=True) if len(t.shape) == 2]
        if not some: return []
        a = self.draw(st.sampled_from(some))
        fits = [t for t in some if t.shape[0] == a.shape[0] and (t.dtype == "float32") == (a.dtype == "float32")]
        b = self.draw(st.sampled_from(fits))
        t = New(self.name(), (a.shape[1], b.shape[1]), "float32", "psum")
        out = New(self.name(), t.shape, self.dtype())
        tiles += [t, out]
        return [
            Op("matmul", t, {"stationary": self.whole(a), "moving": self.whole(b)},
               {"accumulate": False, "dtype": "float32"}),
            Op("copy", out, {"src": self.whole(t)}, {"dtype": out.dtype})]

    def accumulate(self, tiles):
        "PSUM filled over a loop of matmuls, then copied out."
        some = [t for t in self.readable(tiles, floats=True) if len(t.shape) == 2]
        if not some: return []
        a = self.draw(st.sampled_from(some))
        b = self.draw(
            st.sampled_from([
                t for t in some if t.shape[0] == a.shape[0] and (t.dtype == "float32") == (a.dtype == "float32")]))
        acc = New(self.name("acc"), (a.shape[1], b.shape[1]), "float32", "psum", zeros=self.old)
        out = New(self.name(), acc.shape, "float32")
        tiles += [out]
        step = Op("matmul", Ref(acc.name, tuple((Lin(), n, 1) for n in acc.shape), "dots"),
                  {"stationary": self.whole(a), "moving": self.whole(b)}, {"accumulate": True, "dtype": "float32"})
        loop = For(self.name("k"), self.pick(1, 2, 3),
                   self.pick("nl.affine_range", "nl.sequential_range", "nl.static_range"), [step])
        if not self.old and self.chance(60): return self.flagged(acc, step, out)
        return [
            acc, loop,
            Op("copy", out, {"src": Ref(acc.name, tuple((Lin(), n, 1)
                                                        for n in acc.shape), "dots")}, {"dtype": "float32"})]

    def flagged(self, acc, step, out):
        "Matmuls that say whether they overwrite or add; a reckless one adds to nothing."
        first = self.pick(False, None) if not self.reckless else self.pick(True, False)
        flags = [first, *(self.pick(True, True, None, False) for _ in range(self.draw(st.integers(0, 3))))]
        said = lambda f: Op("matmul", step.dst, step.ins, {**step.at, "accumulate": f is not False, "flag": f})
        rest = [
            For(self.name("k"), self.pick(1, 2), self.pick("nl.affine_range", "nl.static_range"),
                [said(self.pick(True, None))])] if self.chance(40) else []
        return [
            acc, *map(said, flags), *rest,
            Op("copy", out, {"src": Ref(acc.name, step.dst.keys, "dots")}, {"dtype": "float32"})]

    def scaled(self, tiles):
        "Numbers large enough to leave a small integer's range, and halves, stored in one."
        some = self.readable(tiles)
        if not some: return []
        t = self.draw(st.sampled_from(some))
        new = New(self.name(), t.shape, self.pick("uint8", "int8", "int16", "uint16", "int32"))
        tiles.append(new)
        return [
            Op(
                "scalar", new, {
                    "data": self.whole(t), "operand0": self.pick(0.5, -3.5, 100.0, -20000.0, 1e6),
                    "operand1": self.pick(0.5, -0.5, 70.0)}, {"op0": "multiply", "op1": "add", "dtype": new.dtype})]

    def wave(self, tiles):
        "The current dialect's sine of any angle."
        some = self.readable(tiles, floats=True)
        if self.old or not some: return []
        t = self.draw(st.sampled_from(some))
        if t.dtype != "float32": return []
        new = New(self.name(), t.shape, "float32")
        tiles.append(new)
        return [Op("unary", new, {"data": self.whole(t)}, {"func": self.pick("sin", "cos"), "sign": False})]

    def transpose(self, tiles):
        some = [t for t in self.readable(tiles, floats=True) if len(t.shape) == 2 and t.dtype == "float32"]
        if not some: return []
        t = self.draw(st.sampled_from(some))
        small = max(t.shape) <= 32 and self.chance(50)
        new = New(self.name(), t.shape[::-1], "float32", "sbuf" if small else "psum")
        tiles.append(new)
        return [
            Op("transpose", new, {"data": self.whole(t)}, {
                "engine": f", engine=nisa.{'engine.vector' if not self.old else 'vector_engine'}" if small else "",
                "dtype": "float32"})]

    def running(self, tiles):
        "A tile carried through a loop: set before, added to in every turn."
        some = self.readable(tiles, (self.p, self.f))
        if not some: return []
        acc, var = New(self.name("run"), (self.p, self.f), "float32"), self.name("k")
        inner = [acc, *tiles]
        step = [
            Op("binary", self.whole(acc),
               {"data1": self.whole(acc), "data2": self.whole(self.draw(st.sampled_from(some)))}, {
                   "op": self.pick("add", "subtract", "maximum"), "dtype": "float32"})]
        if self.chance(50): step = self.statements(inner, 1) + step
        if self.chance(30): step = [For(self.name("k"), self.pick(1, 2), "nl.sequential_range", step)]
        tiles.append(acc)
        return [
            Op("memset", acc, {}, {"value": self.pick(0.0, 1.0), "dtype": "float32"}),
            For(var, self.pick(1, 2, 4), self.pick("nl.sequential_range", "nl.static_range", "range"), step)]

    def filled(self, tiles):
        "A tile written column by column in a loop; perhaps not all of it."
        some = self.readable(tiles, (self.p, 1))
        if not some: return []
        t, var = New(self.name(), (self.p, self.f), "float32"), self.name("k")
        count = self.f - (self.reckless and self.chance(30))
        if not count: return []
        tiles.append(t)
        step = Op("copy", Ref(t.name, ((Lin(), self.p, 1), (Lin(0, ((var, 1),)), 1, 1))),
                  {"src": self.whole(self.draw(st.sampled_from(some)))}, {"dtype": "float32"})
        return [t, For(var, count, self.pick("nl.affine_range", "nl.sequential_range", "range"), [step])]

    def operator(self, tiles):
        "nl's functions and Python's signs, with nl's own choice of dtype."
        some = self.readable(tiles, floats=True)
        if not some: return []
        a = self.draw(st.sampled_from(some))
        near = [
            t for t in some
            if len(t.shape) == len(a.shape) and t.shape[0] == a.shape[0] and all(1 in (m, n) or m == n
                                                                                 for m, n in zip(a.shape, t.shape))]
        b, what = self.draw(st.sampled_from(near)), self.pick("binary", "binary", "unary", "reduce")
        at, ins, shape, dtype = {"sign": self.chance(50)}, {"data": self.whole(a)}, a.shape, a.dtype
        if what == "binary":
            shape, dtype = tuple(map(max, a.shape, b.shape)), a.dtype if a.dtype == b.dtype else "float32"
            ins, at = {"data1": self.whole(a),
                       "data2": self.whole(b)}, at | {"op": self.pick(*BINARY, "less", "greater_equal")}
        elif what == "unary": at |= {"func": self.pick("exp", "tanh", "relu", "square", "abs")}
        else:
            at, shape = at | {"op": self.pick("add", "maximum", "minimum"), "axis": [len(a.shape) - 1]
                              }, a.shape[:-1] if len(a.shape) > 2 else (a.shape[0], 1)
        t = New(self.name(), shape, dtype)
        tiles.append(t)
        return [Op(what, t, ins, at)]

    def bounce(self, tiles):
        "Through HBM and back: spread out, reversed in halves, or read twice."
        t = self.draw(st.sampled_from(self.readable(tiles) or tiles))
        if t.where != "sbuf" or len(t.shape) != 2: return []
        (p, f), far, back = t.shape, New(self.name("h"), (t.shape[0], 2 * t.shape[1] + 1), t.dtype,
                                         "scratch"), New(self.name(), t.shape, self.pick(t.dtype, "float32"))
        off, step = self.pick((0, 1), (0, 2), (1, 2), (1, 1))
        half = p // 2 if self.chance(50) else 0
        place = lambda a, n: Ref(far.name, ((Lin(a), n, 1),
                                            (Lin(off), f, step)), self.pick("slice", *(["arange"] if self.old else [])))
        rows = lambda a, n: Ref(t.name, ((Lin(a), n, 1), (Lin(), f, 1)))
        out = [far]
        if half:        # the two halves change places on the way out
            out += [
                Op("store", place(0, p - half), {"src": rows(half, p - half)}),
                Op("store", place(p - half, half), {"src": rows(0, half)})]
        else: out += [Op("store", place(0, p), {"src": self.whole(t)})]
        tiles.append(back)
        return [*out, Op("load", back, {"src": place(0, p)}, {"dtype": back.dtype})]

    def three(self, tiles):
        "A tile with two free dimensions, and one row of them used."
        some = [t for t in self.readable(tiles) if t.shape == (self.p, self.f) and self.f % 2 == 0]
        if not some: return []
        t = self.draw(st.sampled_from(some))
        deep = New(self.name(), (t.shape[0], 2, t.shape[1] // 2), "float32")
        row, flat = self.draw(st.integers(0, 1)), New(self.name(), (t.shape[0], t.shape[1] // 2), "float32")
        tiles += [deep, flat]
        part = Ref(deep.name, ((Lin(), t.shape[0], 1), Lin(row), (Lin(), t.shape[1] // 2, 1)), "slice")
        return [
            Op("copy", deep, {"src": self.whole(t)}, {"dtype": "float32"}) if not self.old else Op(
                "load", deep, {"src": Ref("y", tuple((Lin(), n, 1) for n in deep.shape))}, {"dtype": "float32"}),
            Op("scalar", flat, {"data": part, "operand0": 0.5},
               {"op0": self.pick("add", "multiply"), "dtype": "float32"})]

    def mask(self, shape):
        return Mask(self.pick((1, 0), (0, 1), (1, 1), (-1, 0), (1, -1), (0, -1)), Lin(),
                    self.draw(st.integers(-3, max(shape))), shape)

    def masked(self, tiles):
        "Earlier dialect: an instruction on part of a tile; the rest stays."
        some = [t for t in self.readable(tiles) if len(t.shape) == 2]
        if not self.old or not some: return []
        t = self.draw(st.sampled_from(some))
        other = self.draw(st.sampled_from([s for s in some if s.shape == t.shape]))
        full = lambda x: Ref(x.name, tuple((Lin(), n, 1) for n in x.shape), "arange")
        what, at = self.pick(("copy", {}), ("scalar", {"op0": self.pick("add", "multiply", "less")}), ("unary", {
            "func": self.pick("tanh", "square")}), ("binary", {"op": self.pick("subtract", "maximum")}))
        ins = {
            "copy": {"src": full(other)}, "scalar": {"data": full(other), "operand0": 3.0},
            "unary": {"data": full(other)}, "binary": {"data1": full(other), "data2": full(t)}}[what]
        return [Op(what, full(t), ins, at | {"dtype": t.dtype}, self.mask(t.shape))]

    def masked_reduce(self, tiles):
        "Earlier dialect: a reduction of the columns that a mask leaves."
        some = [t for t in self.readable(tiles) if len(t.shape) == 2]
        if not self.old or not some: return []
        t = self.draw(st.sampled_from(some))
        new, left = New(self.name(), (t.shape[0], 1), "float32"), Mask((0, self.pick(1, -1)), Lin(),
                                                                       self.draw(st.integers(-2, t.shape[1])), t.shape)
        tiles.append(new)
        data = Ref(t.name, tuple((Lin(), n, 1) for n in t.shape), "arange")
        return [
            Op("reduce", new, {"data": data},
               {"op": self.pick("add", "maximum"), "axis": [1], "left": left, "dtype": "float32"})]

    def untouched(self, tiles):
        "A tile that nobody wrote."
        if not self.reckless: return []
        t = New(self.name(), (self.p, self.f), "float32")
        tiles.append(t)
        return [t]

    def blocks(self, tiles):
        "Earlier dialect: a tensor with a block dimension, written and read block by block."
        some = self.readable(tiles, (self.p, self.f))
        if not self.old or not some: return []
        n, b, i, j = self.pick(2, 3), self.name("b"), self.name("k"), self.name("k")
        block = lambda v: Ref(b, (Lin(0, ((v, 1),)), (Lin(), self.p, 1), (Lin(), self.f, 1)), "slice")
        out, total = New(self.name(), (self.p, self.f), "float32"), New(b, (n, self.p, self.f), "float32", blocks=1)
        tiles.append(out)
        write = Op("scalar", block(i), {"data": self.whole(self.draw(st.sampled_from(some))), "operand0": 0.5},
                   {"op0": "multiply", "dtype": "float32"})
        return [
            total,
            For(i, n, "nl.affine_range", [write]),
            Op("memset", out, {}, {"value": 0.0, "dtype": "float32"}),
            For(j, n, "nl.sequential_range", [
                Op("binary", self.whole(out), {"data1": self.whole(out), "data2": block(j)},
                   {"op": "add", "dtype": "float32"})])]

    KINDS = ("scaled", "wave", "unary", "unary", "binary", "binary", "scalar", "scalar", "scalar_tensor", "reduce",
             "copy_part", "shift", "memset", "iota", "affine_select", "matmul", "accumulate", "transpose", "running",
             "filled", "untouched", "blocks", "operator", "operator", "bounce", "three", "masked", "masked_reduce")

    def statements(self, tiles, most):
        body = []
        for _ in range(self.draw(st.integers(1, most))): body += getattr(self, self.pick(*self.KINDS))(tiles)
        return body

    def recipe(self):
        n, m = self.pick(1, 2, 3), self.pick(1, 1, 2)
        tail = self.pick(0, 0, 1, self.p - 1) if self.old and self.p > 1 else 0
        rows, cols, i, j = n * self.p - tail, m * self.f, self.name("i"), self.name("i")
        kinds = self.pick("nl.affine_range", "nl.sequential_range",
                          "nl.static_range"), self.pick("nl.affine_range", "nl.static_range", "range")
        inputs = {
            "x": ((rows, cols), self.pick("float32", "float32", "bfloat16", "float16", "int32")),
            "v": ((self.p, 1), "float32")}
        if self.f % 2 == 0: inputs["y"] = (self.p, 2, self.f // 2), "float32"
        out = New("out", (rows, cols), self.pick("float32", "float32", "bfloat16", "float16"), "hbm")
        place = lambda name, form: Ref(name, ((Lin(0, ((i, self.p),)), self.p, 1),
                                              (Lin(self.reckless and self.chance(10) and 1 or 0,
                                                   ((j, self.f),)), self.f, 1)), form)
        mask = Mask((1, 0), Lin(0, ((i, self.p),)), rows, (self.p, self.f)) if tail else None
        form = "arange" if mask else self.pick("slice", *(["arange"] if self.old else ["ds"]))
        t, column = New(self.name(), (self.p, self.f),
                        self.pick("float32", inputs["x"][1])), New(self.name(), (self.p, 1), "float32")
        load = Op("load", t, {"src": place("x", form)}, {"dtype": t.dtype}, mask)
        outer = [column]
        head = [
            out,
            Op("load", column, {"src": Ref("v", ((Lin(), self.p, 1), (Lin(), 1, 1)))}, {"dtype": "float32"}),
            *(self.statements(outer, 2) if self.chance(40) else [])]
        tiles = [*outer, t]
        body = [load, *self.statements(tiles, 6)]
        final = self.draw(st.sampled_from(self.readable(tiles, (self.p, self.f))))
        body.append(
            Op(
                "store", place("out", form), {
                    "src": self.whole(final) if not mask else Ref(final.name, tuple(
                        (Lin(), k, 1) for k in final.shape), "arange")}, {}, mask))
        return Recipe(self.dialect, inputs, ["out"], [*head, For(i, n, kinds[0], [For(j, m, kinds[1], body)])],
                      self.draw(st.integers(0, 3)), t)


@st.composite
def recipes(draw): return Maker(draw).recipe()


class SeededMaker(Maker):
    """A maker whose choices come from one seed, without Hypothesis: ten times as fast, and the number names the program.
    Its tiles also have 32-bit unsigned integers, and its numbers are not only small ones."""
    NUMBERS = 0.0, -0.0, 1.0, -0.5, 3.25, 16777217.0, 3.0e38, 1e-42, 2147483647.0

    def __init__(self, seed):
        self.rng = random.Random(seed)
        super().__init__(self.choose)

    def choose(self, strategy):
        wrapped = getattr(strategy, "wrapped_strategy", strategy)
        if hasattr(wrapped, "elements"): return self.rng.choice(wrapped.elements)
        return self.rng.randint(wrapped.start, wrapped.end)

    def pick(self, *options):
        if len(options) > 2 and all(type(x) is float for x in options): options = *options, *self.NUMBERS
        return self.rng.choice(options)

    def chance(self, percent): return self.rng.randrange(100) >= 100 - percent

    def dtype(self): return "uint32" if self.chance(8) else super().dtype()

    KINDS = (*Maker.KINDS, "whole_numbers", "whole_numbers", "function", "operation", "on_columns")
    FUNCTIONS = "sqrt", "log", "tan", "arctan", "sign", "reciprocal", "floor", "ceil", "trunc", "negative", "rsqrt"

    def whole_numbers(self, tiles):
        "32-bit integers among themselves, where GpSimd computes exactly, and bits."
        some = [t for t in self.readable(tiles) if t.dtype in ("int32", "uint32")]
        if not some: return []
        a = self.rng.choice(some)
        b = self.rng.choice([t for t in some if t.shape == a.shape and t.dtype == a.dtype])
        op = self.pick("add", "multiply", "subtract", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor", "less")
        return self.result("binary", a.shape, tiles, {"data1": self.whole(a), "data2": self.whole(b)}, {"op": op}, a.dtype)

    def function(self, tiles):
        t = self.rng.choice(tiles)
        names = [f for f in self.FUNCTIONS if not self.old or hasattr(np, f)]
        return self.result("unary", t.shape, tiles, {"data": self.whole(t)}, {"func": self.pick(*names)})

    def operation(self, tiles):
        a = self.rng.choice(tiles)
        b = self.rng.choice([t for t in tiles if t.shape == a.shape])
        if a.where == b.where == "psum": return []
        op = self.pick("divide", "power", "logical_and", "logical_or", "less_equal", "greater", "multiply")
        return self.result("binary", a.shape, tiles, {"data1": self.whole(a), "data2": self.whole(b)}, {"op": op})

    def on_columns(self, tiles):
        "Every second column of two tiles."
        wide = [t for t in self.readable(tiles) if len(t.shape) == 2 and t.shape[1] > 2]
        if not wide: return []
        a = self.rng.choice(wide)
        b = self.rng.choice([t for t in wide if t.shape == a.shape])
        part = lambda t, k: Ref(t.name, ((Lin(), t.shape[0], 1), (Lin(k), (t.shape[1] - 1) // 2, 2)))
        ins, op = {"data1": part(a, 0), "data2": part(b, 1)}, self.pick("add", "maximum", "minimum", "subtract")
        return self.result("binary", (a.shape[0], (a.shape[1] - 1) // 2), tiles, ins, {"op": op})

    def statements(self, tiles, most):
        if most == 6: self.tiles = tiles         # those of the innermost loop
        return super().statements(tiles, most)

    def recipe(self):
        made = super().recipe()
        if not self.old and self.chance(50):        # the earlier dialect's loads name their dtype
            shape, _ = made.inputs["x"]
            made.inputs["x"] = shape, self.rng.choice(list(DTYPES))
        if not self.reckless: self.show(made, made.body[-1])
        return made

    def show(self, made, rows):
        "Every tile of the innermost loop becomes an output, so that nothing is computed in vain."
        columns = rows.body[0]
        for t in [t for t in self.tiles if len(t.shape) == 2]:
            (p, f), out = t.shape, New(self.name("o"), (rows.count * t.shape[0], columns.count * t.shape[1]), t.dtype, "hbm")
            if t.where == "psum":
                copied = New(self.name(), t.shape, t.dtype)
                columns.body.append(Op("copy", copied, {"src": self.whole(t)}, {"dtype": t.dtype}))
                t = copied
            place = Ref(out.name, ((Lin(0, ((rows.var, p),)), p, 1), (Lin(0, ((columns.var, f),)), f, 1)))
            columns.body.append(Op("store", place, {"src": self.whole(t)}))
            made.body.insert(0, out)
            made.outputs.append(out.name)


# --- values ---

def nasty(shape, dtype, seed=0, wild=2 / 3):
    "Values of a dtype: a share `wild` of them its extremes or any bits, the rest ordinary numbers."
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    any_bits = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind)[..., 0]
    if kind.kind == 'b': return any_bits.view(np.uint8) % 2 == 1
    if kind.names: return any_bits
    if kind.kind in 'iu':
        most = np.iinfo(kind)
        ends = [most.min, most.max, most.max - 1, 0, 1, most.max // 2 + 1, min(most.max, 2**24 + 1), max(most.min, -1)]
        ends, usual = np.array(ends, kind), rng.integers(0, 9, shape).astype(kind)
    else:
        most, least = ml_dtypes.finfo(kind), np.array([1], f'u{kind.itemsize}').view(kind)[0]
        with np.errstate(all='ignore'):
            ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, most.max, -most.max, most.tiny, 1.0, -1.0, least, -least],
                            np.float64).astype(kind)
            usual = rng.normal(size=shape).astype(kind)
    return np.choose(np.where(rng.random(shape) < wild, rng.integers(0, 2, shape), 2),
                     [rng.choice(ends, shape), any_bits, usual])


def bits_of(x, exact):
    "The bits of an array; unless `exact`, every NaN as the same one."
    x = np.ascontiguousarray(x)
    bits = x.view(f'u{x.dtype.itemsize}').copy()
    if not exact and not x.dtype.names and x.dtype.kind not in 'iub':
        with np.errstate(invalid='ignore'): bits[np.isnan(x)] = 1
    return bits


# --- mistakes: lines that no kernel may hold; {t} is a tile of {p} partitions and {f} columns ---

BOTH = """
w = nl.ndarray((129, 2), dtype=nl.float32, buffer=nl.sbuf); w[...] = 0.0
w = nl.ndarray(({p}, 4097), dtype=nl.float32, buffer=nl.psum); w[...] = 0.0
w = nl.ndarray(({p}, 100000), dtype=nl.float32, buffer=nl.sbuf); w[...] = 0.0
{t}[0:{p}, 0:{f} + 1] = 0.0
{t}[{p}:{p} + 1, 0:{f}] = 0.0
{t}[-{p} - 1:{p}, 0:{f}] = 0.0
{t}[0:{p}, 0:0] = 0.0
{t}[0:{p}, 0:{f}] = 'one'
{t}[0:{p}, 0:{f}] = None
{t}[0:{p}, 0:{f}, 0:1]
{t}[0.5]
{t}['a']
{t}[0, 0, 0, 0, 0, 0]
w = nl.ndarray((4, 4), dtype='float99')
w = nl.ndarray((4, 4), dtype=np.float64)
w = nl.ndarray((4, 4), dtype=None)
w = nl.ndarray((0, 4), dtype=nl.float32)
w = nl.ndarray((-1, 4), dtype=nl.float32)
w = nl.ndarray(('a', 4), dtype=nl.float32)
w = nl.ndarray(None, dtype=nl.float32)
w = nl.ndarray((), dtype=nl.float32)
w = nl.ndarray((4, 2.5), dtype=nl.float32)
w = nl.ndarray((4, 4), dtype=nl.float32, buffer='nowhere')
w = nl.ndarray((2 ** 40, 2 ** 40), dtype=nl.float32, buffer=nl.shared_hbm)
nisa.frobnicate({t})
nl.frobnicate({t})
if {t}: pass
for r in {t}: pass
{t} + 'a'
{t} @ {t}
np.exp({t})
np.asarray({t}) + 1
1 / 0
undefined_name
raise ValueError('no')
assert False
len(5)
float({t})
int({t})
range({t})
{t}.no_such()
nl.add({t}, None)
nl.add({t}, 'a')
nl.add(1.0, 2.0)
nl.exp(1.0)
nl.add({t}, {t}, colour=3)
nl.add({t}, nl.ndarray(({p}, {f} + 1), dtype=nl.float32))
nl.sum({t}, axis=0)
nl.sum({t}, axis=7)
nl.sum({t}, axis='x')
nl.sum({t}, axis=None)
nl.matmul({t}, None)
nl.transpose(3)
nl.where({t}, None, {t})
nl.load(None)
nl.load('x')
nl.store(out, 'three')
nl.zeros(({p}, 2), dtype=nl.float32, buffer=3)
{t}.reshape((7, 7, 7))
{t}.reshape('a')
{t}.broadcast_to((3, 3, 3))
for k in nl.affine_range(2.5): pass
for k in nl.affine_range('a'): pass
for k in nl.sequential_range(None): pass
for k in nl.affine_range({t}): pass
(lambda f: f(f))(lambda f: f(f))
raise SystemExit(3)
raise StopIteration
raise KeyError
"""
CURRENT = """
w = nl.ndarray(({p}, 513), dtype=nl.float32, buffer=nl.psum); w[...] = 0.0
nisa.memset(dst={t}, value='one')
nisa.memset(dst={t}, value=None)
nisa.memset(dst={t})
nisa.memset({t}, 0.0, colour=3)
nisa.memset(None, 0.0)
nisa.tensor_copy(dst={t}, src=x)
nisa.tensor_copy(dst={t}, src=nl.ndarray(({p}, {f} + 1), dtype=nl.float32))
nisa.dma_copy(dst={t}, src=7.0)
nisa.dma_copy(dst=nl.ndarray(({p}, {f}), dtype=nl.float32, buffer=nl.psum), src={t})
nisa.tensor_tensor(dst={t}, data1={t}, data2={t}, op='frobnicate')
nisa.tensor_tensor(dst={t}, data1={t}, data2={t}, op=None)
nisa.tensor_tensor(dst={t}, data1={t}, data2={t})
nisa.tensor_tensor(dst={t}, data1={t}, data2=1.0, op=nl.add)
nisa.tensor_scalar(dst={t}, data={t}, op0=nl.add, operand0='1')
nisa.tensor_scalar(dst={t}, data={t}, op0=nl.add, operand0=None)
nisa.tensor_scalar(dst={t}, data={t}, op0=nl.add, operand0=[1.0])
nisa.activation(dst={t}, op=nl.nonsense, data={t})
nisa.activation(dst={t}, op=None, data={t})
nisa.activation(dst={t}, op=nl.add, data={t})
nisa.activation(dst={t}, op=nl.exp, data={t}, scale='big')
nisa.activation(dst={t}, op=nl.exp, data={t}, bias={t}[0:{p}, 0:{f}].reshape(({p}, 1, {f})), reduce_res={t})
nisa.nc_matmul(dst={t}, stationary={t}, moving={t})
nisa.nc_matmul(dst=nl.ndarray(({f} + 1, {f}), dtype=nl.float32, buffer=nl.psum), stationary={t}, moving={t})
nisa.nc_matmul(dst=nl.ndarray(({f}, {f}), dtype=nl.float32, buffer=nl.psum), stationary={t}, moving=x)
nisa.nc_transpose(dst=nl.ndarray(({p}, {f} + 1), dtype=nl.float32, buffer=nl.psum), data={t})
nisa.nc_transpose(dst={t}, data='x')
nisa.tensor_reduce(dst={t}, op=nl.add, data={t}, axis=0)
nisa.tensor_reduce(dst={t}, op=nl.add, data={t}, axis=5)
nisa.tensor_reduce(dst={t}, op=nl.add, data={t}, axis='x')
nisa.tensor_reduce(dst={t}, op=nl.exp, data={t}, axis=1)
nisa.iota(dst={t}, pattern=3, offset=0)
nisa.iota(dst={t}, pattern=[[1, {f} + 1]], offset=0)
nisa.iota(dst={t}, pattern=[['a', {f}]], offset=0)
nisa.affine_select(dst={t}, pattern=[[1, {f}]], offset=0, channel_multiplier=1, on_true_tile=None, on_false_value=0.0)
nisa.affine_select(dst={t}, pattern=[[1, {f}]], offset=0, channel_multiplier=1, on_true_tile={t}, on_false_value=0.0, cmp_op='why')
nisa.select_reduce(dst={t}, predicate=1, on_true={t}, on_false=0.0)
nisa.reciprocal(dst={t}, data=2.0)
nisa.memset(dst={t}, value=0.0, engine='warp')
"""
EARLIER = """
nl.load(x[nl.arange({p})[:, None], 10000 + nl.arange({f})[None, :]])
nl.load({t}, mask=3)
nl.load(x, mask='rows')
nl.store({t}, None)
nl.store(None, {t})
nl.arange('a')
nl.arange(3)[0]
nl.mgrid[0:'a', 0:3]
nisa.nc_matmul({t}, x)
nisa.nc_matmul({t}, 1.0)
nisa.activation(op=np.exp, data=x)
nisa.activation(op=np.frobnicate, data={t})
nisa.activation(op='frobnicate', data={t})
nisa.tensor_tensor({t}, {t}, op='frobnicate')
nisa.tensor_tensor({t}, None, op=np.add)
nisa.tensor_scalar({t}, op0=np.add)
nisa.tensor_scalar({t}, op0=np.add, operand0='a')
nisa.tensor_reduce(np.add, {t}, axis=0)
nisa.tensor_reduce(np.add, {t}, axis=[])
nisa.memset(({p}, {f}), 'a', dtype=nl.float32)
nisa.memset((129, 2), 0.0, dtype=nl.float32)
nisa.iota(3, dtype=nl.int32)
nisa.affine_select(pred=3, on_true_tile={t}, on_false_value=0.0)
nisa.nc_transpose({t}, engine='warp')
nl.loop_reduce({t}, op=np.add, loop_indices=3)
nl.shared_constant('a')
nl.par_dim('a')
w = nl.ndarray((2, nl.par_dim(129), 2), dtype=nl.float32); w[0] = 0.0
w = nl.ndarray((2, nl.par_dim({p}), 2), dtype=nl.float32); w[2] = 0.0
"""
RETURNS = ("return", "return None", "return 'a'", "return 3.0", "return ()", "return t4", "return out, t4",
           "return [None]", "return out, 'a'", "return kernel", "return np.zeros(3)")


def lines_of(text): return [line for line in text.splitlines() if line]


@st.composite
def mistakes(draw):
    "(text of a kernel that holds one mistake, the line of the mistake or None where only a line is asked for)."
    maker = Maker(draw)
    maker.reckless = False
    recipe = maker.recipe()
    assume(recipe.sound())      # or the kernel may be refused for another line, with right
    lines = render(recipe).rstrip().splitlines()
    if draw(st.integers(0, 9)) == 0:
        lines[-1] = "    " + draw(st.sampled_from(RETURNS))
        return recipe, "\n".join(lines) + "\n", None
    bad = draw(st.sampled_from(lines_of(BOTH) + lines_of(CURRENT if recipe.dialect == "nki" else EARLIER)))
    at = next(k for k in range(len(lines) - 1, 0, -1)
              if f"{recipe.tile.name} = " in lines[k] or f"dst={recipe.tile.name}, src=x" in lines[k]) + 1
    pad = lines[at][:len(lines[at]) - len(lines[at].lstrip())]
    lines.insert(
        at, pad + bad.replace("{t}", recipe.tile.name).replace("{p}", str(recipe.tile.shape[0])).replace(
            "{f}", str(recipe.tile.shape[1])))
    return recipe, "\n".join(lines) + "\n", at + 1
