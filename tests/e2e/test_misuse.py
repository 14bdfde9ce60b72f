# SPDX-License-Identifier: Apache-2.0
"""Settings and folders as nobody should give them, for both programs: every refusal is one sentence that
names the file, line or option, with the exit status of the manual, and nothing hangs or is half applied."""
import os
import re
import shutil
import socket
import stat
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "server"))

from harness import BUILD, FAKE, PROFILE, Client, Daemon, Refused, clean_env  # noqa: E402

KREAD_HTTP, KREACTL = os.path.join(BUILD, "kread-http"), os.path.join(BUILD, "kreactl")
PROGRAMS = [FAKE, KREAD_HTTP]
ids = os.path.basename
VALID = "[kread]\ndefault_profile = test\n%s\n" + PROFILE


def run(folder, *args, **more):
    return subprocess.run(args, env=clean_env(folder, **more), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, errors="replace", timeout=30)


def sentence(done, status=1):
    assert done.returncode == status and done.stdout == "", done
    assert re.match(r"kread(-http)?: .+\n\Z", done.stderr) and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def check(folder, program, text):
    path = folder / "c.ini"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return run(folder, program, "--config", str(path), "--check-config")


def names(folder, program):
    """Every name of every section, as the program itself lists them."""
    shown = check(folder, program, VALID % "").stdout
    found, section = [], None
    for line in shown.splitlines():
        head, name = re.match(r"\[(.+)\]", line), re.match(r";? ?(\w+) (=|is not set)", line)
        section = head.group(1) if head else section
        if name and section:
            found.append((section, name.group(1)))
    assert len(found) > 12
    return found


# What they name is judged when all is read, not in its line.
JUDGED_LATER = "default_profile", "listen", "token_file", "socket", "allow_users", "allow_groups"
VALUES = ["", "-1", "-99999999999999999999", "99999999999999999999", "1e999", "1.5", "0x10", "1 2", "%s%n", "/", "x" * 150]


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_every_setting_with_every_wrong_value(tmp_path, program):
    for section, name in names(tmp_path, program):
        text = VALID % "" if program == FAKE else "[http]\n"
        head = "[%s]\n" % section
        if name in ("default_profile", "architecture", "variant", "diffusion_model", "text_encoder", "vae", "tokenizer"):
            text = re.sub(r"(?m)^%s = .*\n" % name, "", text)
        at = text.index(head) + len(head)
        line = text[:at].count("\n") + 1
        for value in VALUES:
            done = check(tmp_path, program, text[:at] + "%s = %s\n" % (name, value) + text[at:])
            assert done.returncode in (0, 1), done
            if done.returncode:
                said = sentence(done)
                assert name in said or value[:40] in said, (name, value, said)
                assert "c.ini:%d: " % line in said or name in JUDGED_LATER, said
            else:
                assert value or name == "negative", (name, "may not be empty")
        good = {"listen": "127.0.0.1:1", "token_file": "x"}.get(name, "1")
        said = sentence(check(tmp_path, program, text[:at] + "%s = %s\n" % (name, good) * 2 + text[at:]))
        assert name in said and "c.ini:" in said
    for section in (("kread", "generation", "profile test") if program == FAKE else ("http",)):
        assert "colour" in sentence(check(tmp_path, program, "[%s]\ncolour = red\n" % section))


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_bytes_that_are_no_text(tmp_path, program):
    for data in (b"[http]\nhosts = a\0b\n", b"[http]\nhosts = \xff\n", b"\xff\xfe[\0h\0", b"\0", b"[http\nhosts = a\n", b"[http]\nhosts\n", b"[http]\n= a\n",
                 b"\x7fELF\1\1\n"):
        assert "c.ini:" in sentence(check(tmp_path, program, data))


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_every_option_used_wrongly(tmp_path, program):
    options = re.findall(r"(?m)^  --([a-z-]+)( [^ \n]+)?", run(tmp_path, program, "--help").stdout)
    assert len(options) > 8
    for name, value in options:
        for word in (["", "=", "=\udcff"] if value else ["=", "=x"]):
            said = sentence(run(tmp_path, program, "--" + name + word), status=2)
            assert name in said or name.replace("-", "_") in said, said


# ----------------------------------------------------------------------------------- no plain file ---

