"""Python that a kernel may hold around its loops: each turn must see the value of its own turn, whether or not the
loop stayed one."""
import numpy as np
import pytest
from kernel_lab.nki import ArraySpec, assert_ok, execute
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.lang.trace import trace_source

X = np.arange(32, dtype=np.float32).reshape(4, 8) + 1
LOAD, STORE = "t = nl.load(x[i:i+1, :])", "nl.store(out[i:i+1, :], t)"
HEAD = """import numpy as np
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
N = 0
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
"""


def ran(body):
    text = HEAD + "".join(f"    {line}\n" for line in body.strip("\n").split("\n")) + "    return out\n"
    program = assert_ok(trace_source(text, None, [ArraySpec(X.shape)]))
    np.testing.assert_array_equal(interpret(program, X)[0], execute(program, X)[0])
    return execute(program, X)[0]


def each(condition, setup=""):
    "A loop that multiplies by ten the rows for which a condition on i holds."
    return (
        f"{setup}\nfor i in nl.affine_range(4):\n    {LOAD}\n    if {condition}: t = nl.multiply(t, 10.0)\n    {STORE}"
    )


@pytest.mark.parametrize(
    "condition, rows",
    [
        ("i", [1, 2, 3]),
        ("not i", [0]),
        ("i == 2", [2]),
        ("i != 2", [0, 1, 3]),
        ("i in (1, 3)", [1, 3]),
        ("i in {1, 3}", [1, 3]),
        ("i % 2", [1, 3]),
        ("i & 1", [1, 3]),
        ("i >> 1", [2, 3]),
        ("i / 2 == 1", [2]),
        ("i // 1.5 == 1", [2]),
        ("i * 0.5 > 1", [3]),
        ("abs(i - 3) == 3", [0]),
        ("divmod(i, 2)[1]", [1, 3]),
        ("i ** 2 == 9", [3]),
        ("{0: 1, 3: 1}.get(i)", [0, 3]),
        ("1 <= i < 3", [1, 2]),
        ("i > 0 and i < 3", [1, 2]),
        ("max(i, 2) == 3", [3]),
        ("[0, 1, 0, 1][i]", [1, 3]),
        ("bool(i) == False", [0]),
        ("float(i) == 1.0", [1]),
    ],
)
def test_conditions(condition, rows):
    want = X.copy()
    want[rows] *= 10
    np.testing.assert_array_equal(ran(each(condition)), want)


@pytest.mark.parametrize("body", [
    f"n = 0\nfor i in nl.affine_range(4):\n    {LOAD}\n    nl.store(out[n:n+1, :], t)\n    n += 1",
    f"n = [0]\nfor i in nl.affine_range(4):\n    {LOAD}\n    nl.store(out[n[0]:n[0]+1, :], t)\n    n[0] += 1",
    f"n = iter(range(4))\nfor i in nl.affine_range(4):\n    {LOAD}\n    k = next(n)\n    nl.store(out[k:k+1, :], t)",
    f"n = 0\ndef bump():\n    nonlocal n\n    n += 1\n    return n - 1\nfor i in nl.affine_range(4):\n    {LOAD}\n    "
    "k = bump()\n    nl.store(out[k:k+1, :], t)",
    f"global N\nN = 0\nfor i in nl.affine_range(4):\n    {LOAD}\n    nl.store(out[N:N+1, :], t)\n    N = N + 1",
    f"for n, i in enumerate(nl.affine_range(4)):\n    {LOAD}\n    nl.store(out[n:n+1, :], t)",
    f"for n, i in zip(range(4), nl.affine_range(4)):\n    {LOAD}\n    nl.store(out[n:n+1, :], t)",
    "ts = [nl.load(x[i:i+1, :]) for i in nl.affine_range(4)]\nfor k in range(4): nl.store(out[k:k+1, :], ts[k])",
    f"def rows():\n    for i in nl.affine_range(4): yield i\nn = 0\nfor i in rows():\n    {LOAD}\n    "
    "nl.store(out[n:n+1, :], t)\n    n += 1",
    f"for i in nl.affine_range(4): pass\nfor i in nl.affine_range(4):\n    {LOAD}\n    {STORE}",
])
def test_state_that_turns_hand_on(body): np.testing.assert_array_equal(ran(body), X)


def test_a_loop_stays_one_where_nothing_asks():
    text = HEAD + f"    for i in nl.affine_range(4):\n        {LOAD}\n        {STORE}\n    return out\n"
    assert len(trace_source(text, None, [ArraySpec(X.shape)]).body) == 1


def test_registers_go_on_over_turns():
    body = """s = nl.ndarray((4, 1), nl.float32)
t = nl.load(x)
for i in nl.affine_range(4):
    u = nisa.activation(np.copy, t[:, 2*i:2*i+2], reduce_op=np.add, reduce_res=s, reduce_cmd=(nisa.reduce_cmd.reset_reduce if i == 0 else nisa.reduce_cmd.reduce))
nl.store(out, nl.add(nl.multiply(t, 0.0), s))"""
    np.testing.assert_array_equal(ran(body), np.repeat(X.sum(1, keepdims=True), 8, axis=1))


def test_a_flag_that_depends_on_the_turn():
    body = """t, acc = nl.load(x), nl.zeros((8, 8), nl.float32, buffer=nl.psum)
for k in nl.affine_range(3): acc += nisa.nc_matmul(t, t)
nl.store(out, nl.copy(acc[0:4, :]))"""
    np.testing.assert_array_equal(ran(body), 3 * (X.T @ X)[:4])


@pytest.mark.parametrize(
    "lines, meaning",
    [
        ("c = nl.add(t, 1.0)\nu[...] = c\nu[...] = nl.multiply(u, 0.0)\nnl.store(out, c)", lambda x: x + 1),
        (
            "c = nl.add(t, 1.0)\nd = c[:, 0:8]\nu[...] = c\nu[...] = nl.multiply(u, 0.0)\nnl.store(out, d)",
            lambda x: x + 1,
        ),
        ("c = nl.add(t, 1.0)\nu[...] = c\nt[...] = c\nnl.store(out, nl.add(t, u))", lambda x: 2 * x + 2),
        (
            "u[...] = nl.sum(t, axis=1, keepdims=True)\nnl.store(out, u)",
            lambda x: np.repeat(x.sum(1, keepdims=True), 8, axis=1),
        ),
        ("b = t\nt[...] = nl.multiply(t, 2.0)\nnl.store(out, b)", lambda x: 2 * x),
        ("b = nl.copy(t)\nt[...] = nl.multiply(t, 2.0)\nnl.store(out, b)", lambda x: x),
    ],
)
def test_names_and_values(lines, meaning):
    np.testing.assert_array_equal(ran("t, u = nl.load(x), nl.ndarray((4, 8), nl.float32)\n" + lines), meaning(X))
