"""`make gpu-test`: what only a card can say, in four minutes. Without a card it says so and fails: nothing was
tested."""
import compileall
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS, MOST = 240, 420            # in which it ends, and after which it is ended


def main(out=''):
    began = time.time()
    sys.path.insert(0, str(ROOT))
    from kernel_lab.gpu.launch.cuda_driver import why_no_gpu
    if why := why_no_gpu():
        print(f'make gpu-test: nothing was tested: {why}. It needs a machine with an NVIDIA card and the extra gpu; '
              'everything else is in make test.')
        return 3
    compileall.compile_dir(ROOT / 'kernel_lab', quiet=2, workers=0)         # some hundred processes, which keep none
    environment = os.environ | {'PYTHONPATH': os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')]),
                                'KERNEL_LAB_GPU_BEGAN': str(began)}
    if out: environment['KERNEL_LAB_GPU_REPORT'] = str(Path(out).resolve())
    command = [sys.executable, '-m', 'pytest', '-m', 'card', '-rA', '-p', 'no:cacheprovider', '--durations=12',
               'tests/gpu/card']
    try: code = subprocess.run(command, cwd=ROOT, env=environment, timeout=MOST).returncode
    except subprocess.TimeoutExpired:
        print(f'make gpu-test: it was ended after {MOST} s.')
        return 4
    took = time.time() - began
    print(f'make gpu-test: {took:.1f} s of wall time, at most {SECONDS} are asked'
          f'{"; its table of the bars: kernel-lab tune --table " + out if out else ""}')
    return code or 5 * (took > SECONDS)


if __name__ == '__main__': sys.exit(main(*sys.argv[1:]))
