"""Triton kernels written for tasks of the lab: right ones of every kind, and wrong ones made of them by one change.

`RIGHT`: name → (task, dtype, text). `WRONG`: name → (of which right one, what is replaced by what, status, what must be
said)."""
HEAD = '''import torch
import triton
import triton.language as tl

'''


RELU_IN_TRITON = """import torch
import triton
import triton.language as tl

@triton.jit
def clip(x, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + k, tl.maximum(tl.load(x + k, mask=k < n, other=0.0), 0.0), mask=k < n)

def kernel(x):
    out, n = torch.empty_like(x), x.numel()
    clip[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)
    return out
"""


def rowwise(body, width='x.shape[-1]', names='x', load="tl.load(x + row * n + k, mask=k < n, other=0.0).to(tl.float32)", extra=''):
    "A kernel with a program for each row: `body` makes `y` of `v`, k, n."
    more = ', '.join(names.split())
    return HEAD + f'''@triton.jit
def rows({more}, out, n, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    v = {load}
{body}
    tl.store(out + row * n + k, y, mask=k < n)

def kernel({more}):
    out = torch.empty_like(x)
    n = {width}
    rows[(x.numel() // n,)]({more}, out, n, BLOCK=triton.next_power_of_2(n))
    return out
'''


def elementwise(expression, names='x', block=1024):
    "A kernel over all elements: `expression` of the loaded names."
    loads = '\n'.join(f'    {n} = tl.load({n}_ptr + k, mask=k < n, other=1.0).to(tl.float32)' for n in names.split())
    pointers, given = ', '.join(f'{n}_ptr' for n in names.split()), ', '.join(names.split())
    first = names.split()[0]
    return HEAD + f'''from triton.language.extra import libdevice

@triton.jit
def each({pointers}, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
{loads}
    tl.store(out + k, {expression}, mask=k < n)

def kernel({given}):
    out = torch.empty_like({first})
    n = {first}.numel()
    each[(triton.cdiv(n, {block}),)]({given}, out, n, BLOCK={block})
    return out
'''


SOFTMAX = rowwise('''    e = tl.exp(v - tl.max(v, axis=0))
    y = e / tl.sum(e, axis=0)''', load="tl.load(x + row * n + k, mask=k < n, other=-float('inf'))")

ONLINE = HEAD + '''@triton.jit
def online(x, out, n, BLOCK: tl.constexpr):
    row, most, total = tl.program_id(0), -float('inf'), 0.0
    for start in range(0, n, BLOCK):
        k = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + k, mask=k < n, other=-float('inf'))
        larger = tl.maximum(most, tl.max(v, axis=0))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(v - larger), axis=0)
        most = larger
    for start in range(0, n, BLOCK):
        k = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + k, mask=k < n, other=0.0)
        tl.store(out + row * n + k, tl.exp(v - most) / total, mask=k < n)

def kernel(x):
    out = torch.empty_like(x)
    online[(x.shape[0],)](x, out, x.shape[1], BLOCK=128)
    return out
'''

SPLIT = HEAD + '''@triton.jit
def parts(x, most, total, n, BLOCK: tl.constexpr):
    row, part, parts_ = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    k = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * n + k, mask=k < n, other=-float('inf'))
    m = tl.max(v, axis=0)
    tl.store(most + row * parts_ + part, m)
    tl.store(total + row * parts_ + part, tl.sum(tl.exp(v - m), axis=0))

@triton.jit
def combine(x, most, total, out, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    p = tl.arange(0, PARTS)
    m, t = tl.load(most + row * PARTS + p), tl.load(total + row * PARTS + p)
    top = tl.max(m, axis=0)
    whole = tl.sum(t * tl.exp(m - top), axis=0)
    k = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * n + k, mask=k < n, other=0.0)
    tl.store(out + row * n + k, tl.exp(v - top) / whole, mask=k < n)

def kernel(x):
    rows, n = x.shape
    out, most, total = torch.empty_like(x), torch.empty(rows, 4, device=x.device), torch.empty(rows, 4, device=x.device)
    parts[(rows, 4)](x, most, total, n, BLOCK=n // 4)
    combine[(rows, 4)](x, most, total, out, n, PARTS=4, BLOCK=n // 4)
    return out
'''