def odd_files(folder):
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    os.symlink("loop", folder / "loop")
    (folder / "large").write_bytes(b"# x\n" * (1 << 19))
    (folder / "line").write_bytes(b"[http]\nhosts = " + b"x" * (1 << 19))
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(folder / "socket"))
    s.close()
    return ["pipe", "folder", "loop", "large", "line", "socket", "missing", "large/under", "x" * 300, "/dev/zero", "/dev/full"]


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_config_files_that_are_none(tmp_path, program):
    for name in odd_files(tmp_path):
        said = sentence(run(tmp_path, program, "--config", name, "--check-config"))
        assert os.path.join(tmp_path, name)[:250] in said
    (tmp_path / "kread").mkdir()
    for name in ("pipe", "folder", "large"):  # found, not named
        os.symlink(tmp_path / name, tmp_path / "kread" / "kread.ini")
        assert "kread.ini" in sentence(run(tmp_path, program, "--check-config"))
        (tmp_path / "kread" / "kread.ini").unlink()


def test_kreactl_looks_for_the_socket_in_no_pipe(tmp_path):
    (tmp_path / "kread").mkdir()
    for name in odd_files(tmp_path):
        (tmp_path / "kread" / "kread.ini").unlink(missing_ok=True)
        os.symlink(os.path.join(tmp_path, name), tmp_path / "kread" / "kread.ini")
        done = run(tmp_path, KREACTL, "status", XDG_RUNTIME_DIR=str(tmp_path))
        assert done.returncode == 3 and done.stderr.count("\n") == 1, (name, done)


def test_token_files_that_are_none(tmp_path):
    for name in odd_files(tmp_path):
        said = sentence(run(tmp_path, KREAD_HTTP, "--config", "/dev/null", "--token-file", name))
        assert "token_file" in said and os.path.join(tmp_path, name)[:250] in said
    for data, words in ((b"", "0 characters"), (b"\n" + b"x" * 20, "0 characters"), (b"x" * 15, "15 characters"), (b"x" * 513, "513"),
                        (b"x" * 20 + b"\0" + b"y" * 20, "letters"), (b"x x" * 10, "blanks"), (b"\xff" * 20, "letters")):
        (tmp_path / "token").write_bytes(data)
        assert words in sentence(run(tmp_path, KREAD_HTTP, "--config", "/dev/null", "--token-file", "token"))


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_a_reader_who_may_not(tmp_path, program):
    """As another user, where the test may become one."""
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    with as_nobody(tmp_path) as nobody:
        (tmp_path / "c.ini").write_text("")
        (tmp_path / "token").write_text("x" * 20)
        for name in ("c.ini", "token"):
            os.chmod(tmp_path / name, 0o600)
        said = sentence(nobody(program, "--config", str(tmp_path / "c.ini"), "--check-config"))
        assert "c.ini" in said and "Permission denied" in said
        if program == KREAD_HTTP:
            said = sentence(nobody(program, "--config", "/dev/null", "--token-file", str(tmp_path / "token")))
            assert "token_file" in said and "Permission denied" in said


def test_a_reload_is_stopped_by_no_pipe(tmp_path):
    with Daemon(tmp_path, "queue_limit = 3") as d:
        os.unlink(tmp_path / "kread.ini")
        os.mkfifo(tmp_path / "kread.ini")
        d.signal(1)  # SIGHUP
        d.logs("SIGHUP: nothing changes: ")
        assert "is a pipe" in d.logged()
        assert Client(d).call("status")["queue_limit"] == 3


# --------------------------------------------------------------------------------- the state folder ---

