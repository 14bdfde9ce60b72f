# SPDX-License-Identifier: Apache-2.0
"""Config file, command line, choice of profile and precedence, seen from outside: --check-config prints
what is in effect, and whatever is wrong is one sentence. The engine is the pretending one, so no
model files are needed."""
import os
import re
import shutil
import subprocess

import pytest

BUILD = os.environ.get("KREAD_BUILD", os.path.abspath("build"))
KREAD = os.path.join(BUILD, "tests", "kread-fake")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

PROFILE = """[profile p]
architecture = krea2
variant = turbo
diffusion_model = dit.safetensors
text_encoder = /abs/te.safetensors
vae = ../vae.safetensors
tokenizer = tok
"""


class Box:
    """A home of its own, with no config file and no demo."""

    def __init__(self, folder):
        self.folder = folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("KREAD_", "XDG_"))}
        self.env.update(HOME=str(folder / "home"))

    def run(self, *args, **env):
        return subprocess.run([KREAD, *args], capture_output=True, text=True, timeout=60,
                              cwd=self.folder, env={**self.env, **env}, errors="surrogateescape")

    def write(self, text, name="kread.ini"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def check(self, text, *args, **env):
        """The effective settings of a config file as {name: value}."""
        return self.effective("--config", self.write(text), *args, **env)

    def effective(self, *args, **env):
        done = self.run("--check-config", *args, **env)
        assert done.returncode == 0, done.stderr
        return dict(re.findall(r"(?m)^(\w+) = (.*)$", done.stdout))

    def refuse(self, text, *words, line=None):
        """The file is refused, at that line, and by a start as well as by the check."""
        path = self.write(text)
        for args in (["--check-config"], ["--inspect"], []):
            done = self.run("--config", path, *args)
            assert done.returncode == 1 and done.stdout == "", (done.stdout, done.stderr)
            assert done.stderr.startswith("kread: ") and done.stderr.count("\n") == 1, done.stderr
            if line is not None:
                assert done.stderr.startswith("kread: %s:%d: " % (path, line)), done.stderr
            for word in words:
                assert word in done.stderr, done.stderr


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


KREAD_P = "[kread]\ndefault_profile = p\n"

# ------------------------------------------------------------------------------ the file ----------


def test_all_settings(box):
    got = box.check("""; a comment
# another
[kread]
default_profile = p
socket = run/s.sock
socket_access = group
device = cpu
residency = stream
threads = 3
log_level = debug
log_prompts = yes
allow_users = root, 1000
allow_groups = daemon
queue_limit = 5
user_queue_limit = 4
client_queue_limit = 3
max_pixels = 1000000
max_steps = 60
max_count = 4
output_dir = out
state_dir = state
keep_images = 7
keep_megabytes = 8
keep_days = 6
max_clients = 9
user_clients = 8
client_timeout = 10
stop_timeout = 11
worker_timeout = 12

[generation]
steps = 12
cfg = 1.5
negative = ugly, blurred   ; a comment at the end
rng = cpu

""" + PROFILE + """width = 512
shift_y1 = 0.25
dialect = comfyui
text_encoder_without_vision = yes
""")
    base = str(box.folder)
    assert got == {
        "default_profile": "p", "socket": base + "/run/s.sock", "socket_access": "group",
        "device": "cpu", "residency": "stream", "threads": "3", "fp8_products": "yes", "log_level": "debug",
        "log_prompts": "yes", "allow_users": "root, 1000", "allow_groups": "daemon",
        "queue_limit": "5", "user_queue_limit": "4", "client_queue_limit": "3", "max_pixels": "1000000", "max_steps": "60", "max_count": "4",
        "output_dir": base + "/out", "state_dir": base + "/state", "keep_images": "7",
        "keep_megabytes": "8", "keep_days": "6", "max_clients": "9", "user_clients": "8",
        "client_timeout": "10", "stop_timeout": "11", "worker_timeout": "12",
        "architecture": "krea2", "variant": "turbo",
        "diffusion_model": base + "/dit.safetensors", "text_encoder": "/abs/te.safetensors",
        "vae": base + "/../vae.safetensors", "tokenizer": base + "/tok",
        "text_encoder_without_vision": "yes", "negative": "ugly, blurred", "width": "512",
        "steps": "12", "cfg": "1.5", "shift_y1": "0.25", "rng": "cpu", "dialect": "comfyui"}


def test_defaults(box):
    got = box.check(KREAD_P + PROFILE)
    assert got["device"] == "auto" and got["queue_limit"] == "64" and got["stop_timeout"] == "30"
    assert "steps" not in got  # left to the variant
    assert "; steps is not set: 8 (turbo), 52 (raw)" in box.run(
        "--config", str(box.folder / "kread.ini"), "--check-config").stdout


def test_what_check_prints_is_a_config_file(box):
    text = KREAD_P + "threads = 2\n" + PROFILE + "steps = 9\n"
    first = box.run("--check-config", "--config", box.write(text)).stdout
    again = box.run("--check-config", "--config", box.write(first)).stdout
    strip = lambda s: [l for l in s.splitlines() if not l.startswith(";")]
    assert strip(first) == strip(again)


def test_shipped_example(box):
    done = box.run("--check-config", "--config", os.path.join(ROOT, "etc", "kread.ini"))
    assert done.returncode == 0, done.stderr
    # With everything in it switched on it is valid as well, and it names every setting there is.
    with open(os.path.join(ROOT, "etc", "kread.ini")) as f:
        text = re.sub(r"(?m)^;(\w+ =|\[)", r"\1", f.read())
    text = text.replace("negative =\n", "negative = dull\n")
    text = text.replace("= alice, bob\n", "= root\n").replace("= artists\n", "= root\n")  # who is anywhere
    done = box.run("--check-config", "--config", box.write(text))
    assert done.returncode == 0, done.stderr
    assert " is not set" not in re.sub("; (mu|shift_y.|preview)[^\n]*", "", done.stdout)
    listed = set(re.findall(r"(?m)^(\w+) = ", text))
    assert listed >= set(re.findall(r"(?m)^;? ?(\w+) (?:=|is not set)", done.stdout))


@pytest.mark.parametrize("text", [
    "\ufeff" + KREAD_P + PROFILE,
    (KREAD_P + PROFILE).replace("\n", "\r\n"),
    (KREAD_P + PROFILE).replace("\n", "\n\n"),
    (KREAD_P + PROFILE).rstrip("\n"),
    "".join("   \t" + l + "  \n" for l in (KREAD_P + PROFILE).splitlines()),
    KREAD_P.replace(" = ", "=") + PROFILE.replace(" = ", ": "),
    "[ kread ]\ndefault_profile = p\n" + PROFILE.replace("[profile p]", "[ profile \t p ] ; mine"),
    KREAD_P + "; " + "long comment " * 100 + "\n" + PROFILE,
    KREAD_P + PROFILE + "[http]\nlisten = 127.0.0.1:1234\nlisten = [::1]:1234\nanything = goes\n",
], ids=["mark", "crlf", "blank lines", "no end of line", "indented", "tight", "blanks in brackets",
        "long comment", "http"])
def test_forms(box, text):
    got = box.check(text)
    assert got["default_profile"] == "p" and got["variant"] == "turbo"


@pytest.mark.parametrize("text, line, words", [
    ("[kread]\ncolour = red\n", 2, ["colour", "[kread]"]),
    ("[kread]\n\nsteps = 8\n", 3, ["steps", "[kread]"]),
    ("[kraed]\n", 1, ["kraed"]),
    ("[kread]\n[Profile x]\n", 2, ["Profile x"]),
    ("[profiles x]\n", 1, ["profiles x"]),
    ("threads = 3\n", 1, ["threads", "section"]),
    ("[kread]\nthreads = three\n", 2, ["threads", "three", "1024"]),
    ("[kread]\nthreads = 3x\n", 2, ["threads"]),
    ("[kread]\nthreads = 1025\n", 2, ["threads", "1025"]),
    ("[kread]\nthreads = -1\n", 2, ["threads"]),
    ("[kread]\nthreads = 99999999999999999999\n", 2, ["threads"]),
    ("[kread]\nthreads =\n", 2, ["threads"]),
    ("[kread]\nqueue_limit = 1.5\n", 2, ["queue_limit"]),
    ("[kread]\ndevice = gpu\n", 2, ["device", "gpu", "cuda"]),
    ("[kread]\ndevice = CPU\n", 2, ["device"]),
    ("[kread]\nsocket =\n", 2, ["socket", "empty"]),
    ("[kread]\nsocket = ; nothing\n", 2, ["socket", "empty"]),
    ("[kread]\n= 3\n", 2, ["name"]),
    ("[kread]\nthreads\n", 2, ["name = value"]),
    ("[kread]\nthreads = 1\nthreads = 1\n", 3, ["threads", "twice"]),
    ("[kread]\n[kread]\n", 2, ["kread", "already"]),
    ("[generation]\nsteps = 3\n[generation]\n", 3, ["generation"]),
    ("[kread]\nconfig = x\n", 2, ["config"]),
    ("[kread]\ntrace = x\n", 2, ["trace"]),
    ("[kread]\nvae = x\n", 2, ["vae"]),
    ("[kread\n", 1, ["]"]),
    ("[]\n", 1, ["no name"]),
    ("[   ]\n", 1, ["no name"]),
    ("[kread] threads = 3\n", 1, ["behind"]),
    ("[profile]\n", 1, ["no name"]),
    ("[profile  ]\n", 1, ["no name"]),
    ("[profile a b]\n", 1, ["a b"]),
    ("[profile a/b]\n", 1, ["a/b"]),
    ("[profile ü]\n", 1, ["ü"]),
    ("[profile x]\n[kread]\n[profile x]\n", 3, ["x", "line 1"]),
    ("[profile %s]\n" % ("x" * 60), 1, ["49"]),
    ("[profile x]\narchitecture = sdxl\n", 2, ["architecture", "sdxl", "krea2"]),
    ("[profile x]\nvariant = fast\n", 2, ["variant", "turbo", "raw"]),
    ("[profile x]\nsteps = 0\n", 2, ["steps", "1"]),
    ("[profile x]\nsteps = 8\nsteps = 9\n", 3, ["steps", "twice"]),
    ("[profile x]\nvae = a\nvae = b\n", 3, ["vae", "twice"]),
    ("[profile x]\nwidth = 1e9\n", 2, ["width"]),
    ("[profile x]\ntext_encoder_without_vision = maybe\n", 2, ["yes or no"]),
    ("[profile x]\nprompt = a cat\n", 2, ["prompt", "request"]),
    ("[profile x]\nmodel = a\n", 2, ["model"]),
    ("[generation]\nseed = 3\n", 2, ["seed", "request"]),
    ("[generation]\ncfg = nan\n", 2, ["cfg"]),
    ("[generation]\ncfg = inf\n", 2, ["cfg"]),
    ("[generation]\nrng = dice\n", 2, ["rng", "cuda"]),
    ("[generation]\nthreads = 3\n", 2, ["threads", "[generation]"]),
    (b"[kread]\n; caf\xe9\n", 2, ["UTF-8"]),
    (b"[kread]\nsocket = /tmp/\xff\n", 2, ["UTF-8"]),
    (b"[kread]\nthreads = 1\x00\n", 2, ["UTF-8"]),
    (b"\xff\xfe[\x00k\x00", 1, ["UTF-8"]),
    (b"\x7fELF\x02\x01\x01", 1, []),
    ("[kread]\nthreads = 1\nsocket = /%s\nqueue_limit = 2\n" % ("x" * 200), 3, ["socket", "198"]),
    ("[generation]\nnegative = %s threads = 3\n" % ("x, " * 100), 2, ["negative", "198"]),
])
def test_refused(box, text, line, words):
    box.refuse(text, *words, line=line)


def test_longest_line(box):
    value = "/" + "x" * (198 - len("output_dir = ") - 1)
    assert box.check("[kread]\ndefault_profile = p\noutput_dir = " + value + "\n" + PROFILE)[
        "output_dir"] == value
    box.refuse("[kread]\noutput_dir = " + value + "x\n", "output_dir", line=2)


def test_nothing_is_applied_of_a_bad_file(box):
    """The last line is wrong: the daemon does not start with what stood before it."""
    box.refuse(KREAD_P + PROFILE + "steps = none\n", "steps", line=10)


def test_first_error_wins(box):
    box.refuse("[kread]\none = 1\ntwo = 2\n[kraed]\n", "one", line=2)


def test_missing_directory_and_odd_files(box):
    done = box.run("--config", "nowhere.ini")
    assert done.returncode == 1 and "nowhere.ini" in done.stderr and "No such" in done.stderr
    done = box.run("--config", str(box.folder))
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    done = box.run("--config", "/dev/zero")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    done = box.run("--config", box.write("# x\n" * 300000))
    assert done.returncode == 1 and "megabyte" in done.stderr
    done = box.run("--config", "/dev/null")
    assert done.returncode == 1 and "profile" in done.stderr


# ------------------------------------------------------------------------------ where it is -------

def test_search_order(box):
    home = KREAD_P + "threads = 1\n" + PROFILE
    xdg = KREAD_P + "threads = 2\n" + PROFILE
    given = KREAD_P + "threads = 3\n" + PROFILE
    box.write(home, "home/.config/kread/kread.ini")
    assert box.effective()["threads"] == "1"
    box.write(xdg, "xdg/kread/kread.ini")
    env = {"XDG_CONFIG_HOME": str(box.folder / "xdg")}
    assert box.effective(**env)["threads"] == "2"
    assert box.effective("--config", box.write(given), **env)["threads"] == "3"
    assert box.effective(XDG_CONFIG_HOME="relative")["threads"] == "1"
    assert box.effective(XDG_CONFIG_HOME="")["threads"] == "1"


def test_relative_config_path(box):
    box.write(KREAD_P + PROFILE, "sub/kread.ini")
    got = box.effective("--config", "sub/kread.ini")
    assert got["tokenizer"] == str(box.folder / "sub" / "tok")
    os.symlink(str(box.folder / "sub" / "kread.ini"), str(box.folder / "link.ini"))
    assert box.effective("--config", "link.ini")["tokenizer"] == str(box.folder / "tok")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_not_skipped(box):
    os.chmod(box.write(KREAD_P + PROFILE, "home/.config/kread/kread.ini"), 0)
    done = box.run("--check-config")
    assert done.returncode == 1 and "Permission denied" in done.stderr


# ------------------------------------------------------------------------------ profiles ----------

def test_choice_of_profile(box):
    two = PROFILE + PROFILE.replace("profile p", "profile q").replace("turbo", "raw")
    assert box.check("[kread]\ndefault_profile = q\n" + two)["variant"] == "raw"
    assert box.check("[kread]\ndefault_profile = q\n" + two, "--profile", "p")["variant"] == "turbo"
    box.refuse(two, "--profile", "default_profile", "p, q")
    box.refuse("[kread]\ndefault_profile = r\n" + two, "no profile r", "p, q")
    done = box.run("--config", box.write(two), "--profile", "x")
    assert done.returncode == 1 and "no profile x" in done.stderr
    box.refuse("[kread]\nthreads = 1\n", "no [profile NAME]")


def test_without_config(box):
    done = box.run("--profile", "x")
    assert done.returncode == 1 and "x" in done.stderr and "kread.ini" in done.stderr


def test_without_config_and_demo(box):
    """Run from a place that has no demo beside it."""
    if os.path.exists("/usr/local/share/kread/demo"):
        pytest.skip("the demo is installed on this machine")
    place = box.folder / "bin" / "kread"
    place.parent.mkdir()
    shutil.copy(KREAD, place)
    for args in ([], ["--check-config"], ["--inspect"], ["--profile", "demo"]):
        done = subprocess.run([place, *args], capture_output=True, text=True, env=box.env)
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert "kread.ini" in done.stderr and "demo" in done.stderr
    shutil.copytree(os.path.join(ROOT, "demo"), box.folder / "demo",
                    ignore=lambda _, names: [n for n in names if n != "demo.ini"])
    done = subprocess.run([place, "--check-config"], capture_output=True, text=True, env=box.env)
    assert done.returncode == 0 and "[profile demo]" in done.stdout


def test_demo_folder_that_is_wrong(box):
    for args in ([], ["--check-config"], ["--profile", "demo"]):
        done = box.run(*args, KREAD_DEMO_DIR="/no/demo")
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert "KREAD_DEMO_DIR" in done.stderr and "/no/demo" in done.stderr


def test_demo_is_the_embedded_default(box):
    demo = os.path.join(ROOT, "demo")
    got = box.effective(KREAD_DEMO_DIR=demo)
    assert got["default_profile"] == "demo" and got["variant"] == "turbo"
    assert got["diffusion_model"].startswith(demo + "/") and int(got["width"]) < 1024
    # A config file that was found takes its place, unless the demo is asked for by name.
    done = box.run("--config", box.write("[kread]\nthreads = 1\n"), KREAD_DEMO_DIR=demo)
    assert done.returncode == 1 and "has no [profile NAME]" in done.stderr
    got = box.check("[kread]\nthreads = 1\n", "--profile", "demo", KREAD_DEMO_DIR=demo)
    assert got["default_profile"] == "demo" and got["threads"] == "1"
    mine = PROFILE.replace("profile p", "profile demo")
    got = box.check(mine, "--profile", "demo", KREAD_DEMO_DIR=demo)
    assert got["text_encoder"] == "/abs/te.safetensors"


def test_bad_demo_file_is_said(box):
    box.write("[profile demo]\nwdith = 3\n", "d/demo.ini")
    done = box.run(KREAD_DEMO_DIR=str(box.folder / "d"))
    assert done.returncode == 1 and "demo.ini:2: " in done.stderr and "wdith" in done.stderr


def test_incomplete_profile(box):
    box.refuse("[kread]\ndefault_profile = p\n" + PROFILE.replace("vae = ../vae.safetensors\n", ""),
               "[profile p] has no vae", line=3)
    # A path option completes it, but nothing on the command line says what it is.
    text = PROFILE.replace("vae = ../vae.safetensors\n", "")
    assert box.check(KREAD_P + text, "--vae", "v")["vae"] == str(box.folder / "v")
    for key in ("architecture", "variant"):
        text = re.sub(key + " = .*\n", "", PROFILE)
        box.refuse(KREAD_P + text, "has no " + key)


def test_check_looks_at_other_profiles_too(box):
    text = KREAD_P + PROFILE + "[profile q]\nvariant = raw\n"
    done = box.run("--check-config", "--config", box.write(text))
    assert done.returncode == 1 and "[profile q] has no architecture" in done.stderr
    assert box.run("--inspect", "--config", box.write(text)).returncode == 0


def test_check_refuses_what_a_start_would(box):
    long = "/" + "s" * 107
    done = box.run("--check-config", "--config", box.write(KREAD_P + PROFILE), "--socket", long)
    assert done.returncode == 1 and "has 108 bytes, at most 107 fit" in done.stderr
    box.check(KREAD_P + PROFILE, "--socket", long[:-1])
    for key, what in (("allow_users", "user"), ("allow_groups", "group")):
        text = "[kread]\n%s = root, nobody-of-that-name\n" % key + (KREAD_P + PROFILE).removeprefix("[kread]\n")
        done = box.run("--check-config", "--config", box.write(text))
        assert done.returncode == 1 and "the system knows no such " + what in done.stderr, done.stderr


def test_check_notes_missing_files(box):
    done = box.run("--check-config", "--config", box.write(KREAD_P + PROFILE))
    assert done.returncode == 0 and "note: diffusion_model" in done.stderr


# ------------------------------------------------------------------------------ precedence --------

def test_profile_over_generation(box):
    text = KREAD_P + "[generation]\nsteps = 20\ncfg = 2\n" + PROFILE + "steps = 30\n"
    got = box.check(text)
    assert got["steps"] == "30" and got["cfg"] == "2"


def test_command_line_over_file(box):
    text = KREAD_P + "device = cpu\nresidency = stream\nthreads = 3\nlog_level = warn\n" + PROFILE
    got = box.check(text)
    assert (got["device"], got["residency"]) == ("cpu", "stream")
    got = box.check(text, "--device", "cuda", "--residency=cached", "--threads=5",
                    "--log-level", "error", "--diffusion-model", "mine.safetensors",
                    "--text-encoder=/x/te", "--vae", "v", "--tokenizer", "t")
    assert got["device"] == "cuda" and got["residency"] == "cached" and got["threads"] == "5"
    assert got["log_level"] == "error" and got["text_encoder"] == "/x/te"
    assert got["diffusion_model"] == str(box.folder / "mine.safetensors")  # the caller's folder
    assert got["variant"] == "turbo"


def test_socket_order(box):
    base = str(box.folder)
    with_socket = KREAD_P + "socket = file.sock\n" + PROFILE
    assert box.check(KREAD_P + PROFILE)["socket"] == "/run/kread/kread.sock"
    env = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert box.check(KREAD_P + PROFILE, **env)["socket"] == "/run/user/7/kread.sock"
    assert box.check(with_socket, **env)["socket"] == base + "/file.sock"
    env["KREAD_SOCKET"] = "/env.sock"
    assert box.check(with_socket, **env)["socket"] == "/env.sock"
    assert box.check(with_socket, "--socket", "/argv.sock", **env)["socket"] == "/argv.sock"
    assert box.check(with_socket, "--socket", "argv.sock", **env)["socket"] == base + "/argv.sock"
    env = {"KREAD_SOCKET": "", "XDG_RUNTIME_DIR": ""}
    assert box.check(KREAD_P + PROFILE, **env)["socket"] == "/run/kread/kread.sock"


# ------------------------------------------------------------------------------ command line ------

def test_version_and_help(box):
    done = box.run("--version")
    assert done.returncode == 0 and re.fullmatch(r"kread \d+\.\d+\.\d+\n", done.stdout)
    done = box.run("--help")
    assert done.returncode == 0 and done.stderr == ""
    for option in ("config", "profile", "socket", "device", "residency", "diffusion-model",
                   "text-encoder", "vae", "tokenizer", "threads", "trace", "log-level", "inspect",
                   "check-config", "version", "help"):
        assert "--" + option in done.stdout
    assert all(len(l) <= 100 and l == l.rstrip() for l in done.stdout.splitlines())
    assert box.run("-h").stdout == done.stdout
    assert box.run("--version", "--config", "/nowhere").returncode == 0


@pytest.mark.parametrize("args, words", [
    (["--colour"], ["--colour"]),
    (["-x"], ["-x"]),
    (["picture"], ["picture"]),
    ([""], []),
    (["--"], []),
    (["--threads"], ["--threads", "value"]),
    (["--threads", "many"], ["threads", "many"]),
    (["--threads=2000"], ["2000"]),
    (["--threads="], ["threads"]),
    (["--device", "tpu"], ["tpu", "cuda"]),
    (["--config", ""], ["config", "empty"]),
    (["--inspect=yes"], ["--inspect"]),
    (["--inspect", "--check-config"], ["--inspect"]),
    (["--json"], ["--inspect"]),
    (["--queue-limit", "3"], ["--queue-limit"]),
    (["--check_config"], ["--check_config"]),
    (["--" + "x" * 500], []),
])
def test_wrong_usage(box, args, words):
    done = box.run(*args)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("kread: ")
    for word in words:
        assert word in done.stderr


def test_not_utf8_on_the_command_line(box):
    done = subprocess.run([KREAD, b"--profile", b"\xff"], capture_output=True, env=box.env)
    assert done.returncode == 2 and b"UTF-8" in done.stderr


def test_wrong_usage_is_told_before_a_bad_file(box):
    done = box.run("--config", box.write("nonsense"), "--threads", "x")
    assert done.returncode == 2


def test_inspect(box):
    path = box.write(KREAD_P + PROFILE)
    done = box.run("--inspect", "--config", path)
    assert done.returncode == 0 and "dit.safetensors" in done.stdout
    done = box.run("--inspect", "--json", "--config", path)
    assert done.stdout == '{"profile": "p"}\n'
    done = box.run("--inspect", "--config", path, FAKE_ENGINE_OPEN="te: no good")
    assert done.returncode == 1 and done.stderr == "kread: te: no good\n"


def test_full_standard_output(box):
    with open("/dev/full", "w") as full:
        for args in (["--help"], ["--version"]):
            done = subprocess.run([KREAD, *args], stdout=full, stderr=subprocess.PIPE, env=box.env)
            assert done.returncode == 1 and b"No space" in done.stderr