MATMUL = HEAD + '''@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc, input_precision='ieee')
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))

def kernel(x, w):
    M, K = x.shape
    N = w.shape[1]
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    product[(triton.cdiv(M, 64), triton.cdiv(N, 64))](x, w, out, M, N, K, BM=64, BN=64, BK=32)
    return out
'''
BATCHED = HEAD + '''@triton.jit
def batched(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    batch = tl.program_id(2)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(a + batch * M * K + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + batch * K * N + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc += tl.dot(x, y, input_precision='tf32x3')
    tl.store(c + batch * M * N + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))

def kernel(x, y):
    B, M, K = x.shape
    N = y.shape[2]
    out = torch.empty(B, M, N, dtype=x.dtype, device=x.device)
    batched[(triton.cdiv(M, 32), triton.cdiv(N, 64), B)](x, y, out, M, N, K, BM=32, BN=64, BK=16)
    return out
'''
SPLIT_K = HEAD + '''@triton.jit
def parts(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.program_id(0) * BK + tl.arange(0, BK)
    x = tl.load(a + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
    y = tl.load(b + k[:, None] * N + n[None, :], mask=n[None, :] < N, other=0.0)
    tl.atomic_add(c + m[:, None] * N + n[None, :], tl.dot(x, y, input_precision='ieee'), mask=(m[:, None] < M) & (n[None, :] < N))

def kernel(x, w):
    M, K = x.shape
    N = w.shape[1]
    out = torch.zeros(M, N, dtype=x.dtype, device=x.device)
    parts[(K // 64,)](x, w, out, M, N, K, BM=32, BN=64, BK=64)
    return out
'''
BLOCK_POINTERS = HEAD + '''@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    p = tl.make_block_ptr(a, (M, K), (K, 1), (tl.program_id(0) * BM, 0), (BM, BK), (1, 0))
    q = tl.make_block_ptr(b, (K, N), (N, 1), (0, tl.program_id(1) * BN), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        acc = tl.dot(tl.load(p, boundary_check=(0, 1), padding_option='zero'), tl.load(q, boundary_check=(0, 1), padding_option='zero'), acc, input_precision='ieee')
        p, q = tl.advance(p, (0, BK)), tl.advance(q, (BK, 0))
    r = tl.make_block_ptr(c, (M, N), (N, 1), (tl.program_id(0) * BM, tl.program_id(1) * BN), (BM, BN), (1, 0))
    tl.store(r, acc, boundary_check=(0, 1))

def kernel(x, w):
    M, K = x.shape
    N = w.shape[1]
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    product[(triton.cdiv(M, 32), triton.cdiv(N, 32))](x, w, out, M, N, K, BM=32, BN=32, BK=32)
    return out
'''
TRANSPOSE = HEAD + '''@triton.jit
def flipped(x, out, H, W, C, BC: tl.constexpr, BP: tl.constexpr):
    image, p, c = tl.program_id(1), tl.program_id(0) * BP + tl.arange(0, BP), tl.arange(0, BC)
    P = H * W
    tile = tl.load(x + image * P * C + p[:, None] * C + c[None, :], mask=(p[:, None] < P) & (c[None, :] < C), other=0.0)
    tl.store(out + image * P * C + c[:, None] * P + p[None, :], tl.trans(tile), mask=(c[:, None] < C) & (p[None, :] < P))

def kernel(x):
    B, H, W, C = x.shape
    out = torch.empty(B, C, H, W, dtype=x.dtype, device=x.device)
    flipped[(triton.cdiv(H * W, 32), B)](x, out, H, W, C, BC=triton.next_power_of_2(C), BP=32)
    return out
'''
ATTENTION = HEAD + '''@triton.jit
def flash(q, k, v, out, T, scale, D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr):
    i, d = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.arange(0, D)
    query = tl.load(q + i[:, None] * D + d[None, :]) * scale
    most, total, acc = tl.full((BQ,), -float('inf'), tl.float32), tl.zeros((BQ,), tl.float32), tl.zeros((BQ, D), tl.float32)
    for j0 in range(0, (tl.program_id(0) + 1) * BQ, BK):
        j = j0 + tl.arange(0, BK)
        s = tl.dot(query, tl.trans(tl.load(k + j[:, None] * D + d[None, :])), input_precision='ieee')
        s = tl.where(i[:, None] >= j[None, :], s, -float('inf'))
        larger = tl.maximum(most, tl.max(s, axis=1))
        e, shrink = tl.exp(s - larger[:, None]), tl.exp(most - larger)
        total = total * shrink + tl.sum(e, axis=1)
        acc = acc * shrink[:, None] + tl.dot(e, tl.load(v + j[:, None] * D + d[None, :]), input_precision='ieee')
        most = larger
    tl.store(out + i[:, None] * D + d[None, :], acc / total[:, None])

def kernel(q, k, v):
    T, D = k.shape
    out = torch.empty_like(q)
    flash[(T // 32,)](q, k, v, out, T, D ** -0.5, D=D, BQ=32, BK=32)
    return out
'''
SUM_ALL = HEAD + '''@triton.jit
def parts(x, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + k, mask=k < n, other=0.0), axis=0))

def kernel(x):
    out = torch.zeros({shape}, dtype=x.dtype, device=x.device)
    parts[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out
'''
EMBEDDING = HEAD + '''@triton.jit
def gather(index, table, out, n, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    at = tl.load(index + row)
    tl.store(out + row * n + k, tl.load(table + at * n + k, mask=k < n), mask=k < n)

def kernel(index, table):
    out = torch.empty(index.shape[0], table.shape[1], dtype=table.dtype, device=table.device)
    gather[(index.shape[0],)](index, table, out, table.shape[1], BLOCK=triton.next_power_of_2(table.shape[1]))
    return out
'''
INDEX_ADD = HEAD + '''@triton.jit
def copy(base, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + k, tl.load(base + k, mask=k < n), mask=k < n)

@triton.jit
def add(index, x, out, n, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(index + row) * n + k, tl.load(x + row * n + k, mask=k < n), mask=k < n)

def kernel(base, index, x):
    out = torch.empty_like(base)
    copy[(triton.cdiv(base.numel(), 1024),)](base, out, base.numel(), BLOCK=1024)
    add[(x.shape[0],)](index, x, out, x.shape[1], BLOCK=256)
    return out
'''
ARGMAX = HEAD + '''@triton.jit
def first(x, out, n, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + k, mask=k < n, other=-float('inf'))
    tl.store(out + row, tl.argmax(v, axis=0))

def kernel(x):
    out = torch.empty({shape}, dtype=torch.int32, device=x.device)
    first[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
'''
RECURRENCE = HEAD + '''@triton.jit
def step(a, b, c, d): return a * c, b * c + d

@triton.jit
def scan(decay, x, out, T, BLOCK: tl.constexpr):
    n, t = tl.program_id(0), tl.arange(0, BLOCK)
    a = tl.load(decay + n * T + t, mask=t < T, other=1.0)
    b = tl.load(x + n * T + t, mask=t < T, other=0.0)
    _, y = tl.associative_scan((a, b), 0, step)
    tl.store(out + n * T + t, y, mask=t < T)

def kernel(decay, x):
    out = torch.empty_like(x)
    scan[(x.shape[0],)](decay, x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
'''
COLUMN_SUM = HEAD + '''@triton.jit
def columns(x, out, R, C, BR: tl.constexpr, BC: tl.constexpr):
    c, total = tl.program_id(0) * BC + tl.arange(0, BC), tl.zeros((BC,), tl.float32)
    for r0 in range(0, R, BR):
        r = r0 + tl.arange(0, BR)
        total += tl.sum(tl.load(x + r[:, None] * C + c[None, :], mask=(r[:, None] < R) & (c[None, :] < C), other=0.0).to(tl.float32), axis=0)
    tl.store(out + c, total / R, mask=c < C)

def kernel(x):
    out = torch.empty({shape}, dtype=x.dtype, device=x.device)
    columns[(triton.cdiv(x.shape[1], 64),)](x, out, x.shape[0], x.shape[1], BR=32, BC=64)
    return out
'''
TUNED = HEAD + '''@triton.autotune([triton.Config({'BLOCK': b}) for b in (256, 1024, 4096)], key=['n'])
@triton.jit
def each(x, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + k, mask=k < n, other=0.0)
    tl.store(out + k, tl.where(v > 0, v, 0.01 * v), mask=k < n)

def kernel(x):
    out, n = torch.empty_like(x), x.numel()
    each[lambda meta: (triton.cdiv(n, meta['BLOCK']),)](x, out, n)
    return out
'''
LAYER_NORM = HEAD + '''@triton.jit
def norm(x, gain, bias, out, n, eps, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + k, mask=k < n, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=0) / n
    d = tl.where(k < n, v - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(d * d, axis=0) / n + eps)
    g, b = tl.load(gain + k, mask=k < n, other=0.0), tl.load(bias + k, mask=k < n, other=0.0)
    tl.store(out + row * n + k, d * scale * g + b, mask=k < n)

def kernel(x, gain, bias):
    out = torch.empty_like(x)
    norm[(x.shape[0],)](x, gain, bias, out, x.shape[1], 1e-5, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
'''
CROSS_ENTROPY = HEAD + '''@triton.jit
def loss(logits, target, out, n, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(logits + row * n + k, mask=k < n, other=-float('inf')).to(tl.float32)
    m = tl.max(v, axis=0)
    at = tl.load(target + row)
    right = tl.sum(tl.where(k == at, v, 0.0), axis=0)
    tl.store(out + row, m + tl.log(tl.sum(tl.exp(v - m), axis=0)) - right)

def kernel(logits, target):
    rows, n = logits.shape
    out = torch.empty(rows, dtype=logits.dtype, device=logits.device)
    loss[(rows,)](logits, target, out, n, BLOCK=triton.next_power_of_2(n))
    return out
'''

