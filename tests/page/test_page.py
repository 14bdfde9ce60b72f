# SPDX-License-Identifier: Apache-2.0
"""What a person does with the page, done in Chromium against kread-http and the daemon: the one with
the pretending engine, where a prompt says what shall happen, and the one with the demo model."""
import io
import json
import os
import struct
import sys
import time
import zlib

import pytest

from page_browser import Keys, Page, browser

from shim import Shim
from harness import Daemon

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "e2e"))
import demo_daemon  # noqa: E402

HUGE = 9223372036854775800  # no double has it
NETWORK = "Failed to load resource"  # Chromium's own line for each answer that is an error
TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    driver = browser(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


class Site:
    """A daemon, kread-http and a page; each Site has its port, so its own storage in the browser."""

    def __init__(self, driver, folder, settings="", http=""):
        self.driver, self.folder, self.settings = driver, folder, settings
        self.daemon = Daemon(folder, settings)
        self.shim = Shim(folder / "http", self.daemon, http)

    @property
    def url(self):
        return "http://127.0.0.1:%d/" % self.shim.port

    def page(self, **look):
        return Page(self.driver, self.url, **look).ready()

    def daemon_away(self):
        self.daemon.stop()

    def daemon_back(self):
        self.daemon = Daemon(self.folder, self.settings)

    def close(self):
        self.driver.get("about:blank")
        assert self.shim.stop() == 0, self.shim.logged()
        self.daemon.stop()


@pytest.fixture
def site(driver, tmp_path):
    made = []

    def make(**options):
        made.append(Site(driver, tmp_path, **options))
        return made[-1]
    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def demo(driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    with demo_daemon.Daemon(folder) as daemon, Shim(folder / "http", daemon.socket) as shim:
        yield "http://127.0.0.1:%d/" % shim.port
        driver.get("about:blank")


def make_pictures(page, *prompts):
    for n, prompt in enumerate(prompts, len(page.pictures()) + 1):
        page.generate(prompt)
        page.history(n)
    return page


# ------------------------------------------------------------------------------- making -------

def test_what_the_server_is_stands_on_the_page(driver, demo):
    page = Page(driver, demo).ready()
    page.says("summary", "demo, ready")
    page["server"].click()
    for words in ("demo", "krea2", "turbo", "cpu", "resident", "MB"):
        assert words in page.text("about")
    assert [page.value(id) for id in ("width", "height", "steps", "cfg", "count", "seed")] == [
        "128", "128", "8", "0", "1", ""]
    assert "128 × 128" in page.text("size-hint") and "default 8" in page.text("steps-hint")
    assert not page["negative"].is_displayed()
    assert page.faults() == []


def test_a_picture_is_made_shown_and_kept(driver, demo):
    from PIL import Image
    page = Page(driver, demo).ready()
    make_pictures(page, "a red circle above a blue square on a white background")
    page.shows("picture")
    page.until(lambda: page.js("return document.getElementById('picture').naturalWidth") == 128)
    seed = page.value("seed")
    assert 0 <= int(seed) < 2 ** 53
    written = json.loads(Image.open(io.BytesIO(page.png())).text["kread"])
    assert str(written["seed"]) == seed and written["prompt"].startswith("a red circle")
    assert page["download"].get_attribute("download") == "kread-%s.png" % seed
    page["all-values"].click()
    values = page.shown_values()
    assert (values["Seed"], values["Steps"], values["Profile"], values["Noise generator (rng)"]) == (
        seed, "8", "demo", "cuda")
    assert page.faults() == []


def test_a_seed_beyond_doubles_survives_all_the_way(driver, demo):
    from PIL import Image
    page = Page(driver, demo).ready()
    before = len(page.pictures())
    page.type("seed", str(HUGE))
    page.type("count", "2")
    page.generate("a green star")
    page.history(before + 2)
    page["all-values"].click()
    page.until(lambda: page.shown_values()["Seed"] == str(HUGE + 1))
    assert json.loads(Image.open(io.BytesIO(page.png())).text["kread"])["seed"] == HUGE + 1
    png = page.png()
    page["dice"].click()
    assert int(page.value("seed")) < 2 ** 53
    page.drop(png)
    page.until(lambda: page.value("seed") == str(HUGE + 1))
    driver.refresh()
    page.ready()
    assert page.value("seed") == str(HUGE + 1)
    page["reuse"].click()
    assert page.value("seed") == str(HUGE + 1)


def test_progress_and_preview_while_it_runs(site):
    page = site().page()
    page.type("steps", "40")
    page.generate("ms=60")
    page.shows("job")
    page.until(lambda: "of 40" in page.text("job-text"), "the step")
    first = float(page["bar"].get_attribute("value"))
    page.until(lambda: page["picture"].is_displayed() and page.js(
        "return document.getElementById('picture').naturalWidth") > 0, "a preview")
    page.until(lambda: float(page["bar"].get_attribute("value")) > first, "progress")
    assert "%" in page.driver.title
    page.until(lambda: page.js("return document.getElementById('live').textContent") != "", "something said aloud")
    page.history(1)
    page.shows("picture")
    assert page.driver.title == "kread" and page.faults() == []


def test_queue_place_and_several_jobs(site):
    page = site().page()
    page.type("steps", "100")
    page.generate("first ms=30")
    page.shows("job")
    page.generate("second ms=0")
    page.says("job-text", "1 job before this one")
    assert len(page.pending()) == 2
    page.history(2)


def test_cancel_by_button_and_by_key(site):
    page = site().page()
    page.type("steps", "150")
    page.generate("ms=20")
    page.shows("job")
    page["cancel"].click()
    page.says("info", "Cancelled")
    page.shows("empty")
    page.generate("again ms=20")
    page.shows("job")
    page.keys(Keys.ESCAPE)
    page.until(lambda: not page.pending(), "an end")
    assert page.pictures() == [] and page.stored_jobs() == [] and page.faults() == []


def test_a_reload_finds_the_running_job_again(site):
    page = site().page()
    page.type("steps", "100")
    page.generate("kept across a reload ms=30")
    page.until(lambda: "of 100" in page.text("job-text"), "the step")
    page.driver.refresh()
    page.shows("job")
    page.until(lambda: "of 100" in page.text("job-text"), "the step")
    assert page.value("prompt") == "kept across a reload ms=30"
    page.history(1)
    assert page.stored_jobs() == [] and page.faults() == []


def test_size_is_rounded_where_one_sees_it(site):
    page = site().page()
    page.type("width", "1000" + Keys.TAB)
    assert page.value("width") == "1008" and "1000 became 1008" in page.text("size-hint")
    page["swap"].click()
    assert page.value("height") == "1008"
    shapes = page.driver.find_elements("css selector", "#presets label")
    shapes[5].click()
    size = int(page.value("width")), int(page.value("height"))
    assert size[0] % 16 == size[1] % 16 == 0 and size[0] > size[1]
    assert page["defaults"].is_enabled()
    page["defaults"].click()
    assert (page.value("width"), page.value("height"), page["defaults"].is_enabled()) == ("32", "32", False)


def test_negative_shows_while_guidance_is_on(site):
    page = site().page()
    page.type("cfg", "2.5")
    assert page["negative"].is_displayed()
    page.type("negative", "rain")
    make_pictures(page, "sun")
    page["all-values"].click()
    assert page.shown_values()["Negative prompt"] == "rain"
    page.type("cfg", "0")
    assert not page["negative"].is_displayed()


# ------------------------------------------------------------------------------ history -------

def test_history_reload_reuse_download_delete(site):
    page = make_pictures(site().page(), "one", "two", "three")
    seed = page.value("seed")
    assert [p.split(",")[0] for p in page.pictures()] == ["three", "two", "one"]
    page.driver.refresh()
    page.ready().history(3)
    assert page.text("caption-prompt") == "three" and seed in page.text("caption-values")
    page.tiles()[2].click()
    assert page.text("caption-prompt") == "one"
    page.type("prompt", "something else")
    page["reuse"].click()
    assert page.value("prompt") == "one" and page["lock"].get_attribute("aria-pressed") == "true"
    page["info"].find_element("xpath", ".//button[.='Undo']").click()
    assert page.value("prompt") == "something else"
    assert page.png().startswith(b"\x89PNG")
    page["delete"].click()
    page.history(2)
    page["info"].find_element("xpath", ".//button[.='Undo']").click()
    page.history(3)
    page["delete"].click()
    page.history(2)
    page["delete-all"].click()
    page["sure"].find_element("css selector", "[value=no]").click()
    assert len(page.pictures()) == 2
    page["delete-all"].click()
    page["sure"].find_element("css selector", ".danger").click()
    page.history(0)
    page.driver.refresh()
    page.ready().shows("empty")
    assert page.pictures() == [] and page.faults() == []


def test_history_is_bounded(site):
    page = site().page()
    kept = page.driver.execute_async_script("""
        const [done] = arguments;
        import("/history.js").then(async history => {
            const png = new Blob([new Uint8Array(8)]);
            for (let i = 0; i < 205; i++)
                await history.put({key: "k/" + i, index: 0, made: i, png, bytes: 8, values: {}});
            const many = history.all().length;
            await history.put({key: "large", index: 0, made: 999, png, bytes: 300e6, values: {}});
            done([many, history.all().map(record => record.key)]);
        });""")
    assert kept == [200, ["large"]]


def test_two_tabs_follow_one_job(site):
    place = site()
    page = place.page()
    page.type("steps", "60")
    page.generate("both ms=30")
    page.shows("job")
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    second = place.page()
    second.history(1)
    page.driver.close()
    page.driver.switch_to.window(first)
    page.history(1)


# ------------------------------------------------------------------------------- files --------

def chunk(type, data):
    return struct.pack(">I", len(data)) + type + data + struct.pack(">I", zlib.crc32(type + data))


def png_with(*chunks):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    return (b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IDAT", zlib.compress(b"\0\0\0\0"))
            + chunk(b"IEND", b""))


KREAD = {"prompt": "a <b>fox</b> & a hen", "negative": "", "width": 64, "height": 48, "steps": 5, "cfg": 0,
         "seed": HUGE, "count": 1, "mu": 0.7, "rng": "cpu", "dialect": "krea", "profile": "other", "version": "9"}
INFOTEXT = ("two\nlines, one: colon\nNegative prompt: rain,\nfog\nSteps: 20, Sampler: Euler, CFG scale: 4.5, "
            "Seed: 77, Size: 640x480, Model: sdxl, Lora hashes: \"a: 1, b: 2\", Version: v1.10")


def test_a_dropped_png_of_kread_fills_the_form(site):
    page = site().page()
    page.drop(png_with(chunk(b"tEXt", b"kread\0" + json.dumps(KREAD).encode())))
    page.says("info", "The form has the values of picture.png")
    assert "other" in page.text("info")
    assert page.value("prompt") == KREAD["prompt"] and page.text("caption-prompt") == KREAD["prompt"]
    assert [page.value(i) for i in ("width", "height", "steps", "seed")] == ["64", "48", "5", str(HUGE)]
    assert "mu 0.7, rng cpu" in page.text("carried")
    page["generate"].click()
    page.history(1)
    page["all-values"].click()
    values = page.shown_values()
    assert (values["Seed"], values["mu"], values["Noise generator (rng)"]) == (str(HUGE), "0.7", "cpu")
    page["carried"].find_element("css selector", "button").click()
    assert not page["carried"].is_displayed()


@pytest.mark.parametrize("written", [
    chunk(b"tEXt", b"parameters\0" + INFOTEXT.encode()),
    chunk(b"zTXt", b"parameters\0\0" + zlib.compress(INFOTEXT.encode())),
    chunk(b"iTXt", b"parameters\0\1\0en\0title\0" + zlib.compress(INFOTEXT.encode())),
    chunk(b"iTXt", b"parameters\0\0\0\0\0" + INFOTEXT.encode())], ids=["tEXt", "zTXt", "iTXt packed", "iTXt"])
def test_parameters_of_other_programs(site, written):
    page = site().page()
    page.drop(png_with(written), "theirs.png")
    page.says("info", "theirs.png")
    assert page.value("prompt") == "two\nlines, one: colon" and page.value("negative") == "rain,\nfog"
    assert [page.value(i) for i in ("width", "height", "steps", "cfg", "seed")] == ["640", "480", "20", "3.5", "77"]


@pytest.mark.parametrize("data, says", [
    (b"", "is not a PNG file"),
    (b"\xff\xd8\xff\xe0 a JPEG", "is not a PNG file"),
    (b"\x89PNG\r\n\x1a\n", "damaged"),
    (png_with()[:-6], "damaged"),
    (png_with()[:8] + struct.pack(">I", 0xffffffff) + b"tEXtkread\0{}", "damaged"),
    (png_with(), "does not say how it was made"),
    (png_with(chunk(b"tEXt", b"kread\0{\"prompt\": ")), "can't be read"),
    (png_with(chunk(b"tEXt", b"kread\0[1, 2]")), "can't be read"),
    (png_with(chunk(b"tEXt", b"kread\0" + b"[" * 100000)), "can't be read"),
    (png_with(chunk(b"zTXt", b"kread\0\0no zlib")), "can't be unpacked"),
    (png_with(chunk(b"zTXt", b"kread\0\0" + zlib.compress(b" " * (8 << 20)))), "can't be unpacked"),
    (png_with(chunk(b"iTXt", b"kread\0\1")), "can't be unpacked"),
    (png_with(chunk(b"tEXt", b"no end")), "can't be unpacked"),
], ids=str)
def test_files_that_are_none(site, data, says):
    page = site().page()
    page.type("prompt", "mine")
    page.drop(data, "<i>odd</i>.png")
    page.says("alert", says)
    assert page.text("alert").startswith("<i>odd</i>.png") and page.value("prompt") == "mine"
    assert page.faults() == []


def test_values_out_of_range_are_left_out(site):
    page = site().page()
    wild = dict(KREAD, width=1e9, height=-1, steps="many", cfg=[1], seed=2 ** 63, mu=None, rng="x", dialect="x", more={"a": 1})
    page.drop(png_with(chunk(b"tEXt", b"kread\0" + json.dumps(wild).encode())))
    page.says("info", "The form has")
    assert [page.value(i) for i in ("width", "height", "steps", "cfg", "seed")] == ["32", "32", "4", "0", ""]
    assert not page["carried"].is_displayed()


def test_a_chosen_file_does_as_a_dropped_one(site, tmp_path):
    page = site().page()
    path = tmp_path / "chosen.png"
    path.write_bytes(png_with(chunk(b"tEXt", b"kread\0" + json.dumps(KREAD).encode())))
    page["file"].send_keys(str(path))
    page.says("info", "chosen.png")
    assert page.value("prompt") == KREAD["prompt"]


# ------------------------------------------------------------------------------- errors -------

def test_fields_say_what_they_want(site):
    page = site().page()
    page["generate"].click()
    assert "Say first" in page.text("prompt-hint") and page.focus() == "prompt"
    page.type("prompt", "x")
    for field, wrong, says in (("steps", "0", "from 1 to"), ("steps", "2.5", "whole number"), ("cfg", "much", "0 to 100"),
                               ("count", "1000", "whole number from 1 to"), ("width", "9999", "8192"),
                               ("seed", str(2 ** 63), "9223372036854775807")):
        old = page.value(field)
        page.type(field, wrong)
        page["generate"].click()
        assert says in page.text("size-hint" if field == "width" else field + "-hint"), field
        assert page.focus() == field and page[field].get_attribute("aria-invalid") == "true"
        page.type(field, old)
    page["generate"].click()
    page.history(1)


def test_a_refusal_a_failure_and_a_full_queue(site):
    page = site(settings="queue_limit = 1").page()
    page.generate("toolarge")
    page.says("alert", "this request needs more memory than there is.")
    page.generate("fail=not_finite")
    page.says("alert", "No picture: the script says so")
    page.type("steps", "150")
    page.generate("runs ms=20")
    page.shows("job")
    page.until(lambda: "of 150" in page.text("job-text"), "the step")
    page.generate("waits ms=20")
    page.until(lambda: len(page.pending()) == 2, "two jobs")
    page.generate("has no room")
    page.says("alert", "no more are taken")
    assert page.value("prompt") == "has no room"
    for _ in range(2):
        page.keys(Keys.ESCAPE)
        page.until(lambda: "Cancelled" in page.text("info"), "the end")
    page.until(lambda: not page.pending(), "the end")
    assert page.faults(NETWORK) == []


def test_the_daemon_goes_and_comes_back(site):
    place = site()
    page = place.page()
    place.daemon_away()
    page.until(lambda: page["banner"].is_displayed(), "the banner")
    assert "away" in page.text("banner") and "Asking again" in page.text("banner")
    page.generate("nobody hears")
    page.says("alert", "kread")
    assert page.value("prompt") == "nobody hears" and page.pictures() == []
    place.daemon_back()
    page.until(lambda: not page["banner"].is_displayed(), "no banner")
    page["generate"].click()
    page.history(1)
    assert page.faults(NETWORK) == []


def test_a_job_across_a_restart_of_the_shim(site):
    place = site()
    page = place.page()
    page.type("steps", "150")
    page.generate("it goes on ms=20")
    page.until(lambda: "of 150" in page.text("job-text"), "the step")
    port = place.shim.port
    place.shim.stop()
    page.says("job-text", "the job is not lost")
    place.shim = Shim(place.folder / "http", place.daemon, listen=("127.0.0.1:%d" % port,))
    page.history(1)
    assert page.faults(NETWORK) == []


def test_a_job_that_the_server_forgot(site):
    page = site().page()
    page.js("localStorage.setItem('kread.jobs', JSON.stringify([{id: 'job_12345678_000000ff', since: 1, had: 0, "
            "values: {prompt: 'x', width: 32, height: 32, steps: 4, count: 1, seed: '1'}}]))")
    page.driver.refresh()
    page.says("alert", "no longer knows this job")
    assert page.stored_jobs() == []


def test_storage_that_makes_no_sense(site):
    page = site().page()
    page.js("for (const key of ['kread.jobs', 'kread.form']) localStorage.setItem(key, '{\"a\": [nonsense')")
    page.driver.refresh()
    make_pictures(page.ready(), "goes on")
    assert page.faults() == []


def test_the_token_is_asked_for(site, tmp_path):
    (tmp_path / "http").mkdir()
    (tmp_path / "http" / "token").write_text(TOKEN + "\n")
    (tmp_path / "http" / "token").chmod(0o600)
    place = site(http="token_file = token")
    page = Page(place.driver, place.url)
    page.until(lambda: page["locked"].is_displayed(), "the question")
    assert page.focus() == "token"
    page.keys("wrong" + Keys.ENTER)
    page.until(lambda: "refused" in page.text("locked-text"), "the refusal")
    page.keys(TOKEN + Keys.ENTER)
    page.ready()
    assert not page["locked"].is_displayed()
    make_pictures(page, "with a token")
    page.driver.refresh()
    page.ready().history(1)
    assert TOKEN not in page.js("return JSON.stringify(localStorage)")
    assert page.faults(NETWORK) == []


# ----------------------------------------------------------------- looks, keys, everybody -----

def test_keyboard_only(site):
    page = site().page()
    assert page.focus() == "prompt"
    page.keys("by keys")
    order = []
    for _ in range(20):
        page.keys(Keys.TAB)
        order.append(page.focus())
    wanted = ["width", "swap", "height", "steps", "cfg", "count", "seed", "dice", "lock", "file", "generate"]
    assert [id for id in order if id in wanted] == wanted
    page["prompt"].send_keys(Keys.CONTROL, Keys.ENTER)
    page.history(1)
    page["prompt"].send_keys(" again", Keys.CONTROL, Keys.ENTER)
    page.history(2)
    for _ in range(60):
        page.keys(Keys.TAB)
        if page.driver.switch_to.active_element.get_attribute("role") == "option":
            break
    page.keys(Keys.ARROW_RIGHT)
    assert page.text("caption-prompt") == "by keys"
    page.keys(Keys.HOME)
    assert page.text("caption-prompt") == "by keys again"
    page.keys(Keys.DELETE)
    page.history(1)
    assert page.driver.switch_to.active_element.get_attribute("role") == "option"


def test_focus_can_be_seen(site):
    page = site().page()
    for id in ("prompt", "width", "dice", "generate"):
        page["cfg"].click()
        page.js("document.getElementById(arguments[0]).focus({focusVisible: true})", id)
        assert page.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid", id


LOOKS = [(1440, 900, False), (1440, 900, True), (900, 700, False), (360, 740, False), (360, 740, True)]


@pytest.mark.parametrize("width, height, dark", LOOKS)
def test_accessible_in_every_state_and_size(site, width, height, dark):
    page = site().page(width=width, height=height, dark=dark, reduced=dark)
    page.js("document.getElementById('settings').open = true; document.getElementById('server').open = true")
    background = page.js("return getComputedStyle(document.documentElement).backgroundColor")
    assert (background == "rgb(16, 16, 16)") == dark
    assert page.accessibility() == []
    page.type("cfg", "1000" + Keys.TAB)
    assert page.accessibility() == []
    page.type("cfg", "1")
    page.type("steps", "150")
    page.generate("a job ms=30")
    page.shows("job")
    assert page.accessibility() == []
    page.js("document.getElementById('cancel').click()")
    page.says("info", "Cancelled")
    page.type("steps", "4")
    make_pictures(page, "a picture of a word that does not end: " + "a" * 200)
    page.js("document.getElementById('all-values').open = true")
    assert page.accessibility() == []
    page.js("document.getElementById('delete-all').click()")
    assert page.accessibility() == []
    assert page.faults() == []


def test_the_theme_can_be_chosen_and_stays(site):
    page = site().page()
    colour = "return getComputedStyle(document.documentElement).backgroundColor"
    light = page.js(colour)
    page["theme"].click()
    dark = page.js(colour)
    assert dark != light and page["theme"].get_attribute("aria-pressed") == "true"
    page.driver.refresh()
    page.ready()
    assert page.js(colour) == dark
    page["theme"].click()
    assert page.js(colour) == light


def test_motion_can_be_reduced(site):
    page = site().page(reduced=True)
    page.type("steps", "150")
    page.generate("ms=20")
    page.shows("job")
    assert page.js("return document.getAnimations().length") == 0
    page["cancel"].click()


def test_one_screen_at_a_desk(site):
    page = site().page()
    make_pictures(page, "fits")
    size = page.js("const e = document.documentElement; return [e.scrollHeight, e.clientHeight]")
    assert size[0] == size[1]
    box = page["picture"].rect
    assert box["y"] + box["height"] < 900 and 560 < box["x"] + box["width"] / 2 < 880


def test_nothing_leaves_the_origin_and_nothing_from_outside_runs(site):
    place = site()
    page = place.page()
    evil = dict(KREAD, prompt="<img src=x onerror=alert(1)><script>alert(2)</script>", profile="<b>x</b>")
    page.drop(png_with(chunk(b"tEXt", b"kread\0" + json.dumps(evil).encode())), "<img src=//evil.example>.png")
    page.says("info", "<b>x</b>")
    page["generate"].click()
    page.history(1)
    page.driver.refresh()
    page.ready().history(1)
    assert page.js("return document.querySelectorAll('main img:not(#picture, #tiles img), main script, main b').length") == 0
    sent = page.requests()
    assert sent and all(url.startswith((place.url, "blob:" + place.url)) for url in sent), sent
    assert page.faults() == []
    policy = place.shim.get("/").headers["Content-Security-Policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy
    assert not any(word in place.shim.get("/").body.lower() for word in (b"style=", b"<style", b"onclick", b"<script>"))


def test_the_page_is_small(site):
    place = site()
    page = place.page()
    page.until(lambda: page.text("summary") != "connecting")
    total = sum(len(place.shim.get("/" + name).body) for name in os.listdir(
        os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, "client", "page")) if name != "page.html")
    assert total + len(place.shim.get("/").body) < 90000
