"""Predicted against published times of trn2: `python benchmarks/instructions.py trn2_instr_durations.csv
trn2_dma_packets.csv trn2_sync_latencies.csv`, any of them.

The first file lists durations by engine, opcode, operand shape and clock state of the Tensor engine, from published
traces. A duration is the instruction's work and the latency of its engine's pipeline; that of a copy on an engine's
queue is what the scheduler charges the queue for issuing it, that of a table load the chip's figure. A table says of
every engine and opcode how many rows there are and how far off the predictions, or why there is none. What only begins
and ends a program is compared as a whole: the most that an engine spends on it, beside the chip's figures for both
ends. The second lists DMA packets by size
and kind of queue, the third how long one waits for another: an engine for an engine, data for its trigger, a
consumer for the last packet."""
import re, sys
from dataclasses import replace
import numpy as np
import pandas as pd
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.ir.instructions import spec_of
from kernel_lab.nki.ir.nodes import Access, Instruction, Tensor
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.timing.flat_program import work_ns

DTYPES = {"fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}
OPERAND = re.compile(r"(src|dst)=(?:(\w+)@)?(\w*)\[[^\]]*\]\[([\d,]+)\]")


def operands(signature):
    "{src: (dtype, buffer, shape), dst: …} of a trace's text."
    found = {}
    for side, dtype, place, counts in OPERAND.findall(signature):
        shape = [int(n) for n in counts.split(",")]
        while len(shape) > 1 and shape[-1] == 1: shape.pop()
        found[side] = (DTYPES.get(dtype, "float32"), "psum" if place == "PSUM" else "sbuf", shape)
    return found


def instruction(opcode, signature):
    "(program, instruction) with the operands of a trace's row, or None where the table has no such thing."
    at = operands(signature)
    if "src" not in at: return None
    (dtype, buffer, shape), (dtype2, buffer2, shape2) = at["src"], at.get("dst", at["src"])
    n, m = int(np.prod(shape)), int(np.prod(shape2))
    names = {
        "COPY": ("tensor_copy", "src"), "CAST": ("tensor_copy", "src"), "TENSOR_REDUCE": ("tensor_reduce", "data"),
        "TENSOR_SCALAR": ("tensor_scalar", "data"), "RECIPROCAL": ("reciprocal", "data"),
        "ACTIVATE": ("activation", "data"), "MATMUL": ("nc_matmul", "moving")}
    if opcode not in names: return None
    op, key = names[opcode]
    tensors = [
        Tensor("a", (128, n), dtype, buffer),
        Tensor("b", (128, m), dtype2, buffer2),
        Tensor("w", (128, 128), dtype, "sbuf")]
    access = lambda k, c: Access(k, Affine(), ((c, 128), (1, c)))
    ins = {key: access(0, n)} | ({"stationary": access(2, 128)}
                                 if op == "nc_matmul" else {}) | ({"operand0": 2.0} if op == "tensor_scalar" else {})
    attrs = {"func": "exp"} if op == "activation" else {"op": "add", "axis": [
        1]} if op == "tensor_reduce" else {"op0": "multiply"} if op == "tensor_scalar" else {}
    o = Instruction(op, {"dst": access(1, m)}, ins, attrs)
    return Program("row", tuple(tensors), (o,), (), chip="trn2"), o


def issue_ns(signature, chip):
    "What the scheduler charges a queue for a copy: by the rows that its descriptors name on one side."
    rows = [int(x.split(",")[-2 if x.endswith(",1") else -1])
            for x in re.findall(r"(?:src|dst)_pattern=\[[^\]]*\]\[([\d,]+)\]", signature)]
    return chip.dma_issue_ns + chip.dma_row_ns * max(rows)


def predicted(row, chip):
    "ns of one row, or nan."
    if row.opcode == "ACT_TABLE_LOAD": return chip.table_load_ns
    if row.opcode == "DMA_DIRECT2D": return issue_ns(row.signature, chip)
    found = instruction(row.opcode, row.signature)
    if found is None: return np.nan
    program, o = found
    engine = {"TensorMatrix": "Tensor"}.get(row.engine, row.engine)
    if engine not in spec_of(o).engines and (o.op, engine) != ("tensor_copy", "Scalar"): return np.nan
    work = work_ns(program, replace(o, engine=engine), chip)[engine]
    if engine == "Tensor":          # the trace has one row for each pass of an fp32 product
        work = work / 2 if "fp32_mode" in row.signature else work
        work *= 1 if row.pe_clock_state == "8/8" else chip.pe_cold
    return work + getattr(chip, f"{engine.lower()}_latency_ns")


# what begins and ends a program: as often in every trace, whatever the kernel
ENDS = ("COMPARE_BRANCH", "DRAIN", "EVENT_SEMAPHORE_RANGE_CLEAR", "NOP", "NOTIFY", "SET_ORDERING_MODE", "TENSOR_LOAD",
        "WRITE")
REASONS = dict.fromkeys(ENDS, "part of start_ns and end_ns: see below") | {
    "EVENT_SEMAPHORE": "the engine waits: as long as the others make it",
    "LDWEIGHTS": "part of nc_matmul, which is taken to hide it behind the product before"}


def told_ends(rows, chip):
    "Print what engines spend on the instructions that begin and end a program, beside the chip's figures."
    ends = rows[rows.opcode.isin(ENDS)]
    ns = (ends["count"] * ends.dur_ns_median).groupby([ends.trace, ends.engine]).sum()
    print(f"the {len(ends)} rows that begin and end a program: {len(ns)} engines of {ends.trace.nunique()} traces "
          f"spend {ns.min() / 1e3:.1f} to {ns.max() / 1e3:.1f} µs on them, start_ns and end_ns allow "
          f"{(chip.start_ns + chip.end_ns) / 1e3:.1f}")


def durations(rows, chip=CHIPS["trn2"]):
    rows = rows.fillna({"signature": "", "pe_clock_state": ""})
    rows["predicted"] = [predicted(r, chip) for r in rows.itertuples()]
    known = rows.dropna(subset=["predicted"])
    print(f"{len(rows)} rows: {len(known)} predicted, {len(rows) - len(known)} with a reason why not")
    print(f"{'engine':14}{'opcode':29}{'rows':>5}{'kinds':>6}{'measured ns':>13}{'predicted':>11}{'|error| %':>11}"
          f"{'error %':>9}")
    kinds = []
    for (engine, opcode), g in rows.groupby(["engine", "opcode"]):
        by = g.groupby(["signature", "pe_clock_state"]).agg(
            measured=("dur_ns_median", "median"), predicted=("predicted", "first"))
        head = f"{engine:14}{opcode:29}{len(g):5}{len(by):6}{by.measured.median():13.0f}"
        if by.predicted.isna().any():
            print(f"{head}  {REASONS[opcode]}")
            continue
        error = by.predicted / by.measured - 1
        kinds.append(error)
        print(f"{head}{by.predicted.median():11.0f}{100 * error.abs().median():11.1f}{100 * error.median():+9.1f}")
    error = pd.concat(kinds)
    print(f"all: {len(error)} kinds, median |error| {100 * error.abs().median():.1f} %")
    told_ends(rows, chip)


def told(name, found):
    "Print how far predictions are from what was measured: a frame with both."
    error = found.predicted / found.measured - 1
    print(f"{name:58}{len(found):4} kinds   median |error| {100 * error.abs().median():5.1f} %   median error "
          f"{100 * error.median():+6.1f} %")


def packets(rows, chip=CHIPS["trn2"]):
    rows = rows[rows.queue_type != "instruction"]                     # fetching the program is no copy
    by = rows.groupby(["queue_type", "packet_bytes"]).dur_ns_median.median().rename("measured").reset_index()
    told("DMA packets", by.assign(predicted=chip.dma_packet_ns + by.packet_bytes / (chip.dma_gbps / chip.dma_engines)))


def waits(rows, chip=CHIPS["trn2"]):
    rows = rows[rows.kind != "kind"].assign(measured=lambda r: pd.to_numeric(r.ns_median))
    copies = rows["from"].str.contains("DMA") | rows.to.astype(str).str.contains("DMA|EVENT")
    told("an engine for an engine",
         rows[(rows.kind == "producer_end_to_consumer_start") & ~copies].assign(predicted=chip.semaphore_ns))
    for queue in ("Scalar|Sync", "GpSimd"):
        mine = rows[rows["from"].str.contains(f"^(?:{queue}) queue")]
        told(f"first packet for its trigger, {queue} queue",
             mine[mine.kind.str.startswith("dma_trigger_to_first_packet")].assign(predicted=chip.dma_start_ns))
        told(f"a consumer for the last packet, {queue} queue",
             mine[mine.kind.str.startswith("dma_last_packet_end")].assign(predicted=chip.dma_done_ns))


def main(*paths):
    for path in paths:
        rows = pd.read_csv(path)
        (packets if "packet_bytes" in rows else waits if "kind" in rows else durations)(rows)


if __name__ == "__main__": main(*sys.argv[1:])
