"""A TCP connection to a server on which a test can break what no client of the server can."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Wire:
    """Listens on a port of its own and passes bytes on, until something is done to it.

    `cut`: connections break and new ones are refused. `silence`: connections stay and new ones are accepted, but no
    byte passes, as behind a firewall that drops.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._server = (host, port)
        self._listener: socket.socket | None = None
        self._sockets: set[socket.socket] = set()
        self._flow = threading.Event()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def laid(self) -> Iterator[Wire]:
        self.restore()
        try:
            yield self
        finally:
            self.cut()

    def restore(self) -> None:
        self._flow.set()
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))  # it sets SO_REUSEADDR
            self.port = self._listener.getsockname()[1]
            threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def silence(self) -> None:
        self._flow.clear()

    def cut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            _break(listener)
        with self._lock:
            for one in self._sockets:
                _break(one)
        self._flow.set()  # threads that wait find their sockets broken and end

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # cut
            server = socket.create_connection(self._server)
            with self._lock:
                self._sockets |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=[one, other], daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self._flow.wait()
                other.sendall(data)
        for end in (one, other):
            _break(end)
        with self._lock:
            self._sockets -= {one, other}


def _break(one: socket.socket) -> None:
    # shutdown wakes the thread that waits on it, which close alone does not
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
