# SPDX-License-Identifier: Apache-2.0
"""A client of kread that owes nothing to the others: written from kread-protocol(7) alone, in plain msgpack.

second_client.py make PROMPT FILE | detach PROMPT | watch JOB | fetch JOB FILE | cancel JOB | jobs
"""
import os
import socket
import sys

import msgpack


class Kread:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.unpacker = msgpack.Unpacker(max_buffer_size=256 << 20)
        self.last_id, self.notices = 0, []
        self.call("hello", version=1, client="second")

    def message(self):
        for message in self.unpacker:
            return message
        data = self.socket.recv(65536)
        if not data:
            raise SystemExit("the daemon closed the connection")
        self.unpacker.feed(data)
        return self.message()

    def call(self, method, **params):
        self.last_id += 1
        self.socket.sendall(msgpack.packb([0, self.last_id, method, [params]]))
        while True:
            message = self.message()
            if message[0] == 2:
                self.notices.append(message)
            elif message[1] in (0, self.last_id):
                if message[2] is not None:
                    raise SystemExit("%(code)s: %(message)s" % message[2])
                return message[3]

    def end(self, job, on_image):
        """Follows a job to its last notification and returns its name."""
        while True:
            _, method, [params] = self.notices.pop(0) if self.notices else self.message()
            if params["job"] != job:
                continue
            if method == "image" and not params.get("preview"):
                on_image(params["png"])
            elif method == "failed":
                raise SystemExit("%(code)s: %(message)s" % params["error"])
            elif method in ("done", "cancelled"):
                return method


def main(command, *arguments):
    kread = Kread(os.environ["KREAD_SOCKET"])
    save = lambda png: open(arguments[1], "wb").write(png)
    if command == "make":
        print(kread.end(kread.call("generate", prompt=arguments[0])["job"], save))
    elif command == "detach":
        print(kread.call("generate", prompt=arguments[0], detach=True)["job"])
    elif command == "watch":
        kread.call("watch", job=int(arguments[0]))
        print(kread.end(int(arguments[0]), lambda png: None))
    elif command == "fetch":
        save(kread.call("fetch", job=int(arguments[0]))["png"])
    elif command == "cancel":
        print(kread.call("cancel", job=int(arguments[0]))["state"])
    elif command == "jobs":
        print(*("%(job)d %(state)s" % job for job in kread.call("jobs")["jobs"]), sep="\n")


main(*sys.argv[1:])
