# SPDX-License-Identifier: Apache-2.0
"""The page in a real Chromium, driven by selenium; and its accessibility, judged by rules of our own.

Nothing of a browser is needed to build or to test kread otherwise: without Debian's chromium,
chromium-driver and python3-selenium these tests skip."""
import base64
import json
import os
import shutil
import sys
import time

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("no chromium and chromedriver", allow_module_level=True)

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "http"))

PATIENCE = 30
ACCESSIBILITY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "accessibility.js")


def browser(folder):
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--no-first-run", "--disable-background-networking",
                     "--user-data-dir=%s" % folder):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


class Page:
    """One page at `url`, by the ids of its elements."""

    def __init__(self, driver, url, width=1440, height=900, dark=False, reduced=False):
        self.driver, self.url = driver, url
        self.window(width, height, dark, reduced)
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get(url)

    def window(self, width, height, dark=False, reduced=False):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced else "no-preference"}]})

    def __getitem__(self, id):
        return self.driver.find_element(By.ID, id)

    def js(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def until(self, condition, what="the condition"):
        end = time.time() + PATIENCE
        while True:
            try:
                value = condition()
            except StaleElementReferenceException:
                value = None
            if value:
                return value
            assert time.time() < end, "%s did not come true; the page says %r" % (what, self.js(
                "return document.body.innerText"))
            time.sleep(0.03)

    def ready(self):
        self.until(lambda: self["width"].get_attribute("value"), "the profile's defaults")
        return self

    def text(self, id):
        return self[id].text

    def value(self, id):
        return self[id].get_attribute("value")

    def says(self, id, words):
        self.until(lambda: words in self.text(id), "%r in %s" % (words, id))

    def type(self, id, text):
        """Replaces what the field has, as a person does."""
        self[id].send_keys(Keys.CONTROL, "a")
        self[id].send_keys(text if text else Keys.DELETE)

    def keys(self, *keys):
        """To whatever has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def focus(self):
        return self.driver.switch_to.active_element.get_attribute("id")

    def generate(self, prompt):
        self.type("prompt", prompt)
        self["generate"].click()
        return self

    def tiles(self):
        return self.driver.find_elements(By.CSS_SELECTOR, "#tiles [role=option]")

    def pictures(self):
        """Texts for what has a picture in the history, the newest first."""
        return self.js("return [...document.querySelectorAll('#tiles img')].map(i => i.alt)")

    def history(self, count):
        self.until(lambda: len(self.pictures()) == count and not self.pending(), "%d pictures" % count)

    def pending(self):
        return self.driver.find_elements(By.CSS_SELECTOR, "#tiles .pending")

    def shows(self, what):
        self.until(lambda: self["frame"].get_attribute("data-show") == what, "the page shows " + what)

    def shown_values(self):
        """The list "All values", as a dict."""
        return self.js("""const terms = [...document.querySelectorAll("#all-values dt")];
                          return Object.fromEntries(terms.map(t => [t.textContent, t.nextSibling.textContent]))""")

    def drop(self, data, name="picture.png", type="image/png"):
        """A file let go over the middle of the page."""
        self.js("""const bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0));
                   const transfer = new DataTransfer();
                   transfer.items.add(new File([bytes], arguments[1], {type: arguments[2]}));
                   for (const type of ["dragenter", "dragover", "drop"])
                       document.querySelector("main").dispatchEvent(new DragEvent(type, {
                           dataTransfer: transfer, bubbles: true, cancelable: true}));""",
                base64.b64encode(data).decode(), name, type)

    def png(self):
        """The bytes of the picture that is shown; the policy keeps the page from fetching its own blob."""
        text = self.driver.execute_async_script("""
            const [done] = arguments;
            import("/stage.js").then(stage => {
                const reader = new FileReader();
                reader.onload = () => done(reader.result.split(",")[1]);
                reader.readAsDataURL(stage.shownRecord().png);
            });""")
        return base64.b64decode(text)

    def stored_jobs(self):
        return json.loads(self.js("return localStorage.getItem('kread.jobs')") or "[]")

    def faults(self, *expected):
        """What the console has beyond lines with one of the `expected` words, and beyond a preview that
        was gone when it was asked for, because its job had just ended."""
        expected += ("/preview.png - Failed to load resource: the server responded with a status of 404",)
        return [entry["message"] for entry in self.driver.get_log("browser")
                if entry["level"] in ("SEVERE", "WARNING") and not any(word in entry["message"] for word in expected)]

    def requests(self):
        """Addresses that the page asked for since the last call."""
        sent = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]

    def accessibility(self):
        with open(ACCESSIBILITY, encoding="utf-8") as f:
            return self.js(f.read())
