// SPDX-License-Identifier: Apache-2.0
//
// The form: what is asked for. Its fields start with the profile's defaults; what the person changed is
// kept in localStorage and laid over them at the next visit. Numbers stay texts until values() reads
// them, because a seed does not fit into a number.
//
// Values of a picture that have no field here (mu, rng, ...) but make a difference are "carried": shown
// as a line, sent along, and left out again with a button.

import {seedText} from "./png.js";

const $ = id => document.getElementById(id);
const TEXTS = ["prompt", "negative"];
const NUMBERS = ["width", "height", "steps", "cfg", "count"];
const CARRIED = ["mu", "shift_y1", "shift_y2", "rng", "dialect"];
const SHAPES = [[1, 1], [4, 3], [3, 4], [3, 2], [2, 3], [16, 9], [9, 16]];
const DRAFT = "kread.form";

let defaults = {width: 1024, height: 1024, steps: 8, cfg: 0, count: 1};
let limits = {grid: 16};
let carried = {};
let known = false; // the server has told its defaults

const NAMES = {width: "Width: ", height: "Height: "}; // they share a line

const number = id => Number($(id).value.trim().replace(",", "."));
const filled = id => $(id).value.trim() !== "";
const most = (limit, own) => limit > 0 ? Math.min(limit, own) : own; // the server says 0 for no limit

function hint(id, text, wrong = false) {
    const place = $(`${id === "width" || id === "height" ? "size" : id}-hint`);
    place.textContent = text;
    place.classList.toggle("wrong", wrong);
    $(id).setAttribute("aria-invalid", String(wrong));
}

/* --------------------------------------------------------------------------------- seed --- */

const locked = () => $("lock").getAttribute("aria-pressed") === "true";

function lock(on) {
    $("lock").setAttribute("aria-pressed", String(on));
    hint("seed", on ? "kept for the next picture too" : "drawn anew for each picture");
}

// 32 bits, as the daemon draws them: people copy seeds, and other programs have no room for more.
function draw() {
    $("seed").value = String(crypto.getRandomValues(new Uint32Array(1))[0]);
}

/* --------------------------------------------------------------------------------- size --- */

const snapped = n => Math.max(limits.grid, Math.ceil(n / limits.grid) * limits.grid);

function shape([w, h]) {
    const area = defaults.width * defaults.height, side = Math.sqrt(area * w / h);
    const near = n => Math.max(limits.grid, Math.round(n / limits.grid) * limits.grid);
    let width = near(side), height = near(side * h / w);
    while (limits.max_pixels > 0 && width * height > limits.max_pixels && width > limits.grid)
        width -= limits.grid;
    return [width, height];
}

function icon(w, h) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const scale = 16 / Math.max(w, h);
    const box = {x: 12 - w * scale / 2, y: 12 - h * scale / 2, width: w * scale, height: h * scale, rx: 1.5};
    for (const [name, value] of Object.entries(box))
        rect.setAttribute(name, value);
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    svg.append(rect);
    return svg;
}

function preset(ratio) {
    const [width, height] = shape(ratio);
    const label = document.createElement("label"), input = document.createElement("input");
    const unseen = document.createElement("span");
    unseen.className = "unseen";
    unseen.textContent = `, ${width} by ${height}`;
    label.title = `${width} × ${height}`;
    input.type = "radio";
    input.name = "shape";
    input.value = `${width}x${height}`;
    input.addEventListener("change", () => {
        [$("width").value, $("height").value] = [width, height];
        hint("width", "");
        hint("height", "");
        changed();
    });
    label.append(input, icon(...ratio), ratio.join(":"), unseen);
    return label;
}

// A size that does not lie on the grid is rounded up where the person can see it, as kread would do.
function snap(id) {
    const given = number(id);
    if (!filled(id) || !Number.isFinite(given) || given < 1 || given > 8192)
        return;
    const value = snapped(given);
    $(id).value = String(value);
    hint(id, value === given ? "" : `${given} became ${value}: sizes are multiples of ${limits.grid}`);
}

