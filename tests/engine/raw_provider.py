"""A provider on loopback that writes what a test says, byte for byte: HTTP, half of it, something else, or nothing."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from django.db import connections

from tests.engine.scripted import Seen, asked, completion

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def http(
    body: bytes = b"",
    *,
    status: str = "200 OK",
    headers: Sequence[str] = ("Content-Type: application/json",),
    length: int | None = None,
) -> bytes:
    """A whole answer with `Content-Length`: that of the body, or `length` where it lies."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def chunked(*chunks: bytes, headers: Sequence[str] = (), end: bool = True) -> bytes:
    """An answer in chunks, without its last one where `end` is false."""
    head = "\r\n".join(["HTTP/1.1 200 OK", *headers, "Transfer-Encoding: chunked"]).encode()
    parts = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
    return head + b"\r\n\r\n" + b"".join(parts) + (b"0\r\n\r\n" if end else b"")


class Wire:
    """One connection, as the provider holds it."""

    def __init__(self, sock: socket.socket, over: threading.Event) -> None:
        self._sock = sock
        self._over = over
        self._rest = b""

    def send(self, data: bytes) -> bool:
        """False where the other side has gone."""
        with suppress(OSError):
            self._sock.sendall(data)
            return True
        return False

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def reset(self) -> None:
        """Ends the connection with a reset instead of an end of file."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def pause(self, seconds: float) -> bool:
        """False where the test is over."""
        return not self._over.wait(seconds)

    def say_nothing(self) -> None:
        self._over.wait()

    def request(self) -> tuple[bytes, bytes] | None:
        """Head and body of the next request; None where no more comes."""
        found = None
        while found is None or len(self._rest) < found[1]:
            if found is None and b"\r\n\r\n" in self._rest:
                head = self._rest.index(b"\r\n\r\n") + 4
                length = LENGTH.search(self._rest[:head])
                found = (head, head + (int(length[1]) if length else 0))
                continue
            try:
                more = self._sock.recv(1 << 16)
            except OSError:
                return None
            if not more:
                return None
            self._rest += more
        head, end = found
        whole, self._rest = self._rest[:end], self._rest[end:]
        return whole[:head], whole[head:]


Speak = Callable[[Wire, Seen], object]


def say(data: bytes) -> Speak:
    """Sends the same bytes each time and keeps the connection."""
    return lambda wire, seen: wire.send(data)


def say_and_close(data: bytes) -> Speak:
    def speak(wire: Wire, seen: Seen) -> None:
        wire.send(data)
        wire.close()

    return speak


def answer_right(wire: Wire, seen: Seen) -> None:
    wire.send(http(completion(seen.right_answer)))


class RawProvider:
    """`speak` is given each request with its connection; it may be replaced at any time and may use the database."""

    def __init__(self, speak: Speak = answer_right) -> None:
        self.speak = speak
        self.seen: list[Seen] = []
        self.paths: list[str] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._wires: list[Wire] = []
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def requests_of(self, case: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.case == case]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            wire = Wire(sock, self._over)
            thread = threading.Thread(target=self._serve, args=(wire,), daemon=True)
            self._wires.append(wire)
            self._threads.append(thread)
            thread.start()

    def _serve(self, wire: Wire) -> None:
        try:
            while (request := wire.request()) is not None:
                head, body = request
                with self._lock:
                    seen = self._remember(head, body)
                self.speak(wire, seen)
        finally:
            wire.close()
            connections.close_all()

    def _remember(self, head: bytes, body: bytes) -> Seen:
        first, *lines = head.decode("latin-1").split("\r\n")
        case = asked(body).split("|", 1)[0] if body else ""
        nth = len(self.requests_of(case)) + 1
        headers = dict(line.split(": ", 1) for line in lines if line)
        seen = Seen(len(self.seen) + 1, case, nth, body, headers, time.monotonic())
        self.seen.append(seen)
        self.paths.append(first.split(" ")[1])
        return seen

    @contextmanager
    def running(self) -> Iterator[RawProvider]:
        accepting = threading.Thread(target=self._accept, daemon=True)
        accepting.start()
        try:
            yield self
        finally:
            self._over.set()
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            accepting.join(10)
            for wire in self._wires:
                wire.close()
            for thread in self._threads:
                thread.join(10)


@contextmanager
def never_accepting() -> Iterator[str]:
    """An address where a connection is never made: the listener's queue is full and nobody empties it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        try:
            for _ in range(8):
                one = socket.socket()
                one.setblocking(False)
                with suppress(BlockingIOError):
                    one.connect(listener.getsockname())
                waiting.append(one)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            for one in waiting:
                one.close()
