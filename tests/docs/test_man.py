# SPDX-License-Identifier: Apache-2.0
"""The manual pages and the completions that `make manual` makes: right for the tools that read them, and true."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))
from harness import Daemon, clean_env  # noqa: E402

BUILD = pathlib.Path(os.environ.get("KREAD_BUILD", ROOT / "build")).resolve()
PAGES = ["kread.8", "kread-http.8", "kreactl.1", "kread.ini.5", "kread-protocol.7"]
PROGRAMS = ["kread", "kreactl", "kread-http"]


def needs(tool):
    return pytest.mark.skipif(not shutil.which(tool), reason="%s is not installed" % tool)


def run(*argv, **options):
    return subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60, **options)


def page(name):
    return BUILD / "man" / name


def rendered(name):
    """The page as one line of text."""
    done = run("mandoc", "-T", "utf8", "-O", "width=1000", page(name))
    text = re.sub(".\x08", "", done.stdout)
    return text.replace("\u2010", "-").replace("\u00a0", " ")


# ------------------------------------------------------------------------------ checkers ----------

@needs("mandoc")
@pytest.mark.parametrize("name", PAGES)
def test_mandoc_finds_nothing(name):
    done = run("mandoc", "-T", "lint", page(name))
    said = [line for line in done.stdout.split("\n")
            if line and not re.search(r"outdated mandoc.db|referenced manual not found", line)]
    assert said == []


@needs("man")
@pytest.mark.parametrize("name", PAGES)
def test_man_warns_of_nothing(name):
    env = dict(os.environ, LC_ALL="C.UTF-8", MANWIDTH="80")
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page(name)], env=env,
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and done.stderr == ""


# ------------------------------------------------------------------------------ truth -------------

def options_in(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))


def helps(program):
    """All that a program says of itself."""
    text = run(BUILD / program, "--help", env=clean_env("/")).stdout
    if program == "kreactl":
        for command in re.findall(r"^  (\w+)", text, flags=re.M):
            text += run(BUILD / program, "help", command).stdout
    return text


@needs("mandoc")
@pytest.mark.parametrize("program, name", [("kread", "kread.8"), ("kreactl", "kreactl.1"), ("kread-http", "kread-http.8")])
def test_options_are_those_of_the_program(program, name):
    text = rendered(name)
    described = set(re.findall(r"^ +(?:-\w[^,]*, )?(--[a-z0-9-]+)", text, flags=re.M))
    assert options_in(helps(program)) - {"--detach", "--profile", "--inspect"} <= options_in(text)
    assert described <= options_in(helps(program)) and len(described) >= 5


@needs("mandoc")
def test_settings_are_those_of_the_daemon(tmp_path):
    text = rendered("kread.ini.5")
    daemon = Daemon(tmp_path)
    daemon.stop()
    done = run(BUILD / "tests/kread-fake", "--config", tmp_path / "kread.ini", "--check-config", env=clean_env(tmp_path))
    names = re.findall(r"^(?:; )?(\w+)(?: =| is not set)", done.stdout, flags=re.M)
    assert len(names) > 30
    for name in names:
        assert re.search(r"^ +%s = " % name, text, flags=re.M), name
    example = set(re.findall(r"^;?(\w+) =", (ROOT / "etc/kread.ini").read_text(), flags=re.M))
    described = set(re.findall(r"^     (\w+) = ", text, flags=re.M))
    assert example <= described
    own = text[text.index("SECTION kread"):text.index("SECTION generation")]
    assert set(re.findall(r"^     (\w+) = ", own, flags=re.M)) <= example


@needs("mandoc")
def test_what_a_reload_applies(tmp_path):
    """The page says so of a setting exactly where a reload does it."""
    text = rendered("kread.ini.5")
    section = text[text.index("SECTION kread"):text.index("SECTIONS profile")]
    entries = re.split(r"\n\n     (?=\S+ = )", section)[1:]
    live = {e.split(" ")[0] for e in entries if "A reload applies it." in e}
    assert {"queue_limit", "log_level", "max_clients"} <= live and not live & {"device", "threads", "socket"}
    with Daemon(tmp_path, "queue_limit = 5\nmax_clients = 9\nmax_steps = 3\nthreads = 2") as d:
        path = tmp_path / "kread.ini"
        path.write_text(re.sub(r"= [5932]\n", "= 4\n", path.read_text()))
        d.signal(1)
        d.logs("settings are read again")
        for name in "queue_limit", "max_clients", "max_steps", "threads":
            assert ("%s is 4 now" % name in d.logged()) == (name in live), name


# ------------------------------------------------------------------------------ the protocol ------

def words(text):
    return re.findall(r"\w+", text)


def is_rule(row):
    return row.startswith("|-") and set(row) <= set("|- \n")


def units(markdown):
    """The texts of the page that the manual has in one piece each: paragraphs, items, cells, lines of code."""
    markdown = re.sub(r"<!--.*?-->|^# .*$", "", markdown, flags=re.M)
    fenced = re.findall(r"```python\n(.*?)```", markdown, flags=re.S)
    markdown = re.sub(r"```python\n.*?```", lambda m: re.sub(r"^", "    ", m.group(0)[10:-3], flags=re.M), markdown,
                      flags=re.S)
    assert fenced
    blocks = re.split(r"\n\n+|\n(?=- |#|\|)", markdown)
    for block, after in zip(blocks, blocks[1:] + [""]):
        if re.match(r"- \[", block) or is_rule(block) or is_rule(after):
            continue  # the list of contents; the head of a table, whose names stand before the cells
        if block.startswith("|"):
            yield from block.strip().strip("|").split("|")
        elif block.startswith("    "):
            yield from block.split("\n")
        else:
            yield re.sub(r"^#+ ", "", block)


def plain(text):
    text = re.sub(r"\[([^\]]*)\]\((https?[^)]*)\)", r"\1 \2", text)
    return " ".join(words(re.sub(r"\[([^\]`]*)\]\(#[^)]*\)", r"\1", text)))


@needs("mandoc")
def test_the_protocol_says_the_same_on_both_pages():
    manual = " ".join(words(rendered("kread-protocol.7"))).lower()
    markdown = (ROOT / "docs/protocol.md").read_text()
    at, missing = 0, []
    for unit in units(markdown):
        text = plain(unit).lower()
        found = manual.find(text, at)
        if found < 0:
            missing.append(unit)
        at = max(at, found)
    assert missing == [] and at > 0.9 * len(manual)
    known = set(words(plain(markdown).lower())) | set(words(markdown.lower()))
    frame = "kread protocol 7 miscellaneous information manual name how programs talk to the picture daemon " \
            "description errors of requests see also kreactl 1 ini 5 8 november 30 2026 debian"
    assert set(manual.split()) - known - set(frame.split()) == set()


def test_the_example_is_installed_as_it_is_printed(tmp_path):
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/protocol.md").read_text(), flags=re.S).group(1)
    assert page("client.py").read_text() == code
    with Daemon(tmp_path) as d:
        done = run(sys.executable, page("client.py"), "a red circle", cwd=tmp_path, env=clean_env(tmp_path, KREAD_SOCKET=d.socket))
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "picture-0.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------ completions -------

BASH = """
source "$1"; shift
compopt() { :; }
COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2))
"_${1//-/_}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def bash(program, *line, **options):
    done = run("bash", "-c", BASH, "bash", BUILD / "completions/bash" / program, program, program, *line, **options)
    return done.stdout.split()


