"""A proxy in front of a Unix socket that can be cut off, hang, or answer a path with an error: a daemon with faults."""

import contextlib
import socket
import threading
from pathlib import Path


class UnixProxy:
    """Passes bytes on between its own socket and `target`."""

    def __init__(self, path: Path, target: str):
        self.path, self.target = path, target
        self.hangs = False
        self.refused: dict[bytes, bytes] = {}  # start of a request -> the whole answer
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.start()

    @property
    def url(self) -> str:
        """For DOCKER_HOST."""
        return f"unix://{self.path}"

    def start(self) -> None:
        """Listens (again)."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Ends every connection and accepts no more."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.path.unlink(missing_ok=True)
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = listener.accept()
                threading.Thread(target=self._serve, args=(ours,), daemon=True).start()

    def _serve(self, ours: socket.socket) -> None:
        theirs = socket.socket(socket.AF_UNIX)
        theirs.connect(self.target)
        self._open |= {ours, theirs}
        back = threading.Thread(target=self._pass, args=(theirs, ours, False), daemon=True)
        back.start()
        self._pass(ours, theirs, True)
        back.join()
        self._open -= {ours, theirs}
        ours.close()
        theirs.close()

    def _pass(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        """Until the end of one direction, whose end is passed on too: a container's standard input ends that way."""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                answer = next((answer for start, answer in self.refused.items() if asks and data.startswith(start)), None)
                if answer is not None:
                    source.sendall(answer)
                elif not self.hangs:
                    target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
