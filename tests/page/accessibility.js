// SPDX-License-Identifier: Apache-2.0
//
// Runs in the page and returns a list of sentences, one for each thing that keeps somebody out:
// names of controls, contrast of texts and of controls' edges (WCAG 2.1 AA, as they are painted now),
// landmarks, headings, live regions, tab order, language, title, ids, sizes of targets.

const found = [];
const fail = (element, text) => found.push(`${element.tagName?.toLowerCase()}#${element.id}: ${text}`);
const every = selector => [...document.querySelectorAll(selector)];
const seen = element => element.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true});

/* ---- colours: a canvas turns whatever CSS calls a colour into bytes ---- */
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});

function bytes(colour) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
}

function over(front, back) {
    const a = front[3] / 255;
    return [0, 1, 2].map(i => front[i] * a + back[i] * (1 - a));
}

function backdrop(element) {
    if (!element)
        return bytes(getComputedStyle(document.documentElement).backgroundColor);
    const own = bytes(getComputedStyle(element).backgroundColor);
    return own[3] === 255 ? own : [...over(own, backdrop(element.parentElement)), 255];
}

function light(rgb) {
    const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(colour, element) {
    const back = backdrop(element), front = over(bytes(colour), back);
    const [dark, bright] = [light(front), light(back.slice(0, 3))].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
}

const texts = every("body *").filter(element => seen(element) && !element.matches(":disabled, :disabled *, svg *") &&
    [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim() !== ""));
for (const element of texts) {
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const least = size >= 24 || size >= 18.66 && style.fontWeight >= 700 ? 3 : 4.5;
    const has = contrast(style.color, element);
    if (has < least)
        fail(element, `contrast ${has.toFixed(2)} of "${element.textContent.trim().slice(0, 30)}", want ${least}`);
}
for (const element of every("input:not([type=radio], [type=file]), textarea").filter(seen)) {
    const edge = contrast(getComputedStyle(element).borderTopColor, element.parentElement);
    if (edge < 3)
        fail(element, `contrast ${edge.toFixed(2)} of its edge, want 3`);
    const hint = contrast(getComputedStyle(element, "::placeholder").color, element);
    if (hint < 4.5)
        fail(element, `contrast ${hint.toFixed(2)} of its placeholder, want 4.5`);
}
for (const element of every("button.icon").filter(seen))
    if (contrast(getComputedStyle(element).color, element) < 3)
        fail(element, "contrast of its icon");

/* ---- names ---- */
function name(element) {
    const by = element.getAttribute("aria-labelledby")?.split(" ").map(id => document.getElementById(id)?.textContent).join(" ");
    const labels = [...element.labels ?? []].map(label => label.textContent).join(" ");
    return (by || element.getAttribute("aria-label") || labels || element.textContent ||
        element.querySelector("img")?.alt || "").trim();
}
for (const element of every("input, textarea, select, button, a[href], summary, progress:not([aria-hidden]), dialog, [role=option], [role=listbox], [role=radiogroup], section, form:not(dialog form)"))
    if (name(element) === "")
        fail(element, "no name");
for (const element of every("img"))
    if (!element.hasAttribute("alt"))
        fail(element, "no alt");
for (const element of every("svg"))
    if (element.getAttribute("aria-hidden") !== "true")
        fail(element, "an icon that is read out");
for (const element of every("[aria-describedby], [aria-labelledby]"))
    for (const id of `${element.getAttribute("aria-describedby") ?? ""} ${element.getAttribute("aria-labelledby") ?? ""}`.trim().split(/\s+/))
        if (!document.getElementById(id))
            fail(element, "names the missing #" + id);

/* ---- structure ---- */
const one = selector => every(selector).length === 1 || found.push("want one " + selector);
for (const selector of ["main", "h1", "body > header", "title"])
    one(selector);
if (document.documentElement.lang !== "en")
    found.push("no language");
if (document.title === "")
    found.push("no title");
const ids = every("[id]").map(element => element.id);
for (const id of ids.filter((id, i) => ids.indexOf(id) !== i))
    found.push("two elements have the id " + id);
const levels = every("h1, h2, h3").filter(seen).map(heading => Number(heading.tagName[1]));
if (levels.some((level, i) => level > (levels[i - 1] ?? 0) + 1))
    found.push("headings skip a level: " + levels);
for (const element of every("body > :not(header, main, dialog, .skip, script, [hidden])"))
    fail(element, "outside of every landmark");
for (const id of ["live", "alert", "info", "banner"])
    if (!["status", "alert"].includes(document.getElementById(id).getAttribute("role")))
        found.push(`#${id} is no live region`);
if (/user-scalable|maximum-scale/.test(document.querySelector("meta[name=viewport]").content))
    found.push("zoom is forbidden");

/* ---- keyboard and touch ---- */
for (const element of every("[tabindex]"))
    if (element.tabIndex > 0)
        fail(element, "a positive tabindex");
if (every("#tiles [role=option]").length > 0 && every("#tiles [role=option][tabindex='0']").length !== 1)
    found.push("the history has not one place in the tab order");
for (const element of every("button, input:not([type=radio], [type=file]), .button, #presets label, [role=option]").filter(seen)) {
    const box = element.getBoundingClientRect();
    if (box.width < 24 || box.height < 24)
        fail(element, `${Math.round(box.width)} x ${Math.round(box.height)} pixels, want 24`);
}
if (document.documentElement.scrollWidth > document.documentElement.clientWidth)
    found.push(`the page is wider than its window by ${document.documentElement.scrollWidth - document.documentElement.clientWidth}`);

return found;