/* ----------------------------------------------------------------------------- checking --- */

const RULES = {
    width: () => [limits.grid, 8192, true],
    height: () => [limits.grid, 8192, true],
    steps: () => [1, most(limits.max_steps, 1000), true],
    cfg: () => [0, 100, false],
    count: () => [1, most(limits.max_count, 64), true],
};
function check(id) {
    const [least, greatest, whole] = RULES[id](), value = number(id);
    const right = !filled(id) ||
        (whole ? Number.isInteger(value) : Number.isFinite(value)) && value >= least && value <= greatest;
    if (!right)
        hint(id, `${NAMES[id] ?? ""}${whole ? "whole number" : "number"} from ${least} to ${greatest}`, true);
    return right;
}

function checkPixels() {
    const pixels = number("width") * number("height");
    if (!(limits.max_pixels > 0) || !(pixels > limits.max_pixels))
        return true;
    hint("width", `${pixels} pixels are too many: this server allows ${limits.max_pixels}`, true);
    return false;
}

function checkSeed() {
    const right = !filled("seed") || seedText($("seed").value) !== undefined;
    if (!right)
        hint("seed", "A seed is a whole number from 0 to 9223372036854775807", true);
    return right;
}

function checkPrompt() {
    const right = $("prompt").value.trim() !== "";
    hint("prompt", right ? "" : "Say first what the picture shows", !right);
    return right;
}

/* ------------------------------------------------------------------------------ showing --- */

function defaultHints() {
    for (const id of ["steps", "cfg", "count"])
        hint(id, `default ${defaults[id]}`);
    if (defaults.cfg === 0)
        hint("cfg", "default 0, off");
    if ($("width").getAttribute("aria-invalid") !== "true" && $("size-hint").textContent === "")
        hint("width", `default ${defaults.width} × ${defaults.height}`);
}

function differing() {
    return NUMBERS.filter(id => filled(id) && number(id) !== defaults[id]);
}

function showCarried() {
    const list = Object.entries(carried).map(([name, value]) => `${name} ${value}`).join(", ");
    $("carried").hidden = list === "";
    $("carried").firstElementChild.textContent = `Also kept from the picture: ${list}.`;
}

// After any change: what depends on it, and the draft.
function changed() {
    const size = `${$("width").value}x${$("height").value}`;
    for (const radio of document.querySelectorAll("#presets input"))
        radio.checked = radio.value === size;
    $("negative-field").hidden = !(number("cfg") > 0);
    $("defaults").disabled = differing().length === 0 && Object.keys(carried).length === 0;
    $("settings-summary").textContent =
        `${$("width").value} × ${$("height").value}, ${$("steps").value} steps` + (locked() ? `, seed ${$("seed").value}` : "");
    showCarried();
    save();
}

function save() {
    const draft = {carried, seed: locked() ? $("seed").value : ""};
    for (const id of [...TEXTS, ...differing()])
        draft[id] = $(id).value;
    try {
        localStorage.setItem(DRAFT, JSON.stringify(draft));
    } catch {
        // full or forbidden: the form then starts empty next time
    }
}

function load() {
    let draft = {};
    try {
        draft = JSON.parse(localStorage.getItem(DRAFT)) ?? {};
    } catch {
        // as if there were none
    }
    for (const id of [...TEXTS, ...NUMBERS])
        if (typeof draft[id] === "string")
            $(id).value = draft[id];
    if (seedText(draft.seed) !== undefined && draft.seed) {
        $("seed").value = draft.seed;
        lock(true);
    }
    carried = draft.carried ?? {};
}

/* -------------------------------------------------------------------------- for the page --- */

