"""What an attack could hurt, all of it ours: a folder with a secret, a victim and an answer, a key in the
environment, doors on the loopback, a sleeping process.

Nothing here touches another process, another folder or another machine. `Scene.hurt()` says what has happened, seen
from outside."""
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing import shared_memory
from pathlib import Path

VICTIM = """import sys, time
canary = bytearray(sys.stdin.buffer.readline().strip())
import ctypes
print(ctypes.addressof((ctypes.c_char * len(canary)).from_buffer(canary)), flush=True)
time.sleep(600)"""

VICTIMS, KEPT = tuple(f"v{k}" for k in range(1, 7)), ("secret.txt", "door", "door2")


class Scene:
    """Canaries and doors; a context.

    `words` are what an attack may know of them: it reads `@FOLDER`, `@PID`, … in its text."""
    def __enter__(self):
        self.secret, self.folder = f'canary-{secrets.token_hex(8)}', Path(tempfile.mkdtemp(prefix='hacks-'))
        os.environ['A_SECRET_KEY'] = self.secret
        (self.folder / 'secret.txt').write_text(self.secret)
        self._restore()
        self.doors = {}
        self._listen('tcp', socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', 0))
        self._listen('udp', socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.1', 0))
        self._listen('unix', socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / 'door'))
        self._listen('abstract', socket.AF_UNIX, socket.SOCK_STREAM,
                     f'\0{self.secret[:20]}-door' if sys.platform == 'linux' else str(self.folder / 'door2'))
        self.shm = shared_memory.SharedMemory(create=True, size=64)
        self.shm.buf[:len(self.secret)] = self.secret.encode()
        self.victim = subprocess.Popen([sys.executable, '-I', '-S', '-c', VICTIM], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)
        self.victim.stdin.write(self.secret.encode() + b'\n'); self.victim.stdin.flush()
        self.address = int(self.victim.stdout.readline())
        self.niceness = os.getpriority(os.PRIO_PROCESS, self.victim.pid)
        return self

    def _listen(self, name, family, kind, address):
        door = socket.socket(family, kind)
        door.bind(address)
        if kind == socket.SOCK_STREAM: door.listen(16)
        door.setblocking(False)                  # who has been there is asked of the system, when it matters
        self.doors[name] = door

    def _visits(self):
        "The doors that somebody used since this was asked last."
        found = set()
        for name, door in self.doors.items():
            with suppress(BlockingIOError):
                while True:
                    door.accept()[0].close() if door.type == socket.SOCK_STREAM else door.recvfrom(64)
                    found.add(name)
        return found

    def _restore(self):
        for p in self.folder.iterdir():
            if p.name not in KEPT: p.unlink()
        for name in VICTIMS:
            (self.folder / name).write_text('as it was')
            os.chmod(self.folder / name, 0o644)
        self.before = self._state()

    def _state(self):
        return {
            p.name: (p.read_bytes(), oct(p.stat().st_mode), p.stat().st_mtime_ns)
            for p in self.folder.iterdir()
            if p.name in VICTIMS}

    @property
    def words(self):
        tcp, udp = (self.doors[k].getsockname()[1] for k in ('tcp', 'udp'))
        return {
            '@FOLDER': str(self.folder), '@TCP': tcp, '@UDP': udp, '@DOOR': str(self.folder / 'door'),
            '@ABSTRACT': self.secret[:20] + '-door', '@VICTIM': self.victim.pid, '@ADDRESS': self.address,
            '@LENGTH': len(self.secret), '@SHM': self.shm.name.lstrip('/'), '@PARENT': os.getpid()}

    def told(self, source):
        "A source with the words in it."
        for k, v in sorted(self.words.items(), key=lambda kv: -len(kv[0])): source = source.replace(k, str(v))
        return source

    def hurt(self):
        """What has happened since, as a set of words: doors that were used, files that changed or appeared, what was
        done to the process."""
        found, now = self._visits(), self._state()
        found |= {n for n in VICTIMS
                  if now.get(n) != self.before[n]} | {p.name for p in self.folder.iterdir()} - {*KEPT, *VICTIMS}
        if self.victim.poll() is not None or _stopped(self.victim.pid): found.add('signalled')
        if os.getpriority(os.PRIO_PROCESS, self.victim.pid) != self.niceness: found.add('slowed')
        return found

    def heal(self):
        "As it was, for the next."
        self._visits()
        self._restore()
        os.setpriority(os.PRIO_PROCESS, self.victim.pid, self.niceness)
        os.kill(self.victim.pid, signal.SIGCONT)

    def __exit__(self, *_):
        os.environ.pop('A_SECRET_KEY', None)
        for door in self.doors.values(): door.close()
        self.victim.kill(); self.victim.wait(); self.victim.stdin.close(); self.victim.stdout.close()
        self.shm.close(); self.shm.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)


def _stopped(pid):
    try: return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] in 'TZ'
    except OSError: return True
