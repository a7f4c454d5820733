"""Predicted against published times of trn2: `python benchmarks/instructions.py trn2_instr_durations.csv
trn2_dma_packets.csv trn2_sync_latencies.csv`, any of them.

The first file lists durations from published traces. Its table has a line for every kind: the engine, the opcode,
dtypes and elements a partition, the state of the Tensor engine's clock; how many rows and runs there are, and how far
off the prediction is, or why there is none. A duration is the instruction's work and the latency of its engine's
pipeline; that of a copy on an engine's queue is what the scheduler charges the queue for issuing it (on GpSimd's, for
the trigger: it makes the descriptors before), that of a table load the chip's figure. What only begins and ends a
program is compared as a whole: for how long an engine is busy with it, which can be no more than the time that the
chip allows for both ends. The second file lists DMA packets by size and kind of queue. The third says how long one
waits for another; its table has a line for every kind of wait."""
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
REGISTERS = re.compile(r"\$R\[\d+\]")
# opcode: the lab's instruction, its first operand, the others, its attributes
INSTRUCTIONS = {
    "COPY": ("tensor_copy", "src", {}, {}), "CAST": ("tensor_copy", "src", {}, {}),
    "TENSOR_REDUCE": ("tensor_reduce", "data", {}, {"op": "add", "axis": [1]}),
    "TENSOR_SCALAR": ("tensor_scalar", "data", {"operand0": 2.0}, {"op0": "multiply"}),
    "RECIPROCAL": ("reciprocal", "data", {}, {}), "ACTIVATE": ("activation", "data", {}, {"func": "exp"}),
    "MATMUL": ("nc_matmul", "moving", {}, {}), "TENSOR_LOAD": ("register_load", "src", {}, {})}


def shape_of(counts):
    "The counts of a trace's access pattern, without ones at its end."
    shape = [int(n) for n in counts.split(",")]
    while len(shape) > 1 and shape[-1] == 1: shape.pop()
    return shape


def operands(opcode, signature):
    "{src: (dtype, buffer, elements a partition), dst: …} of a trace's text."
    if opcode == "TENSOR_LOAD":
        return {side: ("int32", "sbuf", len(REGISTERS.findall(signature))) for side in ("src", "dst")}
    found = {side: (DTYPES.get(dtype, "float32"), "psum" if place == "PSUM" else "sbuf", int(np.prod(shape_of(counts))))
             for side, dtype, place, counts in OPERAND.findall(signature)}
    return found | {"dst": found.get("dst", found.get("src"))} if found else {}


def instruction(opcode, signature):
    "(program, instruction) with the operands of a trace's row, or None where the table has no such thing."
    at, known = operands(opcode, signature), INSTRUCTIONS.get(opcode)
    if not at or known is None: return None
    op, key, ins, attrs = known
    rows = 1 if op == "register_load" else 128
    columns = [*(at[side] for side in ("src", "dst")), (at["src"][0], "sbuf", 128)]
    tensors = tuple(Tensor(name, (rows, n), dtype, buffer) for name, (dtype, buffer, n) in zip("abw", columns))
    access = lambda k: Access(k, Affine(), ((columns[k][2], rows), (1, columns[k][2])))
    ins = {key: access(0)} | ({"stationary": access(2)} if op == "nc_matmul" else {}) | ins
    o = Instruction(op, {"dst": access(1)}, ins, attrs)
    return Program("row", tensors, (o,), (), chip="trn2"), o


def rows_named(signature):
    "The (rows, bytes a row) that a copy's descriptors name, of the side with more of them."
    patterns = [shape_of(x) for x in re.findall(r"(?:src|dst)_pattern=\[[^\]]*\]\[([\d,]+)\]", signature)]
    return max(p[-1] for p in patterns), int(re.search(r"src_elem_size=(\d+)", signature)[1])


def predicted(row, chip):
    "ns of one row, or nan."
    if row.opcode == "ACT_TABLE_LOAD": return chip.table_load_ns
    if row.opcode == "DMA_DIRECT2D" and row.engine == "GpSimd": return chip.swdge_trigger_ns
    if row.opcode == "DMA_DIRECT2D": return chip.dma_issue_ns + chip.dma_row_ns * rows_named(row.signature)[0]
    found = instruction(row.opcode, row.signature)
    if found is None: return np.nan
    program, o = found
    if o.op == "register_load": return sum(work_ns(program, o, chip).values())      # the same on every engine
    engine = {"TensorMatrix": "Tensor"}.get(row.engine, row.engine)
    if engine not in spec_of(o).engines and (o.op, engine) != ("tensor_copy", "Scalar"): return np.nan
    work = work_ns(program, replace(o, engine=engine), chip)[engine]
    if engine == "Tensor":          # the trace has one row for each pass of an fp32 product
        work = work / 2 if "fp32_mode" in row.signature else work
        work *= 1 if row.pe_clock_state == "8/8" else chip.pe_cold
    return work + getattr(chip, f"{engine.lower()}_latency_ns")


