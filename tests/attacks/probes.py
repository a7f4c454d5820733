"""Abuse of the host: what a kernel's Python could try on the machine it runs on, each against a canary of the `Scene`.

A probe is a few lines that return something, or raise. `Probe.kernel` makes a kernel of some of them; what each met
goes out in the kernel's own exception."""
import json
from dataclasses import dataclass

CALL = '''
def call(number, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *args)])
    if found < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
NUMBERS = dict(unshare=(272, 97), ptrace=(101, 117), prlimit=(302, 261), io_uring_setup=(425, 425), keyctl=(250, 219), shmget=(29, 194), msgctl=(71, 187), bpf=(321, 280), process_vm_readv=(310, 270),
               pidfd_open=(434, 434), memfd=(319, 279), inotify=(294, 26), utimensat=(280, 88), ioprio=(251, 30), userfaultfd=(323, 282), perf=(298, 241), seccomp=(317, 277), migrate_pages=(256, 238), move_pages=(279, 239))
def number(name): return NUMBERS[name][platform.machine() == 'aarch64']
'''


@dataclass(frozen=True)
class Probe:
    """A row of the catalogue, a sentence, the lines of a function, and what it would hurt: a word of `Scene.hurt()`,
    or 'secret' (it returns the canary), or 'done' (it returns at all)."""
    name: str
    row: str
    says: str
    code: str
    hurts: str = 'done'


def kernel(probes):
    "The text of a kernel that tries probes and raises what came of each as JSON."
    body = ''.join(f'def probe_{k}():\n' + ''.join(f'    {line}\n'
                                                   for line in p.code.split('\n'))
                   for k, p in enumerate(probes))
    tries = ', '.join(f'{p.name!r}: probe_{k}' for k, p in enumerate(probes))
    return ('import ctypes, json, mmap, os, platform, signal, socket, struct, subprocess, sys, threading, time\n' +
            CALL + body + f'''
def tried(f):
    try: return ['open', str(f())[:60]]
    except BaseException as e: return ['blocked', f'{{type(e).__name__}} {{getattr(e, "errno", None)}}'[:60]]
def kernel(x):
    raise ValueError('<<' + json.dumps({{k: tried(f) for k, f in {{{tries}}}.items()}}) + '>>')
''')


def heard(text):
    "What such a kernel raised: {name: ['open' or 'blocked', what]}; nothing where it raised nothing of the kind."
    start, end = text.find('<<'), text.rfind('>>')
    return json.loads(text[start + 2:end]) if 0 <= start < end else {}


