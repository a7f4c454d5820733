"""What the scripted models of the recorded runs say, written by hand; `record_runs.py` plays it."""
import re

from kernel_lab.agents.models.messages import Reply
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.systems.beam import BeamAgent
from kernel_lab.agents.systems.guided import GuidedAgent
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.agents.systems.two_stage import TwoStageAgent

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 128


def tile(columns, dtype=nl.float32):
    return nl.ndarray((ROWS, columns), dtype=dtype, buffer=nl.sbuf)

"""

SOFTMAX = HEAD + """
@nki.jit
def masked_softmax(x, mask):
    rows, columns = x.shape
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(rows // ROWS):
        here = slice(i * ROWS, (i + 1) * ROWS)
        scores, keep = tile(columns), tile(columns)
        nisa.dma_copy(dst=scores, src=x[here, :])
        nisa.dma_copy(dst=keep, src=mask[here, :])
        penalty = tile(columns)
        nisa.tensor_scalar(dst=penalty, data=keep, op0=nl.less, operand0=0.5, op1=nl.multiply, operand1=-3e38)
        masked = tile(columns)
        nisa.tensor_tensor(dst=masked, data1=scores, data2=penalty, op=nl.add)
        top = tile(1)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=masked, axis=1, negate=True)
        powers, total = tile(columns), tile(1)
        nisa.activation_reduce(dst=powers, op=nl.exp, data=masked, reduce_op=nl.add, reduce_res=total, bias=top)
        weights = tile(columns)
        nisa.tensor_scalar(dst=weights, data=powers, op0=nl.divide, operand0=total)
        nisa.dma_copy(dst=out[here, :], src=weights)
    return out
"""
# the masked columns still count in the sum: wrong wherever a mask has a zero
MASKED_TOO_LATE = (SOFTMAX
    .replace("op0=nl.less, operand0=0.5, op1=nl.multiply, operand1=-3e38", "op0=nl.greater_equal, operand0=0.5")
    .replace("        masked = tile(columns)\n"
             "        nisa.tensor_tensor(dst=masked, data1=scores, data2=penalty, op=nl.add)\n", "")
    .replace("data=masked", "data=scores")
    .replace("dst=out[here, :], src=weights", "dst=out[here, :], src=kept")
    .replace("        nisa.dma_copy(dst=out", "        kept = tile(columns)\n        nisa.tensor_tensor(dst=kept, "
             "data1=weights, data2=penalty, op=nl.multiply)\n        nisa.dma_copy(dst=out"))
DIVISION = "        nisa.tensor_scalar(dst=weights, data=powers, op0=nl.divide, operand0=total)\n"
INVERSE = "        inverse = tile(1)\n        nisa.reciprocal(dst=inverse, data=total)\n"
ON_SCALAR = INVERSE + "        nisa.activation(dst=weights, op=nl.copy, data=powers, scale=inverse)\n"
ON_VECTOR = INVERSE + "        nisa.tensor_scalar(dst=weights, data=powers, op0=nl.multiply, operand0=inverse)\n"

ENTROPY = HEAD + """
@nki.jit
def cross_entropy(logits, target):
    rows, columns = logits.shape
    out = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(rows // ROWS):
        here = slice(i * ROWS, (i + 1) * ROWS)
        scores, index = tile(columns), tile(1)
        nisa.dma_copy(dst=scores, src=logits[here, :])
        nisa.dma_copy(dst=index, src=target.reshape((rows, 1))[here, :])
        top = tile(1)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=1)
        lower, powers, total, log = tile(columns), tile(columns), tile(1), tile(1)
        nisa.tensor_scalar(dst=lower, data=scores, op0=nl.subtract, operand0=top)
        nisa.activation(dst=powers, op=nl.exp, data=lower)
        nisa.tensor_reduce(dst=total, op=nl.add, data=powers, axis=1)
        nisa.activation(dst=log, op=nl.log, data=total)
        count, hot, picked, own = tile(columns, nl.int32), tile(columns), tile(columns), tile(1)
        nisa.iota(dst=count, pattern=[[1, columns]], offset=0, channel_multiplier=0)
        nisa.tensor_scalar(dst=hot, data=count, op0=nl.equal, operand0=index)
        nisa.tensor_tensor(dst=picked, data1=lower, data2=hot, op=nl.multiply)
        nisa.tensor_reduce(dst=own, op=nl.add, data=picked, axis=1)
        loss = tile(1)
        nisa.tensor_tensor(dst=loss, data1=log, data2=own, op=nl.subtract)
        nisa.dma_copy(dst=out.reshape((rows, 1))[here, :], src=loss)
    return out
"""
HOT = """        nisa.tensor_scalar(dst=hot, data=count, op0=nl.equal, operand0=index)
        nisa.tensor_tensor(dst=picked, data1=lower, data2=hot, op=nl.multiply)
"""
PICKED_AT_ONCE = """\
        nisa.scalar_tensor_tensor(dst=picked, data=count, op0=nl.equal, operand0=index, op1=nl.multiply,
                                  operand1=lower)
"""
SUMS = """        nisa.activation(dst=powers, op=nl.exp, data=lower)
        nisa.tensor_reduce(dst=total, op=nl.add, data=powers, axis=1)