// The profile's defaults and the owner's limits, out of the server's status.
export function setDefaults(status) {
    const old = defaults;
    const changedDefaults = !known || JSON.stringify([old, limits]) !==
        JSON.stringify([{...old, ...status.defaults}, {...limits, ...status.limits}]);
    if (!changedDefaults)
        return;
    defaults = {...old, ...status.defaults};
    limits = {...limits, ...status.limits};
    for (const id of NUMBERS)
        if (!filled(id) || known && number(id) === old[id])
            $(id).value = String(defaults[id]);
    known = true;
    $("presets").replaceChildren(...SHAPES.map(preset));
    defaultHints();
    changed();
}

// What the form asks for, or null after having said what is wrong with it. Without a kept seed a new
// one is drawn here, so that the form shows the seed of the picture to come.
export function values() {
    snap("width");
    snap("height");
    defaultHints();
    const checks = [["prompt", checkPrompt], ...NUMBERS.map(id => [id, () => check(id)]),
                    ["width", checkPixels], ["seed", checkSeed]];
    const wrong = checks.filter(([, right]) => !right());
    if (wrong.length > 0) {
        $("settings").open ||= wrong.some(([id]) => id !== "prompt");
        $(wrong[0][0]).focus();
        return null;
    }
    if (!locked())
        draw();
    const result = {prompt: $("prompt").value, seed: seedText($("seed").value), ...carried};
    for (const id of NUMBERS)
        result[id] = filled(id) ? number(id) : defaults[id];
    if (result.cfg > 0 && $("negative").value.trim() !== "")
        result.negative = $("negative").value;
    changed();
    return result;
}

// mu is either given, or follows from the size along a line; whoever has the line does not need mu.
function worthCarrying(values) {
    const line = values.shift_y1 !== undefined && values.shift_y2 !== undefined;
    const names = CARRIED.filter(name => values[name] !== undefined && values[name] !== defaults[name]);
    return Object.fromEntries(names.filter(name => !(line && name === "mu")).map(name => [name, values[name]]));
}

// Fills in the values of a picture, and says how to take that back.
export function fill(values) {
    const before = snapshot();
    for (const id of TEXTS)
        $(id).value = values[id] ?? "";
    for (const id of NUMBERS.filter(id => id !== "count"))
        $(id).value = String(values[id] ?? defaults[id]);
    $("count").value = "1";
    carried = worthCarrying(values);
    if (values.seed !== undefined)
        $("seed").value = values.seed;
    lock(values.seed !== undefined);
    hint("prompt", "");
    hint("width", "");
    defaultHints();
    changed();
    return () => restore(before);
}

function snapshot() {
    const fields = [...TEXTS, ...NUMBERS, "seed"].map(id => [id, $(id).value]);
    return {fields, carried, locked: locked()};
}

function restore(old) {
    for (const [id, value] of old.fields)
        $(id).value = value;
    carried = old.carried;
    lock(old.locked);
    changed();
}

function toDefaults() {
    for (const id of NUMBERS)
        $(id).value = String(defaults[id]);
    carried = {};
    hint("width", "");
    defaultHints();
    changed();
    $("steps").focus();
}

function swap() {
    [$("width").value, $("height").value] = [$("height").value, $("width").value];
    changed();
}

export function start() {
    load();
    if (!locked())
        lock(false);
    for (const id of ["width", "height"])
        $(id).addEventListener("change", () => snap(id));
    for (const id of ["steps", "cfg", "count"])
        $(id).addEventListener("change", () => check(id) && defaultHints());
    $("prompt").addEventListener("input", () => hint("prompt", ""));
    $("seed").addEventListener("input", () => lock(filled("seed")));
    $("dice").addEventListener("click", () => (draw(), lock(true), changed()));
    $("lock").addEventListener("click", () => {
        if (!filled("seed"))
            draw();
        lock(!locked());
        changed();
    });
    $("swap").addEventListener("click", swap);
    $("defaults").addEventListener("click", toDefaults);
    $("carried").querySelector("button").addEventListener("click", () => {
        carried = {};
        changed();
        $("defaults").focus();
    });
    $("form").addEventListener("change", changed);
    $("form").addEventListener("input", changed);
}
