# SPDX-License-Identifier: Apache-2.0
"""A daemon that does what a test tells it to.

It knows the protocol's outside only: MessagePack-RPC as docs/protocol.md describes it, with the
msgpack module. A test gives a function that is run for each connection in a thread of its own.
"""
import hashlib
import os
import socket
import threading

import msgpack


def png(size=300):
    """Bytes that begin as a PNG does; no one here looks further."""
    return b"\x89PNG\r\n\x1a\n" + hashlib.shake_128(b"%d" % size).digest(size - 8)


class Connection:
    def __init__(self, sock):
        self.sock = sock
        self.unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)

    def receive(self):
        """The next message, None at the end."""
        while True:
            for message in self.unpacker:
                return message
            data = self.sock.recv(65536)
            if not data:
                return None
            self.unpacker.feed(data)

    def request(self, method=None):
        """(id, parameters) of the next request; hello is answered on the way."""
        while True:
            message = self.receive()
            assert message is not None, "the client left"
            kind, number, name, params = message
            assert kind == 0 and isinstance(params, list) and len(params) <= 1
            params = params[0] if params else {}
            if name == "hello" and method != "hello":
                assert params["version"] == 1 and params["client"].startswith("kreactl ")
                self.answer(number, {"version": 1, "name": "kread", "release": "9.9"})
                continue
            assert method in (None, name), "%s came, %s was expected" % (name, method)
            return (number, params) if method else (number, name, params)

    def send(self, message):
        self.sock.sendall(msgpack.packb(message, use_bin_type=True))

    def answer(self, number, result):
        self.send([1, number, None, result])

    def refuse(self, number, code, text="because"):
        self.send([1, number, {"code": code, "message": text}, None])

    def notify(self, method, **params):
        self.send([2, method, [params]])

    def accept(self, job=7, **more):
        """Takes a generate request and accepts it; returns its parameters."""
        number, params = self.request("generate")
        count = params.get("count", 1)
        result = {"job": job, "position": 0, "warning": None, "width": 64, "height": 64,
                  "steps": 8, "seed": params.get("seed", 42), "count": count}
        result.update(more)
        self.answer(number, result)
        return params

    def image(self, index=0, seed=42, job=7, data=None):
        self.notify("image", job=job, index=index, seed=seed, width=64, height=64,
                    png=png() if data is None else data)

    def done(self, job=7, seed=42, count=1):
        self.notify("done", job=job, seed=seed, count=count, times={"total": 1.5}, peak=1000)


class FakeDaemon:
    """Listens on PATH until close(); failures of the handler are raised there."""

    def __init__(self, path, handler):
        self.path, self.handler, self.errors, self.threads = path, handler, [], []
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(path)
        self.server.listen(8)
        self.acceptor = threading.Thread(target=self.run, daemon=True)
        self.acceptor.start()

    def run(self):
        while True:
            try:
                sock, _ = self.server.accept()
            except OSError:
                return
            thread = threading.Thread(target=self.serve, args=(sock,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def serve(self, sock):
        with sock:
            sock.settimeout(20)
            try:
                self.handler(Connection(sock))
            except (BrokenPipeError, ConnectionResetError):
                pass
            except BaseException as e:  # also assertions, which belong to the test
                self.errors.append(e)

    def close(self):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for thread in self.threads:
            thread.join(20)
        os.unlink(self.path)
        if self.errors:
            raise self.errors[0]
