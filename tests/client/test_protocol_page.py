# SPDX-License-Identifier: Apache-2.0
"""docs/protocol.md says what is so: its field table, its codes, its example client."""
import os
import re
import subprocess
import sys

import pytest

from fakedaemon import FakeDaemon, png

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KREACTL = os.path.join(os.path.abspath(os.environ.get("KREAD_BUILD", "build")), "kreactl")
with open(os.path.join(ROOT, "docs/protocol.md"), encoding="utf-8") as f:
    PAGE = f.read()


def section(title):
    return re.split(r"^###? ", PAGE.split("\n## %s\n" % title if "\n## %s\n" % title in PAGE
                                          else "\n### %s\n" % title)[1], flags=re.M)[0]


def test_fields():
    """Every field that kreactl refuses for its value is on the page with the same allowed range."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in section("generate").split("\n") if line.startswith("| `")]
    rows = [row for row in rows if len(row) == 5]
    names = [row[0].strip("`") for row in rows]
    assert names == ["prompt", "negative", "width", "height", "steps", "cfg", "seed", "count", "mu",
                     "shift_y1", "shift_y2", "rng", "dialect", "preview", "detach"]
    text = subprocess.run([KREACTL, "help", "generate"], stdout=subprocess.PIPE, check=True).stdout.decode()
    text = re.sub(r"\s+", " ", text)
    for row in rows:
        name, kind, allowed, default = row[0].strip("`"), row[1], row[2], row[3]
        option = "--" + name.replace("_", "-")
        if name == "prompt":
            assert option + " " not in text
            continue
        if kind == "text" and allowed.startswith("text"):
            done = subprocess.run([KREACTL, "generate", "x", option, "x" * 65537],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert b"at most 65536 are allowed" in done.stderr and "65536" in allowed
            continue
        done = subprocess.run([KREACTL, "generate", "x", option + "=nonsense"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        said = re.search(r'"nonsense"; it must be (.*)\n', done.stderr.decode()).group(1)
        assert said == allowed, name
        if kind != "boolean":
            assert "default %s" % default in text, name


def test_codes_and_exit_statuses(tmp_path):
    rows = re.findall(r"^\| `(\w+)` \| .* \| (\d+)[^|]* \|$", section("Errors"), flags=re.M)
    assert len(rows) >= 12
    for code, status in rows:
        if code == "cancelled":
            continue  # no answer to a request
        fake = FakeDaemon(str(tmp_path / "s"), lambda c: c.refuse(c.request("status")[0], code))
        try:
            done = subprocess.run([KREACTL, "--socket", str(tmp_path / "s"), "status"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        finally:
            fake.close()
        assert done.returncode == int(status), code


def test_every_method_is_described():
    for method in ("hello", "generate", "status", "jobs", "watch", "fetch", "cancel", "tokens",
                   "inspect", "profile", "stop"):
        assert len(section(method)) > 40
    for link in re.findall(r"\]\(#([\w-]+)\)", PAGE):
        titles = [t.lower().replace(" ", "-") for t in re.findall(r"^##+ (.*)$", PAGE, flags=re.M)]
        assert link in titles


@pytest.mark.parametrize("ending, status", [("done", 0), ("failed", 1), ("cancelled", 1)])
def test_the_example(tmp_path, ending, status):
    code = re.search(r"```python\n(.*?)```", PAGE, flags=re.S).group(1)
    example = tmp_path / "client.py"
    example.write_text(code)

    def handler(c):
        number, params = c.request("hello")
        assert params == {"version": 1, "client": "example"}
        c.answer(number, {"version": 1, "name": "kread", "release": "9.9"})
        assert c.accept() == {"prompt": "a red circle"}
        c.notify("progress", job=7, state="running", stage="denoise", step=1, steps=8)
        c.image(data=png(200000))
        more = {"error": {"code": "io", "message": "it went wrong"}} if ending == "failed" else {}
        c.notify(ending, job=7, **more)

    fake = FakeDaemon(str(tmp_path / "s"), handler)
    try:
        done = subprocess.run([sys.executable, str(example), "a red circle"], cwd=tmp_path, timeout=30,
                              env=dict(os.environ, KREAD_SOCKET=str(tmp_path / "s")),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        fake.close()
    assert done.returncode == status, done.stderr
    assert b"running denoise 1 of 8" in done.stdout
    assert (tmp_path / "picture-0.png").read_bytes() == png(200000)
    assert (b"it went wrong" in done.stderr) == (ending == "failed")
