# SPDX-License-Identifier: Apache-2.0
"""What kread-http adds to a job: the median time of txt2img over a kept HTTP connection beside that of the same job over
the daemon's socket, in turns, with the engine that only pretends and takes no time. Prints both and the difference, and
fails above one millisecond."""
import contextlib
import json
import os
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir, "http"), os.path.join(HERE, os.pardir, "server")]

from harness import Client, Daemon  # noqa: E402
from shim import Shim  # noqa: E402

ROUNDS, LIMIT = 400, 1.0  # milliseconds


def over_socket(daemon):
    """As kreactl does: connect, hello, generate, read to the end."""
    client = Client(daemon, hello="bench")
    client.finish(client.generate("a fox", seed=1)["job"])
    client.close()


def over_http(connection):
    connection.request("POST", "/sdapi/v1/txt2img", body=b'{"prompt":"a fox","seed":1}')
    response = connection.getresponse()
    assert response.status == 200 and json.loads(response.read())["images"]


def timed(run, *args):
    start = time.perf_counter()
    run(*args)
    return (time.perf_counter() - start) * 1000


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    with tempfile.TemporaryDirectory() as folder, Daemon(folder) as daemon, Shim(os.path.join(folder, "http"), daemon) as shim:
        with contextlib.closing(shim.connection()) as connection:
            pairs = [(timed(over_socket, daemon), timed(over_http, connection)) for _ in range(ROUNDS)][ROUNDS // 10:]
    socket, http = median([p[0] for p in pairs]), median([p[1] for p in pairs])
    print("a job over the socket %.3f ms, over HTTP %.3f ms, added %.3f ms (medians of %d in turns)"
          % (socket, http, http - socket, len(pairs)))
    return 0 if http - socket <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
