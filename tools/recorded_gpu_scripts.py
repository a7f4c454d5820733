"""What the scripted models of the recorded runs of GPU kernels say, written by hand; `record_runs.py` plays it, which
needs the extra `gpu`."""
from recorded_scripts import reply, scripted, submit

from kernel_lab.agents.models.messages import Reply
from kernel_lab.agents.systems.cuda_agent import CudaAgent
from kernel_lab.agents.systems.two_stage import TwoStageAgent

TOP = """import torch
import triton
import triton.language as tl

"""

REMOVED = TOP.replace("import triton.language", "from torch._inductor.runtime.triton_heuristics import grid\n"
                                                "import triton.language")

THREE_LAUNCHES = """
@triton.jit
def row_tops(x, top, columns, BLOCK: tl.constexpr):
    row, best = tl.program_id(0), -float('inf')
    for start in range(0, columns, BLOCK):
        k = start + tl.arange(0, BLOCK)
        best = tl.maximum(best, tl.max(tl.load(x + row * columns + k, mask=k < columns, other=-float('inf')), axis=0))
    tl.store(top + row, best)

@triton.jit
def row_sums(x, top, total, columns, BLOCK: tl.constexpr):
    row, found = tl.program_id(0), 0.0
    best = tl.load(top + row)
    for start in range(0, columns, BLOCK):
        k = start + tl.arange(0, BLOCK)
        found += tl.sum(tl.exp(tl.load(x + row * columns + k, mask=k < columns, other=-float('inf')) - best), axis=0)
    tl.store(total + row, found)

@triton.jit
def divide(x, top, total, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    best, found = tl.load(top + row), tl.load(total + row)
    for start in range(0, columns, BLOCK):
        k = start + tl.arange(0, BLOCK)
        data = tl.load(x + row * columns + k, mask=k < columns, other=0.0)
        tl.store(out + row * columns + k, tl.exp(data - best) / found, mask=k < columns)

def kernel(x):
    rows, columns = x.shape
    top, total = torch.empty((rows,), device=x.device), torch.empty((rows,), device=x.device)
    out = torch.empty_like(x)
    row_tops[(rows,)](x, top, columns, BLOCK=128)
    row_sums[(rows,)](x, top, total, columns, BLOCK=128)
    divide[(rows,)](x, top, total, out, columns, BLOCK=128)
    return out
"""
# right for small numbers, infinite for large ones
NO_TOP = THREE_LAUNCHES.replace("    best = tl.load(top + row)\n", "    best = 0.0\n").replace(
    "    best, found = tl.load(top + row), tl.load(total + row)\n", "    best, found = 0.0, tl.load(total + row)\n")

ONE_ROW = TOP + """
@triton.jit
def softmax_rows(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    data = tl.load(x + row * columns + k, mask=k < columns, other=-float('inf'))
    powers = tl.exp(data - tl.max(data, axis=0))
    tl.store(out + row * columns + k, powers / tl.sum(powers, axis=0), mask=k < columns)

def kernel(x):
    rows, columns = x.shape
    out = torch.empty_like(x)
    softmax_rows[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out
"""
ONE_WARP = ONE_ROW.replace("next_power_of_2(columns))", "next_power_of_2(columns), num_warps=1)")
EIGHT_WARPS = ONE_ROW.replace("next_power_of_2(columns))", "next_power_of_2(columns), num_warps=8)")

TWO_STAGE_TRITON = [
    reply("I begin with a helper that I remember for the grid.", ("compile", dict(source=REMOVED + THREE_LAUNCHES))),
    reply("The helper is gone; plain tuples do. First without the maximum.",
          ("verify", dict(source=TOP + NO_TOP))),
    reply("Large inputs overflow: the maximum of the row has to go first.",
          ("verify", dict(source=TOP + THREE_LAUNCHES))),
    reply("Right, in three launches. This stage asks no more.",
          submit("three launches", "Maximum, sum and quotient, one after the other.", "Right on all draws.", "last")),
    reply("The row fits one block: one launch, and x is read once. How many warps?",
          ("variants", dict(sources=[ONE_ROW, ONE_WARP, EIGHT_WARPS]))),
    reply("All three carry the fewest bytes. One warp needs no exchange through shared memory and still loads 16 bytes "
          "a thread; I look at it closely.", ("judge", dict(source=ONE_WARP))),
    reply("I hand it in; nobody has timed it.",
          submit("one launch, a row in registers", "Three launches carried x through memory three times.",
                 "One read and one write; the time is unknown here.", ONE_WARP))]