RMS_NORM = rowwise('''    g = tl.load(gain + k, mask=k < n, other=0.0)
    y = v * g / tl.sqrt(tl.sum(v * v, axis=0) / n + 1e-6)''', names='x gain')
L2 = rowwise('    y = v / tl.maximum(tl.sqrt(tl.sum(v * v, axis=0)), 1e-12)')

RIGHT = {
    'softmax, one pass': ('softmax', 'float32', SOFTMAX),
    'softmax, online': ('softmax', 'float32', ONLINE),
    'softmax, split': ('softmax', 'float32', SPLIT),
    'relu': ('relu', 'float32', elementwise('tl.maximum(x, 0.0)')),
    'relu, bfloat16': ('relu', 'bfloat16', elementwise('tl.maximum(x, 0.0)')),
    'gelu': ('gelu', 'float32', elementwise('0.5 * x * (1 + tl.erf(x * 0.7071067811865476))')),
    'gelu, bfloat16': ('gelu', 'bfloat16', elementwise('0.5 * x * (1 + tl.erf(x * 0.7071067811865476))')),
    'tanh of libdevice': ('tanh', 'float32', elementwise('libdevice.tanh(x)')),
    'silu': ('silu', 'float32', elementwise('x * tl.sigmoid(x)')),
    'add': ('add', 'float32', elementwise('a + b', 'a b')),
    'lerp': ('lerp', 'float32', elementwise('a + (b - a) * weight', 'a b weight')),
    'where': ('where', 'float32', elementwise('tl.where(keep > 0.5, a, b)', 'keep a b')),
    'rms norm': ('rmsnorm', 'float32', RMS_NORM), 'layer norm': ('layer_norm', 'float32', LAYER_NORM),
    'layer norm, bfloat16': ('layer_norm', 'bfloat16', LAYER_NORM),
    'log softmax': ('log_softmax', 'float32', rowwise('''    m = tl.max(v, axis=0)
    y = v - m - tl.log(tl.sum(tl.exp(v - m), axis=0))''', load="tl.load(x + row * n + k, mask=k < n, other=-float('inf'))")),
    'l2 normalise': ('l2_normalise', 'float32', L2),
    'matmul': ('matmul_rows', 'float32', MATMUL), 'matmul, bfloat16': ('matmul_rows', 'bfloat16', MATMUL.replace(", input_precision='ieee'", '')),
    'matmul, three TF32': ('matmul_rows', 'float32', MATMUL.replace("'ieee'", "'tf32x3'")),
    'matmul, TF32': ('matmul_rows', 'float32', MATMUL.replace(", input_precision='ieee'", '')),
    'matmul, block pointers': ('matmul_rows', 'float32', BLOCK_POINTERS),
    'matmul, batched': ('bmm', 'float32', BATCHED), 'matmul, split by atomics': ('long_contraction', 'float32', SPLIT_K),
    'transpose': ('channels_first', 'float32', TRANSPOSE), 'transpose, bfloat16': ('channels_first', 'bfloat16', TRANSPOSE),
    'cumsum': ('cumsum', 'float32', rowwise('    y = tl.cumsum(v, axis=0)')),
    'cumprod': ('cumprod', 'float32', rowwise('    y = tl.cumprod(v, axis=0)')),
    'recurrence': ('linear_recurrence', 'float32', RECURRENCE),
    'attention': ('causal_attention', 'float32', ATTENTION),
    'sum by atomics': ('sum_all', 'float32', SUM_ALL), 'embedding': ('embedding', 'float32', EMBEDDING),
    'index add by atomics': ('index_add', 'float32', INDEX_ADD), 'argmax': ('argmax_rows', 'float32', ARGMAX),
    'mean of columns': ('mean_columns', 'float32', COLUMN_SUM), 'mean of columns, bfloat16': ('mean_columns', 'bfloat16', COLUMN_SUM),
    'autotuned': ('leaky_relu', 'float32', TUNED), 'cross entropy': ('cross_entropy', 'float32', CROSS_ENTROPY),
}


