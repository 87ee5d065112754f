"""The supervisor's side of the key server. Standard library only."""

import ast
import contextlib
import socket

from serve import CONTROL
from servers import cpu_ceiling, end_server, spawn
from walls import PROGRAM_UIDS


class KeyServer:
    """One process that digests programs; started again where it has left or was ended by a limit."""

    def __init__(self, config: dict):
        self.config = config
        self._start()

    def _start(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(self.config["wall_seconds"])
        numbers = self.config["memory_mb"], cpu_ceiling(self.config), self.config["uid"] + PROGRAM_UIDS
        self.pid = spawn("key_server.py", [str(number) for number in numbers], {}, {CONTROL: theirs.fileno()}, self.config)
        theirs.close()
        self.attestation = self._receive()

    def probe(self) -> dict:
        """What it attests of its own walls."""
        return ast.literal_eval(self.attestation.decode())

    def answers(self, programs: list[bytes]) -> list[bytes]:
        """For each `K` and its key, or `U` and why there is none. All at once: what the server needs is then in the core's cache.

        A server that ends at a text may have had little of its time left: it is asked again, and where the next one ends there
        too, that is the answer.
        """
        found: list[bytes] = []
        ended = -1
        while len(found) < len(programs):
            try:
                for program in programs[len(found) :]:
                    self.control.send(program, socket.MSG_NOSIGNAL)
                while len(found) < len(programs):
                    found.append(self._receive())
            except OSError:
                end_server(self.pid)
                found += self._left()
                self.control.close()
                self._start()
                if ended == len(found):
                    found.append(b"Uthe syntax tree takes more than the limits allow")
                else:
                    ended = len(found)
        return found

    def _receive(self) -> bytes:
        found = self.control.recv(1 << 16)
        if not found:
            raise OSError("the key server has ended")
        return found

    def _left(self) -> list[bytes]:
        """What a server that has ended had answered; before that, its socket says once that texts lie unread at the other end."""
        found = []
        for _ in range(2):
            with contextlib.suppress(OSError):
                while answer := self.control.recv(1 << 16):
                    found.append(answer)
        return found

    def kill(self) -> None:
        """Ends it."""
        self.control.close()
        end_server(self.pid)