class as_nobody:
    """Runs programs as user 65534 with `folder` open to it; copies them, as the build may be closed."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        self.opened = []
        for f in [self.folder, *self.folder.parents]:
            mode = os.stat(f).st_mode
            if not mode & stat.S_IXOTH:
                os.chmod(f, mode | 0o5)
                self.opened.append((f, mode))
        (self.folder / "bin").mkdir(exist_ok=True)
        return self.run

    def run(self, program, *args):
        copy = str(self.folder / "bin" / os.path.basename(program))
        shutil.copy(program, copy)
        return subprocess.run([copy, *args], env=clean_env(self.folder), user=65534, group=65534, extra_groups=[], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=30)

    def __exit__(self, *_):
        for f, mode in self.opened:
            os.chmod(f, mode)


def serves_without(folder, state, *words):
    """The daemon does everything but detached jobs, and says why these not."""
    with Daemon(folder, "state_dir = %s" % state) as d:
        c = Client(d)
        with pytest.raises(Refused) as e:
            c.generate("x", detach=True)
        assert e.value.code == "io"
        for word in words:
            assert word in e.value.message, e.value.message
        assert c.finish(c.generate("x")["job"])[0] == "done"
        assert "jobs cannot be detached: " in d.logged()
        c.close()


@pytest.mark.parametrize("kind", ["file", "link to a file", "loop", "device", "pipe", "no place", "jobs is a file", "lock is a folder", "dangling"])
def test_state_folders_that_are_none(tmp_path, kind):
    (tmp_path / "file").write_text("precious")
    state = tmp_path / "state"
    if kind == "file":
        state.write_text("precious")
    elif kind == "link to a file":
        os.symlink("file", state)
    elif kind == "loop":
        os.symlink("state", state)
    elif kind == "dangling":
        os.symlink("nowhere", state)
    elif kind == "device":
        state = "/dev/null"
    elif kind == "pipe":
        os.mkfifo(state)
    elif kind == "no place":
        state = "/proc/self/kread"
    else:
        state.mkdir()
        (state / "jobs").write_text("precious") if kind.startswith("jobs") else (state / "lock").mkdir()
    serves_without(tmp_path, state, str(state))
    assert (tmp_path / "file").read_text() == "precious"


def test_a_state_folder_behind_a_link_is_one(tmp_path):
    (tmp_path / "true").mkdir()
    os.symlink("true", tmp_path / "state")
    with Daemon(tmp_path, "state_dir = state") as d:
        c = Client(d)
        job = c.generate("x", detach=True)["job"]
        assert c.finish(job)[0] == "done" and c.call("fetch", job=job)["png"]
        c.close()
    assert "%d.job" % job in os.listdir(tmp_path / "true" / "jobs")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB."""
    (tmp_path / "disk").mkdir()
    if os.geteuid() != 0 or run(tmp_path, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "disk").returncode:
        pytest.skip("no file system may be mounted here")
    yield tmp_path / "disk"
    subprocess.run(["umount", "-l", tmp_path / "disk"], check=True)


def test_a_full_state_folder(tmp_path, small_disk):
    """Full at the start, and filled by the jobs: it is one job's trouble, and room that comes is used."""
    (small_disk / "ballast").write_bytes(b"x" * 60000)
    while True:
        try:
            with open(small_disk / "ballast", "ab") as f:
                f.write(b"x" * 512)
        except OSError:
            break
    serves_without(tmp_path, small_disk, "No space left", str(small_disk))
    (small_disk / "ballast").unlink()
    with Daemon(tmp_path, "state_dir = %s" % small_disk) as d:
        c = Client(d)
        ends = []
        for _ in range(6):
            try:
                ends.append(c.finish(c.generate("pad=12000", detach=True)["job"])[0])
            except Refused as e:
                assert e.code == "io" and "No space left" in e.message
                ends.append("refused")
        assert ends[0] == "done" and {"failed", "refused"} & set(ends), ends
        kept = [j["job"] for j in c.call("jobs")["jobs"] if j["images"]]
        assert kept and all(c.call("fetch", job=job)["png"] for job in kept)
        assert c.finish(c.generate("x")["job"])[0] == "done"
        c.close()
    with Daemon(tmp_path, "state_dir = %s" % small_disk) as d:
        c = Client(d)
        assert [j["job"] for j in c.call("jobs")["jobs"] if j["images"]] == kept and c.call("status")["spool"]["damaged"] == 0
        c.close()


def test_a_read_only_state_folder(tmp_path, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    serves_without(tmp_path, small_disk, "Read-only file system", str(small_disk))


def test_a_state_folder_of_somebody_else(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", 65534, 65534)
    (tmp_path / "c.ini").write_text(VALID % ("state_dir = state\nsocket = run/s"))
    with as_nobody(tmp_path):
        shutil.copy(FAKE, tmp_path / "bin" / "kread")
        log = open(tmp_path / "log", "w+")
        p = subprocess.Popen([tmp_path / "bin" / "kread", "--config", tmp_path / "c.ini"], env=clean_env(tmp_path), user=65534, group=65534,
                             extra_groups=[], stderr=log)
        try:
            while "jobs cannot be detached" not in open(log.name).read():
                assert p.poll() is None, open(log.name).read()
            assert "%s cannot be used: Permission denied" % (tmp_path / "state") in open(log.name).read()
        finally:
            p.terminate()
            assert p.wait(60) == 0
