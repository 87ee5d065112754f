"""Process 1 of a sandbox container: reads jobs from the host, has templates run them, keeps the deadlines, answers in order.

Host to supervisor: u32 length, then u32 id, u8 flags (1 validate, 2 alone, 4 imports), and the job, which goes unread to the
program's process. The first frame is the configuration. Supervisor to host: u32 length, u32 id, u8 number of runs, and the runs
(`RUN` and two texts). It trusts no byte of a program: a value counts only if the stream is exactly head and one frame, the
process has ended with status 0, and nothing else is in the pipe. Standard library only.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # `-P` keeps the script's folder out

from keys import KeyServer
from servers import CHILDREN, SERVER_ENDED, WANTS_MODULES, Run, Template
from uids import first_mapped
from walls import PROGRAM_UIDS

RUN = struct.Struct("!cIIIBI")  # verdict, cpu µs, wall µs, RSS KiB, length of the key (a first run may have one), of the text
MAX_FRAME = 1 << 25  # of a job: a benchmark's longest test
IDLE_SECONDS = 900  # a container whose host went silent ends itself


class Host:
    """The stream to the host: frames in, answers out in batches, with the keys that they want."""

    def __init__(self):
        self.buffer, self.answers, self.flushed = bytearray(), [], time.monotonic()
        self.keys: KeyServer | None = None

    def frame(self) -> bytes | None:
        """The next frame, or None at the end of the stream. Answers are flushed before waiting."""
        while True:
            if len(self.buffer) >= 4:
                size = int.from_bytes(self.buffer[:4], "big")
                if size > MAX_FRAME:
                    return None
                if len(self.buffer) >= 4 + size:
                    data = bytes(self.buffer[4 : 4 + size])
                    del self.buffer[: 4 + size]
                    return data
            if not select.select([0], [], [], 0)[0]:
                self.flush()
                if not select.select([0], [], [], IDLE_SECONDS)[0]:
                    return None
            data = os.read(0, 1 << 18)
            if not data:
                return None
            self.buffer += data

    def answer(self, number: int, runs: list[Run], program: bytes = b"") -> None:
        """Queues the answer to a job; `program` is the text whose key is wanted."""
        self.answers.append((number, runs, program))
        if len(self.answers) >= 32 or time.monotonic() - self.flushed > 0.04:
            self.flush()

    def flush(self) -> None:
        """Sends what is queued."""
        answers, self.answers = self.answers, []
        wanted = [program for _, _, program in answers if program]
        keys = iter(self.keys.answers(wanted) if wanted else [])
        self.send(*[pack(number, runs, next(keys) if program else b"K") for number, runs, program in answers])
        self.flushed = time.monotonic()

    def send(self, *bodies: bytes) -> None:
        """Writes frames."""
        data = b"".join([len(body).to_bytes(4, "big") + body for body in bodies])
        while data:
            data = data[os.write(1, data) :]


def pack(number: int, runs: list[Run], key: bytes) -> bytes:
    """An answer's bytes: its runs, the first with the key; a tree too large for a key is an unparsed program's."""
    if key[:1] == b"U":
        runs, key = [(b"U", *runs[0][1:4], key[1:], False, False)], b""
    key = key[1:]
    body = [struct.pack("!IB", number, len(runs))]
    for verdict, cpu, wall, rss, text, *_ in runs:
        body += [RUN.pack(verdict, cpu, wall, rss, len(key), len(text)), key, text]
        key = b""
    return b"".join(body)


def said(run: Run, word: bytes) -> bool:
    """Whether the server said so, and not a program."""
    return run[0] == b"C" and run[4] == word


class Supervisor:
    """Runs jobs one at a time; a container is one worker."""

    def __init__(self, host: Host, config: dict):
        self.host, self.config = host, config
        self.templates: dict[tuple[int, bool], Template] = {}
        host.keys = self.keys = KeyServer(config)

    def template(self, index: int, full: bool) -> Template:
        place = index, full
        if place not in self.templates or self.templates[place].gone():
            self.templates[place] = Template(index, full, self.config)
        return self.templates[place]

    def uid(self, index: int) -> int:
        """The user of a server's programs: another one in every server, and always the same, so that no value changes with it."""
        return self.config["uid"] + index

    def job(self, number: int, flags: int, payload: bytes) -> None:
        full = bool(flags & 4)
        runs = self.runs(flags, payload, full)
        if not full and any(said(run, WANTS_MODULES) for run in runs):
            runs = self.runs(flags, payload, True)
        wants_key = flags & 1 and runs[0][5] and not said(runs[0], SERVER_ENDED)
        program = payload[5 : 5 + int.from_bytes(payload[1:5], "big")] if wants_key else b""
        self.host.answer(number, runs, program)

    def runs(self, flags: int, payload: bytes, full: bool) -> list[Run]:
        """A job's runs in servers of one size; after the first that gives no value there is none."""
        alone, flush = bool(flags & 2), self.host.flush
        runs = [self.template(0, full).run(payload, self.uid(0), alone, flush)]
        if flags & 1 and runs[0][0] == b"V":
            sensitive = runs[0][6] or payload[0] & 8  # the program may show an order, or is given a set
            payload = bytes([payload[0] & 2 | 4]) + payload[1:]  # it has passed, and a trace is wanted once
            for index in range(1, self.config["witnesses"] + 2 if sensitive else 2):
                runs.append(self.template(index, full).run(payload, self.uid(index), alone, flush))
                if runs[-1][0] != b"V":
                    break
        return runs

    def serve(self) -> None:
        while True:
            frame = self.host.frame()
            if frame is None:
                return
            number, flags = struct.unpack_from("!IB", frame)
            self.job(number, flags, frame[5:])


