"""Compile and judge the kernels that the lab brings along recorded, and write them again:
`python tools/record_gpu_kernels.py`.

It needs the extra `gpu` and no card; the result is kernel_lab/evaluate/gpu/recorded_kernels.json.xz."""
import json
import lzma
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lab.evaluate.gpu.recorded import (  # noqa: E402
    KEPT_KERNELS, GpuRecording, compiled_of, recording_data, stages_of)
from kernel_lab.evaluate.pipeline import evaluate  # noqa: E402
from kernel_lab.tasks.model.workload import Kernel  # noqa: E402

KEPT = ROOT / "kernel_lab" / "evaluate" / "gpu" / "recorded_kernels.json.xz"


def recorded(name: str) -> dict:
    "One kernel, compiled and judged here and now, as data."
    language, source, task, workload = KEPT_KERNELS[name]
    evaluation = evaluate(Kernel(source, target=language, name=name), task, workload, seeds=[1, 2, 3])
    print(f"{name}: {evaluation}", flush=True)
    compiled = compiled_of(evaluation)
    return recording_data(GpuRecording(name, compiled, evaluation, stages_of(compiled)))


if __name__ == "__main__":
    text = json.dumps({name: recorded(name) for name in KEPT_KERNELS}, ensure_ascii=False)
    KEPT.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{KEPT.relative_to(ROOT)}: {KEPT.stat().st_size:,} bytes")
