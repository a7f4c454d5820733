"""A hostile program in the place of NVIDIA's tools: what it can reach, and how it is ended."""
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.gpu import tool_process, toolchain
from kernel_lab.evaluate.gpu.toolchain import run_tool


@pytest.fixture
def python_as_tool(monkeypatch):
    "Runs a text of Python as if it was one of the tools."
    boot = ('import json, sys; sys.path.insert(0, sys.argv[1]); from kernel_lab.evaluate.gpu import tool_process as t; '
            f't.SYSTEM_FOLDERS += ({sys.base_prefix!r},); t.become_tool(json.loads(sys.argv[2]))')
    monkeypatch.setattr(toolchain, '_BOOT', boot)
    monkeypatch.setattr(toolchain, 'find_tool', lambda name, folder=None: Path(os.path.realpath(sys.executable)))
    run = lambda text, outputs=(), seconds=20: run_tool('python', ['-I', '-S', '-c', text], {'mine': b'x'}, outputs, seconds)
    if 'shared libraries' in run('print(1)').errors:
        pytest.skip('this Python looks for its library beside its file, and cannot start from a descriptor as a tool does')
    return run


def test_it_reads_and_writes_its_folder_only(python_as_tool, tmp_path):
    secret = tmp_path / 'secret'
    secret.write_text('42')
    for place in (secret, *secret.parents): os.access(place, os.R_OK)
    text = f'''import json, os, socket
def tried(f):
    try: f(); return True
    except OSError: return False
print(json.dumps([tried(f) for f in (
    lambda: open('mine').read(), lambda: open('new', 'w').write('y'), lambda: open({str(secret)!r}).read(), lambda: open('/etc/passwd').read(),
    lambda: open('/tmp/new', 'w'), lambda: os.symlink('/etc/passwd', 'link'), lambda: os.link('/etc/passwd', 'hard'),
    lambda: socket.create_connection(('127.0.0.1', 9), 1), lambda: os.kill(os.getppid(), 9), lambda: os.listdir('/proc/1'))]))'''
    done = python_as_tool(text, ['new'])
    if not any('landlock' in l for l in done.layers): pytest.xfail('no Landlock here')
    assert json.loads(done.text) == [True, True] + [False] * 8 and done.files['new'] == b'y', (done.text, done.errors)


def test_it_has_no_environment(python_as_tool, monkeypatch):
    monkeypatch.setenv('SECRET_KEY', 'x')
    assert {*json.loads(python_as_tool('import json, os; print(json.dumps(dict(os.environ)))').text)} <= {'TMPDIR', 'LANG', 'LC_CTYPE'}


def test_a_flood_ends_at_its_limit(python_as_tool):
    done = python_as_tool('while True: print("x" * 10**6)', seconds=60)
    assert done.code and len(done.text) <= tool_process.TOOL_FILE_MB << 20


def test_a_hang_ends_in_time(python_as_tool):
    began = time.monotonic()
    with pytest.raises(KernelError, match='took too long') as e: python_as_tool('import time; time.sleep(600)', seconds=1)
    assert time.monotonic() - began < 20 and e.value.kind == 'timeout'


def test_what_is_no_file_is_not_read(python_as_tool):
    done = python_as_tool('import os; os.remove("mine"); open("mine", "w").close()\ntry: os.mkdir("out")\nexcept OSError: pass', ['out', 'mine', 'none'])
    assert done.files == {'out': b'', 'mine': b'', 'none': b''}


@pytest.mark.parametrize('text', ['#include "/etc/passwd"', '.version 8.7\n.target sm_90a\n.address_size 64\n.include "/etc/passwd"'])
def test_the_assembler_cannot_read_what_a_kernel_names(text):
    "The reader refuses such text before; here it got past."
    done = run_tool('ptxas', ['-arch=sm_90a', 'k.ptx', '-o', 'k.cubin'], {'k.ptx': text.encode()}, ['k.cubin'])
    assert done.code and 'root:' not in done.text + done.errors


def test_tools_work_where_only_their_user_may_go(tmp_path, monkeypatch):
    "A folder for temporary files that is closed to others: the user that a tool becomes cannot walk to it."
    from kernel_lab.cli.gpu_rows import GPU_CANARY
    from kernel_lab.evaluate.gpu.compiling import compile_submission
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    (made,) = compile_submission(GPU_CANARY, [{"shape": [1024], "dtype": "float32"}]).binaries.values()
    assert made.registers and made.sass