# what the profiler's manual calls opcodes of set-up and teardown, beside TENSOR_LOAD, which reads registers
ENDS = ("COMPARE_BRANCH", "DRAIN", "EVENT_SEMAPHORE_RANGE_CLEAR", "NOP", "NOTIFY", "SET_ORDERING_MODE", "WRITE")
REASONS = dict.fromkeys(ENDS, "no such instruction: part of start_ns and end_ns") | {
    "EVENT_SEMAPHORE": "no such instruction: an engine waits, as long as others make it",
    "LDWEIGHTS": "no such instruction: part of nc_matmul, hidden behind the product before"}


def form_of(row):
    "What tells a kind from others of its opcode, in a few words."
    if row.opcode == "DMA_DIRECT2D":
        cast = " to bf16" if "out_dtype" in row.signature else ""
        return "{} rows of {} B".format(*rows_named(row.signature)) + cast
    if row.opcode == "TENSOR_LOAD": return f"registers: {len(REGISTERS.findall(row.signature))}"
    words = re.findall(r"fp32_mode=(\w+)|(?:op|acc_flags)=(\w+)|^([A-Z]+) |(negated)|transpose_mode=(ENABLED)",
                       row.signature)
    sides = [f"{dtype} {place} {'·'.join(map(str, shape_of(counts)))}"
             for _, dtype, place, counts in OPERAND.findall(row.signature)]
    return " ".join([*("".join(w) for w in words), " → ".join(" ".join(s.split()) for s in sides)])


def told_ends(rows, chip):
    "Print for how long engines are busy with what begins and ends a program, beside the chip's figures."
    ends = rows[rows.opcode.isin((*ENDS, "TENSOR_LOAD"))]
    ns = (ends["count"] * ends.dur_ns_median).groupby([ends.trace, ends.engine]).sum()
    allowed = chip.start_ns + chip.end_ns
    print(f"begin and end of a program: {len(ns)} engines of {ends.trace.nunique()} traces are busy with them for "
          f"{ns.min() / 1e3:.1f} to {ns.max() / 1e3:.1f} µs; start_ns and end_ns, {allowed / 1e3:.1f}, are the time "
          f"that passes: {(ns > allowed).sum()} engines are busy for longer")


def told_coverage(rows):
    "Print how many rows, kinds and runs are predicted, and why the others are not."
    print(f"{'':75}{'rows':>6}{'kinds':>7}{'runs':>8}")
    reason = [REASONS[r.opcode] if np.isnan(r.predicted) else "predicted" for r in rows.itertuples()]
    order = lambda name: (name != "predicted", name)
    for name, g in sorted(rows.groupby(reason), key=lambda x: order(x[0])):
        print(f"{name:75}{len(g):6}{g.kind.nunique():7}{g['count'].sum():8,}")


def durations(rows, chip=CHIPS["trn2"]):
    rows = rows.fillna({"signature": "", "pe_clock_state": ""})
    rows["predicted"] = [predicted(r, chip) for r in rows.itertuples()]
    rows["form"] = [form_of(r) for r in rows.itertuples()]
    keys = ["engine", "opcode", "form", "pe_clock_state"]
    rows["kind"] = [" ".join(k) for k in rows[keys].itertuples(index=False)]
    print(f"{'engine':13}{'opcode':28}{'kind':46}{'clock':17}{'rows':>4}{'runs':>6}{'measured':>9}{'predicted':>10}"
          f"{'error %':>9}")
    errors = []
    for key, g in rows.groupby(keys):
        measured, one = g.dur_ns_median.median(), g.predicted.iloc[0]
        line = "{:13}{:28}{:46}{:17}".format(*key) + f"{len(g):4}{g['count'].sum():6}{measured:9.0f}"
        if np.isnan(one):
            print(f"{line}{'':10}  {REASONS[key[1]]}")
            continue
        errors.append(dict(opcode=key[1], error=one / measured - 1))
        print(f"{line}{one:10.0f}{100 * (one / measured - 1):+9.1f}")
    told_coverage(rows)
    errors = pd.DataFrame(errors)
    for name, g in [*errors.groupby("opcode"), ("all", errors)]:
        told(name, g.error)
    told_ends(rows, chip)


def told(name, error):
    "Print how far predictions are from what was measured: a column of relative errors, one a kind."
    print(f"{name:66}{len(error):4} kinds   median |error| {100 * error.abs().median():6.1f} %   worst "
          f"{100 * error.loc[error.abs().idxmax()]:+7.1f} %   median error {100 * error.median():+7.1f} %")


def packets(rows, chip=CHIPS["trn2"]):
    rows = rows[rows.queue_type != "instruction"]                     # fetching the program is no copy
    by = rows.groupby(["queue_type", "packet_bytes"]).dur_ns_median.median().rename("measured").reset_index()
    ns = chip.dma_packet_ns + by.packet_bytes / (chip.dma_gbps / chip.dma_engines)
    told("DMA packets", ns / by.measured - 1)


