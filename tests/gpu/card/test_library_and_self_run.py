"""What only a card can say of calls of torch in a plan and of submissions that run themselves: torch works on the plan's memory in
a graph with the kernels, a CUDA context works behind walls, and nothing is left on the device."""
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
sys.path.insert(0, str(Path(__file__).parent))
import torch
from card_texts import WORK
from card_work import CUDA, SOFTMAX, WALLS, answers, given, order
from kernel_lab.gpu.launch.cuda_driver import why_no_gpu
from kernel_lab.gpu.launch.launcher import launch

pytestmark = [pytest.mark.card, pytest.mark.skipif(why_no_gpu() is not None, reason=f'{why_no_gpu()}: make gpu-test needs a card')]
REFERENCES = {
    'a product': lambda x, w: 2 * (x @ w), 'softmax between kernels': lambda x, w: 2 * torch.softmax(2 * x @ w + 1, -1),
    'sums and copies': lambda x, w: 2 * (x.T.sum(0, keepdim=True) + w).half().to(x.dtype),
    'a convolution': lambda x, w: 2 * torch.nn.functional.conv2d(x.reshape(1, 16, 256, 256), w[:32, :144].reshape(32, 16, 3, 3), padding=1)}


@pytest.mark.parametrize('name', WORK)
def test_torch_does_its_part_in_the_graph(name, compiled, untimed):
    c = compiled[f'torch: {name}']
    asked = order(c, seconds=1, most=20)
    found = launch(asked, 120)
    print(name, found)
    assert found.status == 'ran', str(found)
    told = found.data['plans'][0]['library']
    assert told['graph'] and 0 < told['share'] < 1, told
    want = REFERENCES[name](*(torch.from_numpy(x.copy()).double() for x in given(c.plan, asked.seeds[0][0]))).numpy()
    got = answers(c.plan, found)[0].reshape(want.shape)
    # TF32 by torch's default; float16; exponentials of sums of a thousand terms
    allowed = {'a convolution': 3e-3, 'sums and copies': 3e-3, 'softmax between kernels': 5e-5}.get(name, 1e-5)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < allowed


@pytest.mark.parametrize('text', [SOFTMAX, CUDA], ids=['torch', 'NVRTC'])
def test_a_submission_runs_itself_behind_walls(text, untimed):
    e = untimed.beside[0][text]
    print(e)
    assert e.status == 'self_run' and e.device == 'cuda' and len(e.samples_us) == 20, str(e)
    assert 'seccomp' in e.layers and any(layer.startswith('landlock') for layer in e.layers)


@pytest.mark.parametrize('attack', WALLS)
def test_an_attack_ends(attack, untimed, report):
    e = untimed.beside[0][attack]
    report.setdefault('walls', {})[attack] = e.status
    assert e.status == WALLS[attack] and not e.samples_us, str(e)


def test_attacks_leave_nothing_on_the_device(untimed):
    _, gone, after = untimed.beside
    assert gone < 64 << 20 and after.status == 'self_run', (gone, str(after))


def test_host_code_by_load_inline_runs_behind_walls(untimed):
    "Compiled once; the second run, which is wrong, loads what stands."
    e, wrong = untimed.inline
    print(e)
    assert (e.status, e.device, len(e.samples_us), e.asked['modules']) == ('self_run', 'cuda', 20, 1), str(e)
    assert 'seccomp' in e.layers and any(layer.startswith('landlock') for layer in e.layers)
    assert wrong.status == 'wrong_result', str(wrong)