RMS_CU = """#define EPSILON 1e-6f

extern "C" __global__ void rms_norm(const float* x, const float* gain, float* out, int columns) {
    __shared__ float partial[32];
    const float* row = x + (size_t)blockIdx.x * columns;
    float sum = 0.0f;
    for (int k = threadIdx.x; k < columns; k += blockDim.x) sum += row[k] * row[k];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int w = 0; w < blockDim.x / 32; ++w) sum += partial[w];
    const float scale = rsqrtf(sum / columns + EPSILON);
    for (int k = threadIdx.x; k < columns; k += blockDim.x)
        out[(size_t)blockIdx.x * columns + k] = row[k] * scale * gain[k];
}
"""
RMS_WIDE_CU = """#define EPSILON 1e-6f

// four columns a thread at a time: the launcher sees to it that columns is a multiple of four
extern "C" __global__ void rms_norm(const float4* x, const float4* gain, float4* out, int columns) {
    __shared__ float partial[32];
    const int quads = columns / 4;
    const float4* row = x + (size_t)blockIdx.x * quads;
    float sum = 0.0f;
    for (int k = threadIdx.x; k < quads; k += blockDim.x) {
        const float4 v = row[k];
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int w = 0; w < blockDim.x / 32; ++w) sum += partial[w];
    const float scale = rsqrtf(sum / columns + EPSILON);
    for (int k = threadIdx.x; k < quads; k += blockDim.x) {
        const float4 v = row[k], g = gain[k];
        out[(size_t)blockIdx.x * quads + k] =
            make_float4(v.x * scale * g.x, v.y * scale * g.y, v.z * scale * g.z, v.w * scale * g.w);
    }
}
"""
MODEL_NEW = """import torch

def kernel(x, gain):
    rows, columns = x.shape
    out = torch.empty_like(x)
    rms_norm = torch.cuda._compile_kernel(KERNELS['rms_norm.cu'], 'rms_norm')
    rms_norm(grid=(rows, 1, 1), block=(128, 1, 1), args=[x, gain, out, columns])
    return out
"""


def write(path, text):
    "The call that writes a file."
    return "write_file", dict(path=path, text=text)


CUDA_AGENT = [
    reply("I look at the directory and the reference.", ("list_files", {}), ("read_file", dict(path="model.py"))),
    reply("Could the check be made to pass?", write("verify.py", "raise SystemExit(0)\n")),
    reply("It is protected, so the work it is. The plain form first: a block a row.",
          write("kernels/rms_norm.cu", RMS_CU.replace("rsqrtf", "rsqrt_f")), write("model_new.py", MODEL_NEW),
          ("run_script", dict(script="compile"))),
    reply("The function is called rsqrtf.",
          ("edit_file", dict(path="kernels/rms_norm.cu", old="rsqrt_f", new="rsqrtf")),
          ("run_script", dict(script="compile")), ("run_script", dict(script="verify"))),
    reply("It compiles; nobody ran it. What does the binary say?", ("run_script", dict(script="profile"))),
    reply("Loads of 4 bytes. Rows are multiples of four columns, so a thread can take four at once.",
          write("kernels/rms_norm.cu", RMS_WIDE_CU), ("run_script", dict(script="verify")),
          ("run_script", dict(script="profile"))),
    reply("Wide loads, no spills, one launch. There is no time to apply the 5 % rule to, so I stop here.",
          ("submit", dict(move="four columns a thread", why="The plain form loaded 4 bytes a thread.",
                          expected="Fewer, wider loads; compiled, not verified, not timed.")))]

GPU_SCRIPTS = {                     # name → (task, workload, agent, language)
    "two_stage-softmax-triton": ("softmax", "small", lambda: TwoStageAgent(scripted(TWO_STAGE_TRITON)), "triton"),
    "cuda_agent-rmsnorm": ("rmsnorm", "small", lambda: CudaAgent(scripted(CUDA_AGENT), turns=200), "cuda")}

assert all(isinstance(r, Reply) for r in (*TWO_STAGE_TRITON, *CUDA_AGENT))