P = Probe
PROBES = [
    # files
    P('reads a secret', 'F1', "Reads a file of the user's and says what is in it.",
      "return open('@FOLDER/secret.txt').read()", 'secret'),
    P('lists a folder', 'A13', "Lists a folder of the user's.", "return os.listdir('@FOLDER')"),
    P('asks for a size', 'A13', 'Asks whether a file exists, and when it changed.',
      "return os.stat('@FOLDER/secret.txt').st_size"),
    P('goes to a folder', 'A13', "Makes a folder of the user's its own.", "os.chdir('@FOLDER')\nreturn os.getcwd()"),
    P('writes a file', 'F3', "Leaves a file in a folder of the user's.", "return open('@FOLDER/l1', 'w').write('x')",
      'l1'),
    P('changes a file', 'F3', 'Appends to a file.', "return open('@FOLDER/v1', 'a').write('x')", 'v1'),
    P('deletes a file', 'F3', 'Deletes a file.', "return os.unlink('@FOLDER/v2')", 'v2'),
    P('truncates a file', 'F3', 'Empties a file without opening it.', "return os.truncate('@FOLDER/v3', 0)", 'v3'),
    P('renames a file', 'F3', 'Moves a file away.', "return os.rename('@FOLDER/v4', '@FOLDER/moved')", 'v4'),
    P('changes a mode', 'F3', 'Opens a file to everybody.', "return os.chmod('@FOLDER/v5', 0o777)", 'v5'),
    P('changes a time', 'F3', "Sets back a file's time.", "return os.utime('@FOLDER/v6', (1, 1))", 'v6'),
    P('plants a link', 'C8', 'Leaves a link where a result is expected.',
      "return os.symlink('@FOLDER/secret.txt', '@FOLDER/l2')", 'l2'),
    P('plants a hard link', 'C8', 'Gives a file a second name.', "return os.link('@FOLDER/secret.txt', '@FOLDER/l3')",
      'l3'),
    P('keeps a file in /tmp', 'E10', 'Keeps its answers for the next evaluation.',
      "name = '/tmp/hacks-kept-@VICTIM'\nopen(name, 'w').close()\nos.unlink(name)\nreturn 'kept'"),
    P('watches files', 'A13', 'Asks the system to tell when a file is read.', "return call(number('inotify'), 0)"),
    # network
    P('connects by TCP', 'F2', 'Opens a connection.', "socket.create_connection(('127.0.0.1', @TCP), 1).close()",
      'tcp'),
    P('sends by UDP', 'F2', 'Sends a datagram: what a name server would get.',
      "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @UDP))", 'udp'),
    P('knocks at a path', 'F2', 'Connects to a socket in the file system, as the container daemon has one.',
      "s = socket.socket(socket.AF_UNIX)\ns.connect('@DOOR')", 'unix'),
    P('knocks at a name', 'F2', 'Connects to an abstract socket.',
      "s = socket.socket(socket.AF_UNIX)\ns.connect('\\0@ABSTRACT')", 'abstract'),
    P('listens', 'F2', 'Waits for others to connect.', "s = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()"),
    # secrets
    P('reads its environment', 'F1', 'Looks for keys in its environment.', "return os.environ['A_SECRET_KEY']",
      'secret'),
    P("reads its first environment", 'F1', 'Looks for keys in what it was started with.',
      "t = open('/proc/self/environ', 'rb').read()\nreturn t[t.index(b'A_SECRET_KEY'):]", 'secret'),
    P(
        "reads the parent's environment", 'F1', "Looks for keys in the evaluator's environment.",
        "t = b''.join(open(f'/proc/{p}/environ', 'rb').read() for p in (@VICTIM,))\nreturn "
        "t[t.index(b'A_SECRET_KEY='):]",
        'secret'),
    P("reads another's memory", 'A5', 'Reads a process of the same user through /proc.',
      "f = open('/proc/@VICTIM/mem', 'rb', 0)\nf.seek(@ADDRESS)\nreturn f.read(@LENGTH)", 'secret'),
    P(
        "copies another's memory", 'A5', 'Reads a process of the same user by a system call.',
        "b = ctypes.create_string_buffer(@LENGTH)\nio = lambda a: ctypes.byref((ctypes.c_uint64 * 2)(a, @LENGTH))\n"
        "call(number('process_vm_readv'), @VICTIM, io(ctypes.addressof(b)), 1, io(@ADDRESS), 1, 0)\nreturn b.raw",
        'secret'),
    P('reads shared memory', 'A6', 'Opens a segment of another program.',
      "return open('/dev/shm/@SHM', 'rb').read(@LENGTH)", 'secret'),
    P('lists processes', 'A5', 'Looks who else is there.',
      "n = [p for p in os.listdir('/proc') if p == '@VICTIM']\nreturn n[0]"),
    # other processes
    P('attaches', 'A5', 'Attaches to a process as a debugger.', "return call(number('ptrace'), 0x4206, @VICTIM, 0, 0)"),
    P('opens a handle', 'A5', 'Opens a handle on a process.', "return call(number('pidfd_open'), @VICTIM, 0)"),
    P('stops a process', 'F4', 'Sends a signal to another process.', 'return os.kill(@VICTIM, signal.SIGSTOP)',
      'signalled'),
    P(
        'signals through a pipe', 'F4', 'Makes another process the owner of a pipe, which then signals it.',
        "libc = ctypes.CDLL(None, use_errno=True)\nr, w = os.pipe()\nfor command, value in ((8, @VICTIM), (10, "
        "signal.SIGSTOP), (4, os.O_ASYNC)):\n"
        "    if libc.fcntl(r, command, value): raise OSError(ctypes.get_errno(), 'refused')\nos.write(w, "
        "b'x')\ntime.sleep(0.1)",
        'signalled'),
    P('asks about a process', 'F4', 'Asks whether it might signal the evaluator.', 'return os.kill(@PARENT, 0)'),
    P('slows a process', 'D14', 'Makes another process wait, such as the one that times the baseline.',
      'return os.setpriority(os.PRIO_PROCESS, @VICTIM, 19)', 'slowed'),
    P('moves pages', 'D14', 'Asks for the pages of another process to be moved.',
      "return call(number('move_pages'), @VICTIM, 0, None, None, None, 0)"),
    P(
        'migrates a process', 'D14', 'Moves all pages of another process to another node.',
        "all = ctypes.byref(ctypes.c_uint64(1))\nreturn call(number('migrate_pages'), @VICTIM, 64, all, all)"),
    P('pins a process', 'D14', 'Pins another process to one core.',
      'return os.sched_setaffinity(@VICTIM, os.sched_getaffinity(@VICTIM))'),
    P('idles a process', 'D14', 'Gives another process only the idle time.',
      'return os.sched_setscheduler(@VICTIM, os.SCHED_OTHER, os.sched_param(0))'),
    P(
        'limits a process', 'D14', 'Sets limits for another process.',
        "old = (ctypes.c_uint64 * 2)()\ncall(number('prlimit'), @VICTIM, 7, None, old)\nreturn "
        "call(number('prlimit'), @VICTIM, 7, old, None)"
    ),
    P("ranks a process' disk", 'D14', 'Changes the disk priority of another process.',
      "return call(number('ioprio'), 1, @VICTIM, 0x4000 | 4)"),
    P('forks', 'F5', 'Starts a copy of itself.', 'pid = os.fork()\nif not pid: os._exit(0)\nreturn os.waitpid(pid, 0)'),
    P(
        'leaves a daemon', 'C6', 'Leaves a process of its own session behind.',
        'pid = os.fork()\nif not pid:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    time.sleep(0.2)\n    '
        'os._exit(0)\nreturn os.waitpid(pid, 0)'
    ),
    P('starts a program', 'F14', 'Starts another program.', "return subprocess.run(['/bin/true'], check=True)"),
    P(
        'starts a program from memory', 'F14', 'Writes a program to memory and starts it.',
        "fd = os.memfd_create('x')\nos.write(fd, b'#!/bin/true\\n')\nreturn subprocess.run([f'/proc/self/fd/{fd}'], "
        "pass_fds=[fd], check=True)"
    ),
    # the kernel of the system
    P('makes namespaces', 'F16', 'Becomes root of a namespace of its own.',
      "return call(number('unshare'), 0x10000000)"),
    P('opens a ring', 'F16', 'Sets up asynchronous system calls.',
      "return call(number('io_uring_setup'), 4, ctypes.create_string_buffer(120))"),
    P('asks for keys', 'F16', "Looks at the session's keyring.", "return call(number('keyctl'), 0, -3, 0)"),
    P('shares a segment', 'F16', 'Makes a segment of old shared memory.',
      "n = call(number('shmget'), 0, 4096, 0o1600)\ncall({29: 31, 194: 195}[number('shmget')], n, 0, None)\nreturn n"),
    P('looks for messages', 'F16', 'Asks what queues of messages there are, whose it need not be told.',
      "return call(number('msgctl'), 0, 12, ctypes.create_string_buffer(256))"),
    P('watches faults', 'F16', 'Handles its own page faults.', "return call(number('userfaultfd'), 1)"),
    P(
        'filters its calls', 'B18', "Puts itself between the harness and the system.",
        "ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)\none = struct.pack('HBBI', 6, 0, 0, 0x7FFF0000)\nb = "
        "ctypes.create_string_buffer(one, 8)\n"
        "p = ctypes.create_string_buffer(struct.pack('HxxxxxxP', 1, ctypes.addressof(b)), 16)\nreturn "
        "call(number('seccomp'), 1, 0, p)"
    ),
    P('writes a knob', 'F15', "Opens a setting of the system's kernel for writing.",
      "os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))"),
    P('takes its memory back', 'B17', 'Writes its own code through /proc.',
      "f = open('/proc/self/mem', 'r+b', 0)\nreturn 'writable'"),
    # resources
    P(
        'many files', 'F12', 'Opens five hundred files.',
        "kept = []\ntry:\n    while len(kept) < 500: kept.append(os.dup(0))\nfinally:\n"
        "    for fd in kept: os.close(fd)\nreturn len(kept)"),
    P(
        'much in memory', 'F8', 'Fills 48 MB of a file in memory, which is not address space.',
        "fd = os.memfd_create('x')\ntry:\n    for _ in range(48): os.write(fd, bytes(1 << 20))\nfinally: "
        "os.close(fd)\nreturn 'filled'"
    ),
    P('much on disk', 'F10', 'Writes 24 MB.',
      "with open('@FOLDER/l4', 'wb') as f:\n    for _ in range(24): f.write(bytes(1 << 20))", 'l4'),
    P(
        'finds open files', 'C1', 'Looks for files and pipes that it was born with, beyond the one of its answer.',
        "found = []\nfor fd in range(3, 4096):\n    try: found.append(os.fstat(fd).st_mode and fd)\n    except "
        "OSError: pass\nif len(found) <= 1: raise LookupError('one')\nreturn found"
    ),]
