"""A PostgreSQL server of the tests' own: in a temporary folder, on a socket in it, gone with them."""
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path


def binaries():
    "The folder of initdb and postgres: on PATH, or where Debian puts them; None where there is no server."
    near = [Path(shutil.which('initdb')).resolve().parent] if shutil.which('initdb') else []
    far = sorted(
        Path('/usr/lib/postgresql').glob('*/bin'), key=lambda p: float(p.parent.name)
        if p.parent.name.replace('.', '').isdigit() else 0, reverse=True)
    return next((p for p in [*near, *far] if (p / 'initdb').exists() and (p / 'postgres').exists()), None)


def user():
    "How to start the server: PostgreSQL refuses to run as root."
    if os.getuid(): return {}
    for name in ('postgres', 'nobody'):
        try: found = pwd.getpwnam(name)
        except KeyError: continue
        return dict(user=found.pw_uid, group=found.pw_gid, extra_groups=[])
    return {}


def why_not():
    "Why there can be no server here, or None."
    if binaries() is None:
        return 'no PostgreSQL server is installed (initdb and postgres; Debian: apt install postgresql)'
    try: import psycopg  # noqa: F401
    except ImportError: return "the driver psycopg is not installed (pip install 'kernel-lab[postgres]')"
    return None


class Server:
    "A running server; `database()` makes a fresh database and returns its URL."
    def __init__(self):
        self.folder, self.bin, self.user, self.count = Path(tempfile.mkdtemp(
            prefix='kernel-lab-pg-')), binaries(), user(), 0
        if self.user: os.chown(self.folder, self.user['user'], self.user['group'])
        self.env = {'PATH': os.environ['PATH'], 'LC_ALL': 'C', 'HOME': str(self.folder)}
        run = dict(check=True, capture_output=True, cwd=self.folder, env=self.env, timeout=120, **self.user)
        subprocess.run([
            self.bin / 'initdb', '-D', self.folder / 'data', '-U', 'lab', '-A', 'trust', '-E', 'UTF8', '--no-locale',
            '-N'], **run)
        self.start()

    def start(self):
        options = [
            '-c', 'listen_addresses=', '-c', f'unix_socket_directories={self.folder}', '-c', 'fsync=off', '-c',
            'max_connections=40', '-c', 'shared_buffers=16MB']
        self.log = open(self.folder / 'log', 'ab')
        self.process = subprocess.Popen([self.bin / 'postgres', '-D', self.folder / 'data', *options],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.folder,
                                        env=self.env, start_new_session=True, **self.user)
        self._wait()

    def _wait(self):
        import psycopg
        until = time.monotonic() + 60
        while True:
            try: return psycopg.connect(self.conninfo('postgres'), connect_timeout=5).close()
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder / 'log').read_text()[-2000:]) from None
                time.sleep(0.05)

    def conninfo(self, name): return f'host={self.folder} user=lab dbname={name}'

    def database(self):
        import psycopg
        self.count += 1
        with psycopg.connect(self.conninfo('postgres'), autocommit=True) as c:
            c.execute(f'create database lab{self.count}')
        return f'postgresql://lab@/lab{self.count}?host={self.folder}'

    def end(self, how=signal.SIGINT):
        "End the server: SIGINT at once but in order, SIGQUIT as if the power had failed."
        self.process.send_signal(how)
        self.process.wait(60)
        self.log.close()

    def close(self):
        if self.process.poll() is None: self.end()
        shutil.rmtree(self.folder, ignore_errors=True)
