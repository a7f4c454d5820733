"""An imitation of the vendor's profiler: a script that answers as the file `mode` beside it says."""
import sys
from pathlib import Path

TOOL = """#!{python} -IS
import json, pathlib, sys, time
mode = pathlib.Path(__file__).parent.joinpath("mode").read_text()
words = sys.argv[1:]
value = lambda flag: words[words.index(flag) + 1]
print("level=info", *words, file=sys.stderr)
if words[0] == "capture":
    if mode == "capture fails": print("NRT error: device busy", file=sys.stderr); sys.exit(1)
    if mode == "capture hangs": time.sleep(600)
    assert pathlib.Path(value("-n")).read_bytes() == b"NEFF"
    if mode != "no ntff": pathlib.Path("profile_exec_2.ntff").write_bytes(b"NTFF")
elif value("--output-format") == "summary-json":
    summary = dict(total_time=52e-6, tensor_engine_active_time=13e-6, vector_engine_active_time=26e-6, dma_active_time=39e-6, hbm_read_bytes=1000,
                   hardware_flops=100, transpose_flops=40, total_active_time=40e-6)
    if mode == "jitter": summary["total_time"] += 1e-6 * (len(list(pathlib.Path.cwd().parent.glob("profile-*"))) * 3 % 7)
    if mode == "no time": del summary["total_time"]
    if mode == "zero time": summary["total_time"] = 0
    if mode == "junk number": summary["dma_active_time"] = "39 us"
    if mode == "simulated": summary["is_simulation"] = True
    text = json.dumps({{"n_1": summary}})
    print(text[:40] if mode == "half a summary" else "" if mode == "no summary" else text)
else:
    if mode == "no table": sys.exit(2)
    rows = [dict(start_ts=5000 + 300 * k, end_ts=5213 + 300 * k, engine="tensor", opcode="MATMUL", operands="", nki_source_location="kernel.py:17") for k in range(3)]
    rows.append(dict(start_ts=4000, end_ts=4100, engine="sync", opcode="NOP", operands=""))
    text = json.dumps(dict(instruction=rows, DmaPacketAggregated=[dict(start_ts=1000, end_ts=3000, dest="[SB]", variable="x")]))
    pathlib.Path(value("--output-file")).write_text(text[:30] if mode == "half a table" else text)
"""


def add_profiler(folder: Path) -> None:
    "Write neuron-profile into a folder of the search path."
    tool = folder / "neuron-profile"
    tool.write_text(TOOL.format(python=sys.executable))
    tool.chmod(0o755)
