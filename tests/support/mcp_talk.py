"A server of tools in a process of its own, and the protocol's official client to talk to it."
import asyncio
import os
import sys
from contextlib import asynccontextmanager

from kernel_lab.evaluate.store.store import Store

SECRET = "sk-not-for-kernels-1234567890"
START = "from kernel_lab.cli.entry import start; start()"


def environment(tmp_path):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ANTHROPIC")}
    return {**kept, "KERNEL_LAB_HOME": str(tmp_path), "ANTHROPIC_API_KEY": SECRET}


@asynccontextmanager
async def connected(tmp_path, *words):
    from mcp.client import Client                           # here: every worker collects the tests, few run them
    from mcp.client.stdio import StdioServerParameters, stdio_client
    args = ["-c", START, "mcp", "--store", str(tmp_path / "runs.db"), *words]
    with open(tmp_path / "stderr.txt", "a") as log:
        parameters = StdioServerParameters(command=sys.executable, args=args, env=environment(tmp_path))
        async with Client(stdio_client(parameters, log)) as client: yield client


def talk(tmp_path, ask, *words):
    "What `ask(client)` returns, with a server of its own."
    async def main():
        async with connected(tmp_path, *words) as client: return await ask(client)
    return asyncio.run(asyncio.wait_for(main(), 300))


def text_of(answer): return answer.content[0].text


def runs_in(tmp_path):
    store = Store(tmp_path / "runs.db")
    try: return [store.load_run(r) for r in store.run_ids()]
    finally: store.close()