def test_bash_completes_options_and_choices(tmp_path):
    for program in PROGRAMS:
        assert set(bash(program, "--")) == options_in(run(BUILD / program, "--help", env=clean_env("/")).stdout) - \
            {"--detach"} or program == "kread"
    assert bash("kread", "--dev") == ["--device"]
    assert bash("kread", "--device", "c") == ["cuda", "cpu"] == bash("kread", "--device", "=", "c")
    assert bash("kreactl", "gen") == ["generate"]
    assert bash("kreactl", "--socket", "/a", "--json", "gen") == ["generate"]
    assert bash("kreactl", "--socket", "=", "/a", "can") == ["cancel"]
    assert bash("kreactl", "generate", "--dialect", "") == ["krea", "comfyui"]
    assert bash("kreactl", "status", "--wi") == [] and bash("kreactl", "generate", "--wi") == ["--width"]
    (tmp_path / "a picture.png").touch()
    assert " ".join(bash("kreactl", "generate", "-o", "a", cwd=tmp_path)) == "a picture.png"
    assert "generate" in bash("kreactl", "help", "")


def test_bash_completes_the_numbers_of_jobs(tmp_path):
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "kreactl").write_text("#!/bin/sh\nprintf '  JOB  STATE\\n   12  done\\n  123  queued\\n'\n")
    (fake / "kreactl").chmod(0o755)
    env = dict(os.environ, PATH="%s:%s" % (fake, os.environ["PATH"]))
    assert bash("kreactl", "fetch", "12", env=env) == ["12", "123"]
    assert bash("kreactl", "fetch", "-o", "x", "", env=env) == ["12", "123"]


@pytest.mark.parametrize("shell, option", [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_completions_are_right_for_the_shell(shell, option):
    if not shutil.which(shell):
        pytest.skip("%s is not installed" % shell)
    for program in PROGRAMS:
        done = run(shell, option, BUILD / "completions" / shell / program)
        assert done.returncode == 0 and done.stdout == "", done.stdout


@needs("fish")
def test_fish_completes():
    def fish(line):
        done = run("fish", "--no-config", "-c", "source %s; complete -C'%s'" % (BUILD / "completions/fish/kreactl", line))
        return [row.split("\t")[0] for row in done.stdout.split("\n") if row]
    assert fish("kreactl gene") == ["generate"]
    assert sorted(fish("kreactl generate --dialect ")) == ["comfyui", "krea"]
    assert "--width" in fish("kreactl generate --w") and "--width" not in fish("kreactl status --w")


ZSH = """
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1=; fpath=($1 \\$fpath); autoload -U compinit; compinit -u -D; zstyle ':completion:*' list-colors ''; cd $2"
zpty -w z "LISTMAX=1000; bindkey '^I' complete-word"
sleep 1
zpty -n -w z "$3"$'\\t\\t'
sleep 2
zpty -r z out '*' ; print -r -- "$out"
while zpty -rt z out; do print -r -- "$out"; done
"""


@needs("zsh")
def test_zsh_completes(tmp_path):
    for program in PROGRAMS:
        shutil.copy(BUILD / "completions/zsh" / program, tmp_path / ("_" + program))
    def zsh(line):
        return run("zsh", "-f", "-c", ZSH, "zsh", tmp_path, tmp_path, line, env=dict(os.environ, HOME=str(tmp_path))).stdout
    assert "generate" in zsh("kreactl gen")
    text = zsh("kreactl generate --dialect ")
    assert "krea" in text and "comfyui" in text