PAIR = re.compile(r"(\w+) (\w+) n=(\d+) (\w+)([SP])->(?:(\w*)([SP]))?(?: clk=(\S+))?")
LEAST_PAIRS = 5
UNTOLD = {                  # kinds of waits without a prediction
    "producer_end_to_semaphore_update": "a part of producer_end_to_consumer_start",
    "semaphore_update_to_consumer_start": "a part of producer_end_to_consumer_start",
    "dma_trigger_to_first_semaphore_inc (alone)": "the clock knows the last engine's semaphore alone",
    "dma_trigger_to_first_semaphore_inc (others in flight)": "as long as the others make it",
    "dma_trigger_to_last_semaphore_inc (others in flight)": "as long as the others make it",
    "dma_trigger_to_last_semaphore_inc (alone)": "the sum of three that are predicted",
    "issue_interval_back_to_back": f"not alike, fewer than {LEAST_PAIRS} pairs, or LDWEIGHTS"}


def interval_ns(row, chip):
    "ns between two instructions of an engine that are alike; nan where few pairs were seen."
    engine, opcode, n, dtype, place, dtype2, place2, _ = PAIR.match(row["from"]).groups()
    clock = PAIR.match(row.to)[8]
    alike = row["from"] == row.to.split(" clk=")[0]
    if opcode == "LDWEIGHTS" or row["count"] < LEAST_PAIRS or not alike: return np.nan
    memory = {"S": "SBUF", "P": "PSUM"}
    mode = "fp32_mode=LOW_HIGH " if engine == "TensorMatrix" and dtype == "fp32" else ""
    out = "1" if opcode == "TENSOR_REDUCE" else n
    signature = f"{mode}src={dtype}@{memory[place]}[1][{n}] dst={dtype2 or dtype}@{memory[place2]}[1][{out}]"
    as_row = pd.Series(dict(engine=engine, opcode=opcode, signature=signature, pe_clock_state=clock))
    name = {"TensorMatrix": "tensor"}.get(engine, engine.lower())
    start = getattr(chip, f"{name}_start") / chip.clock(name) * (chip.pe_cold if clock not in ("8/8", None) else 1)
    return predicted(as_row, chip) - getattr(chip, f"{name}_latency_ns") + start


def span_ns(label, packets, chip):
    "ns from the first packet of a copy to its last: '4x256B' is four runs of 256 B in each of 128 rows."
    rows, size = map(int, re.search(r"(\d+)x(\d+)B", label).groups())
    total = size * rows * (128 if rows < 128 else 1)
    return packets / chip.dma_engines * (chip.dma_packet_ns + total / packets / (chip.dma_gbps / chip.dma_engines))


def wait_ns(row, chip):
    "ns of one row of waits, or nan."
    if row.kind == "issue_interval_back_to_back": return interval_ns(row, chip)
    if row.kind == "producer_end_to_consumer_start":
        return chip.semaphore_ns + chip.swdge_ns * row.to.startswith("GpSimd DMA")
    if row.kind.startswith("dma_trigger_to_first_packet"):
        return chip.swdge_start_ns if row["from"].startswith("GpSimd") else chip.dma_start_ns
    if row.kind.startswith("dma_last_packet_end"): return chip.dma_done_ns
    if row.kind.startswith("dma_first_packet"): return span_ns(row["from"], int(row.to.split()[0]), chip)
    return np.nan


def waits(rows, chip=CHIPS["trn2"]):
    rows = rows[rows.kind != "kind"].assign(measured=lambda r: pd.to_numeric(r.ns_median), to=rows.to.fillna(""))
    rows["count"] = pd.to_numeric(rows["count"])
    rows = rows[["kind", "from", "to", "count", "measured"]]
    rows["predicted"] = [wait_ns(r, chip) for _, r in rows.iterrows()]
    known = rows.dropna(subset="predicted")
    known = known.assign(error=known.predicted / known.measured - 1)
    print(f"{len(rows)} rows of waits: {len(known)} predicted")
    for name, g in rows[rows.predicted.isna()].groupby("kind"):
        print(f"{name:66}{len(g):4} rows    {UNTOLD[name]}")
    engine = known["from"].str.split().str[0].where(known.kind.str.startswith("dma"), "")
    engine = engine.where(~known.to.str.startswith("GpSimd DMA"), "to GpSimd DMA")
    for (name, queue), g in known.groupby(["kind", engine]):
        told(f"{name} {queue}", g.error)


def main(*paths):
    for path in paths:
        rows = pd.read_csv(path)
        (packets if "packet_bytes" in rows else waits if "kind" in rows else durations)(rows)


if __name__ == "__main__": main(*sys.argv[1:])
