# SPDX-License-Identifier: Apache-2.0
"""Short jobs from clients that come, cancel, stall, detach, fetch and vanish at random (seeded): the
daemon's memory and descriptors at the end are those after the first twentieth. KREAD_SOAK is the number
of jobs; from 10,000 on fifty clients ask for them."""
import os
import random
import threading
import time

import msgpack

from harness import SANITIZED, Client, Daemon, Refused, quick_folder, wait_until

JOBS = int(os.environ.get("KREAD_SOAK", "1000"))
CLIENTS = 50 if JOBS >= 10000 else 20


# worker_timeout: an idle daemon gives memory back at every look at its worker, here twice a second.
SETTINGS = ("keep_images = 5\nqueue_limit = 80\nuser_queue_limit = 75\nworker_timeout = 1\n"
            "log_level = error")


class Crowd:
    def __init__(self, daemon, jobs):
        self.daemon, self.left = daemon, jobs
        self.lock = threading.Lock()
        self.ends = {"done": 0, "failed": 0, "cancelled": 0, "left": 0, "busy": 0}
        self.errors = []

    def take(self):
        with self.lock:
            self.left -= 1
            return self.left >= 0

    def count(self, what):
        with self.lock:
            self.ends[what] += 1

    def one_job(self, client, rng):
        """True: the client lives on."""
        prompt = rng.choice(["x", "ms=1", "ms=3", "pad=30000", "fail=io", "pad=300000"])
        try:
            detach = rng.random() < 0.2
            job = client.generate(prompt, steps=rng.randrange(1, 4), count=rng.randrange(1, 3),
                                  preview=rng.randrange(0, 3), detach=detach)["job"]
        except Refused as e:
            assert e.code == "busy"
            self.count("busy")
            with self.lock:
                self.left += 1  # that was none
            time.sleep(0.005)
            return True
        chance = rng.random()
        if chance < 0.15:
            self.count("left")
            return False
        if chance < 0.25:
            client.send_bytes(msgpack.packb([0, 1, "status", []])[:rng.randrange(1, 5)])
            if rng.random() < 0.3:
                time.sleep(0.05)  # and stalls for a while
            self.count("left")
            return False
        if chance < 0.4:
            client.call("cancel", job=job)
        elif chance < 0.5:
            client.call("watch")
        elif chance < 0.6:
            time.sleep(rng.random() * 0.02)
        end = client.finish(job)[0]
        self.count(end)
        if detach and end == "done" and rng.random() < 0.5:
            try:
                assert client.call("fetch", job=job)["png"]
            except Refused as e:
                assert e.code == "no_job"  # dropped to make room
        client.notices.clear()
        return rng.random() < 0.9

    def run(self, seed):
        rng = random.Random(seed)
        try:
            client = None
            while self.take():
                client = client or Client(self.daemon, hello="crowd")
                if not self.one_job(client, rng):
                    client.close()
                    client = None
            if client:
                client.close()
        except Exception as e:  # reported by the main thread
            self.errors.append(repr(e))


def soak(daemon, jobs, seed):
    crowd = Crowd(daemon, jobs)
    threads = [threading.Thread(target=crowd.run, args=(seed * 1000 + i,)) for i in range(CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not crowd.errors, crowd.errors
    probe = Client(daemon)
    wait_until(lambda: probe.call("status")["clients"] == 1)
    wait_until(lambda: not [j for j in probe.call("jobs")["jobs"]
                            if j["state"] in ("queued", "running")])
    status = probe.call("status")
    probe.close()
    return crowd.ends, status


def check(folder):
    with Daemon(folder, SETTINGS) as d:
        probe = Client(d)
        wait_until(lambda: probe.call("status")["clients"] == 1)
        descriptors = d.descriptors() - 1
        probe.close()
        soak(d, max(JOBS // 20, 200), 1)
        wait_until(lambda: d.descriptors() == descriptors, "closing of descriptors")
        time.sleep(1.5)
        memory = d.memory()
        ends, status = soak(d, JOBS, 2)
        wait_until(lambda: d.descriptors() == descriptors, "closing of descriptors")
        time.sleep(1.5)
        print("%d jobs: %s; memory %.2f MB after the first twentieth, %.2f MB at the end; %d descriptors"
              % (JOBS, ends, memory / 1e6, d.memory() / 1e6, descriptors))
        assert SANITIZED or d.memory() < memory + (1 << 20), (memory, d.memory())
        assert status["queued"] == 0 and status["running"] is None
        assert status["kept"]["images"] <= 5 and status["spool"]["damaged"] == 0
        assert all(ends[k] > 0 for k in ("done", "failed", "cancelled", "left")), ends
    assert len(os.listdir(d.state("jobs"))) <= 105 + 5  # what is remembered, and five pictures


def test_soak():
    with quick_folder() as folder:
        check(folder)
