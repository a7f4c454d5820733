"""`make gpu-test`: what only a card can say, in five minutes. Without a card it says so and fails: nothing was
tested."""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 420


def main(out=''):
    sys.path.insert(0, str(ROOT))
    from kernel_lab.gpu.launch.cuda_driver import why_no_gpu
    if why := why_no_gpu():
        print(f'make gpu-test: nothing was tested: {why}. It needs a machine with an NVIDIA card and the extra gpu; '
              'everything else is in make test.')
        return 3
    environment = os.environ | {'PYTHONPATH': os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])}
    if out: environment['KERNEL_LAB_GPU_REPORT'] = str(Path(out).resolve())
    command = [sys.executable, '-m', 'pytest', '-m', 'card', '-rA', '-p', 'no:cacheprovider', '--durations=8',
               'tests/gpu/card']
    try: return subprocess.run(command, cwd=ROOT, env=environment, timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        print(f'make gpu-test: it took longer than {SECONDS} s.')
        return 4


if __name__ == '__main__': sys.exit(main(*sys.argv[1:]))