"""
SUMMED_ON_SCALAR = """\
        nisa.activation_reduce(dst=powers, op=nl.exp, data=lower, reduce_op=nl.add, reduce_res=total)
"""


def reply(text, *calls):
    "A reply with a sentence and tool calls, each (name, arguments)."
    def block(n, name, given): return {"type": "tool_use", "id": f"{name}_{n}", "name": name, "input": given}
    return Reply(({"type": "text", "text": text}, *(block(n, *c) for n, c in enumerate(calls))), "tool_use")


def submit(move, why, expected, source="best"):
    "The call that hands in."
    return "submit", dict(source=source, move=move, why=why, expected=expected)


def scripted(replies, **kw):
    "A model that says what is written here."
    return ScriptedModel(replies, **kw)


REACT = [
    reply("I look up how a sum comes with the exponential, and what is known about masks.",
          ("read_api", dict(names=["activation_reduce", "tensor_scalar"])),
          ("search_patterns", dict(query="softmax fused activation sum over columns"))),
    reply("Everything stays in SBUF; the mask is applied to the finished weights.",
          ("profile", dict(source=MASKED_TOO_LATE))),
    reply("The rows do not sum to one: masked columns must be gone before the maximum and the sum.",
          ("profile", dict(source=SOFTMAX))),
    reply("Right. The division waits on Vector. Two ways to take it off there.",
          ("edit", dict(kernel="last", old=DIVISION, new=ON_VECTOR)),
          ("edit", dict(kernel="last", old=ON_VECTOR, new=ON_SCALAR))),
    reply("I hand in the faster of them.",
          submit("fused in SBUF", "The first kernel writes every intermediate to HBM.",
                 "One load and one store a row."))]


def beam_answers():
    "A function that answers planner, executor and summariser of a beam."
    plans = ("Keep the rows in SBUF\nLoad a block of rows once, mask, exponentiate, divide, store once.",
             "Mask the finished weights\nLeave the mask for the end, where one product applies it.",
             "Multiply by the inverse on Scalar\nTake one reciprocal a row; let Scalar scale the powers.",
             "Multiply by the inverse on Vector\nTake one reciprocal a row; multiply on Vector.")
    codes = (SOFTMAX, MASKED_TOO_LATE, SOFTMAX.replace(DIVISION, ON_SCALAR), SOFTMAX.replace(DIVISION, ON_VECTOR))
    asked = []

    def answer(request):
        text = str(request.messages[0]["content"])
        if request.system.startswith("You plan"):
            asked.append(text)
            fused = "activation_reduce" in text
            return plans[2 * fused + len(asked) % 2]
        if request.system.startswith("You write down"):
            return ("**Keep what one row needs in SBUF**\nWhere the next operation reads what the last one wrote, "
                    "a trip to HBM buys nothing.\nSlow:\n```python\nnisa.dma_copy(dst=lt_hbm[0:ROWS, :], src=less)\n"
                    "```\nFast:\n```python\nnisa.tensor_tensor(dst=masked, data1=scores, data2=penalty, op=nl.add)\n"
                    "```")
        chosen = next(n for n, plan in enumerate(plans) if plan in text)
        return f"```python\n{codes[chosen]}```"
    return [answer]


TWO_STAGE = [
    reply("First the plain way, one instruction for each operation.", ("verify", dict(source=ENTROPY))),
    reply("It is right; that is all this stage asks.",
          submit("one pass, plain", "The first kernel goes to HBM between operations.", "Right in one pass.", "last")),
    reply("Two instructions where one is enough: compare and multiply; and Scalar sums while it exponentiates.",
          ("variants", dict(sources=[ENTROPY.replace(HOT, PICKED_AT_ONCE), ENTROPY.replace(SUMS, SUMMED_ON_SCALAR),
                                     ENTROPY.replace(HOT, PICKED_AT_ONCE).replace(SUMS, SUMMED_ON_SCALAR)]))),
    reply("Both together are best.",
          submit("fused pick and sum", "Vector had the compare, the product and both sums.", "A shorter chain."))]


def take_last(request):
    "Take the last proposal that the message lists."
    numbers = re.findall(r"^(\d+)\. ", request.messages[-1]["content"], re.M)
    return reply("The last proposal holds all before it; I take it.",
                 ("optimise", dict(source="last", take=int(numbers[-1]))))


GUIDED = [
    take_last,
    reply("Does the optimiser see more from there?", ("optimise", dict(source="best"))),
    reply("What is left is worth less than another turn.",
          submit("what was proposed", "Each proposal is timed and legal.", "The latency that was listed."))]

SCRIPTS = {                     # name → (task, workload, agent)
    "react-masked_softmax": ("masked_softmax", "small", lambda: ReactAgent(scripted(REACT))),
    "beam-masked_softmax": ("masked_softmax", "small", lambda: BeamAgent(
        scripted(beam_answers(), repeat=True), rounds=2, beam=2, plans=2, samples=1)),
    "two_stage-cross_entropy": ("cross_entropy", "small", lambda: TwoStageAgent(scripted(TWO_STAGE))),
    "guided-rmsnorm_matmul": ("rmsnorm_matmul", "small", lambda: GuidedAgent(scripted(GUIDED)))}