def text_of(name):
    "(task, workload, text) of a right kernel; shapes of outputs that a task decides are filled in."
    from kernel_lab.tasks.suite.registry import get_task
    task, dtype, text = RIGHT[name]
    task = get_task(task)
    workload = task.smallest(dtype)
    return task, workload, text.replace('{shape}', str(tuple(task.outputs(workload)[0][0])))

WRONG = {
    'no mask on a load': ('relu', (', mask=k < n, other=1.0).to', ').to'), 'limit_exceeded', 'line 10: operand x: the load goes past the end', 'BLOCK=1024', 'BLOCK=8192'),
    'a mask that is too wide': ('silu', ('mask=k < n)', 'mask=k < n + 5)'), 'limit_exceeded', 'Its mask lets them through', 'BLOCK=1024', 'BLOCK=8192'),
    'before the beginning': ('relu', ('tl.load(x_ptr + k,', 'tl.load(x_ptr + k - 1,'), 'limit_exceeded', 'before the beginning of x'),
    'one block too few': ('relu', ('triton.cdiv(n, 1024)', 'n // 1024 - 1'), 'uninitialised', 'elements of output 0 were never written'),
    'an input that is written': ('relu', ('tl.store(out + k', 'tl.store(x_ptr + k'), 'input_written', 'line 11: operand x: the store goes into the input x'),
    'a lane without a value': ('layer norm', ('x + row * n + k, mask=k < n, other=0.0', 'x + row * n + k, mask=k < n'), 'not_finite', 'lanes that are switched off'),
    'a maximum that is not subtracted': ('softmax, one pass', ('v - tl.max(v, axis=0)', 'v'), 'not_finite', None),
    'a sum that is not rescaled': ('softmax, online', ('total * tl.exp(most - larger)', 'total'), 'wrong_result', None),
    'a mean over the block': ('layer norm', ('tl.sum(v, axis=0) / n', 'tl.sum(v, axis=0) / BLOCK'), 'wrong_result', None),
    'rows that race': ('cumsum', ('    tl.store(out + row * n + k, y, mask=k < n)', '    tl.store(out + (row + 1) % 128 * n + k, v, mask=k < n)\n    tl.store(out + row * n + k, y, mask=k < n)'), 'wrong_result', 'a race between programs'),
    'a sum without atomics': ('sum by atomics', ('tl.atomic_add(out, ', 'tl.store(out, tl.load(out) + '), 'implausible', 'reads what another program of the same launch writes'),
    'a buffer that nobody filled': ('matmul, split by atomics', ('torch.zeros(M', 'torch.empty(M'), 'uninitialised', 'reads what nobody wrote'),
    'the wrong axis': ('transpose', ('c[:, None] * P + p[None, :], tl.trans(tile)', 'c[None, :] + p[:, None] * C, tile'), None, None),
    'the diagonal left out': ('attention', ('i[:, None] >= j[None, :]', 'i[:, None] > j[None, :]'), 'not_finite', None),
    'the scale left out': ('attention', ('D ** -0.5', '1.0'), 'wrong_result', None),
    'float32 in half precision': ('matmul', ("tl.dot(x, y, acc, input_precision='ieee')", 'tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), acc)'), 'wrong_result', 'narrow operands'),
    'the last terms left out': ('matmul, bfloat16', ('range(0, K, BK)', 'range(0, K - BK, BK)'), 'wrong_result', None),
    'an index of the wrong type': ('argmax', ('torch.int32', 'torch.float32'), 'wrong_shape', 'output 0 has the wrong dtype'),
    'two outputs': ('relu', ('return out', 'return out, out'), 'wrong_shape', 'wrong number of outputs'),
    'torch does the rest': ('softmax, one pass', ('return out', 'return out.contiguous() + 0'), 'unsupported', 'torch does part of the work: add'),
    'an alternative that is wrong': ('autotuned', ('0.01 * v', '0.01 * v * (BLOCK < 4096)'), 'wrong_result', None),
    'an endless loop': ('relu', ('    tl.store(out', '    while tl.load(x_ptr + n - n) == tl.load(x_ptr):\n        k += 0\n    tl.store(out'), 'timeout', 'took too long'),
    'a block as condition': ('relu', ('    tl.store(out', '    if x.sum(axis=0) > k: x = x\n    tl.store(out'), 'trace_error', None),
    'too much shared memory': ('matmul, bfloat16', ('BM=64, BN=64, BK=32', 'BM=256, BN=256, BK=256'), 'limit_exceeded', 'more shared memory'),
    'a file in a kernel': ('relu', ('    tl.store(out', '    open("/etc/passwd")\n    tl.store(out'), None, 'line 11'),
}


def wrong_text(name):
    "(task, workload, text, status or None, what is said or None) of a wrong kernel."
    right, (old, new), status, says, *more = WRONG[name]
    task, workload, text = text_of(right)
    assert old in text, (name, old)
    text = text.replace(old, new, 1)
    for a, b in zip(more[::2], more[1::2]): text = text.replace(a, b)
    return task, workload, text, status, says