def attest(supervisor: Supervisor) -> dict:
    """What stands around this process and around a program, read back rather than trusted."""
    with open("/proc/self/status") as file:
        lines = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    with open("/proc/net/dev") as file:
        interfaces = sorted(line.split(":")[0].strip() for line in file if ":" in line)
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file]
    writable = sorted(m[4] for m in mounts if "rw" in m[5].split(",") and not m[4].startswith(("/proc", "/dev", "/sys")))
    folder = os.path.dirname(os.path.abspath(__file__))
    digest = hashlib.sha256()
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".py")):
        with open(os.path.join(folder, name), "rb") as file:
            digest.update(name.encode() + b"\0" + file.read())
    return {
        "runner_sha256": digest.hexdigest(),
        "python": sys.version.split()[0],
        "machine": os.uname().machine,
        "interfaces": interfaces,
        "writable_mounts": writable,
        "supervisor": {name: lines.get(name) for name in ("Uid", "CapEff", "CapBnd", "Seccomp", "NoNewPrivs")},
        "memory_limit": _read("/sys/fs/cgroup/memory/memory.limit_in_bytes") or _read("/sys/fs/cgroup/memory.max"),
        "pids_limit": _read("/sys/fs/cgroup/pids/pids.max") or _read("/sys/fs/cgroup/pids.max"),
        "pid": os.getpid(),
        "uids": [supervisor.config["uid"], PROGRAM_UIDS + 1],
        "uid_map": (_read("/proc/self/uid_map") or "").split(),
        "key_server": supervisor.keys.probe(),
        "program": [supervisor.template(index, False).probe(supervisor.uid(index)) for index in (0, 1)],
    }


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, CHILDREN)
    host = Host()
    first = host.frame()
    if first is None:
        return
    config = json.loads(first)
    if config["core"] is not None:
        with contextlib.suppress(OSError):  # a daemon elsewhere may have fewer
            os.sched_setaffinity(0, {config["core"]})
    config["uid"] = first_mapped(config["uid"], PROGRAM_UIDS + 1) or config["uid"]
    supervisor = Supervisor(host, config)
    host.send(struct.pack("!IB", 0xFFFFFFFF, 0) + json.dumps(attest(supervisor)).encode())
    supervisor.serve()
    for template in supervisor.templates.values():
        template.kill()
    supervisor.keys.kill()


if __name__ == "__main__":
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    main()
