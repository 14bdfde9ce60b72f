// SPDX-License-Identifier: Apache-2.0
//
// The middle and the history: one thing is shown large, a job that runs or a picture, and everything
// has a tile. Texts that come from a picture or a prompt only ever become textContent.

import * as history from "./history.js";
import * as jobs from "./jobs.js";
import * as words from "./words.js";

const $ = id => document.getElementById(id);
const tiles = new Map(); // "job ID" or "picture KEY" -> element, in no order
const SMALLEST = 512; // pixels that even a small picture is given, where there is room

let shown = "";    // a tile's name, "" for nothing, "file" for a picture that is not in the history
let shownUrl = ""; // of #picture
let loose = null;  // the record of "file"

export const names = {job: id => "job " + id, picture: key => "picture " + key};
const idOf = name => name.slice(name.indexOf(" ") + 1);

export const shownName = () => shown;
export const shownJob = () => shown.startsWith("job ") ? jobs.get(idOf(shown)) ?? null : null;
export function shownRecord() {
    return shown === "file" ? loose : shown.startsWith("picture ") ? history.get(idOf(shown)) ?? null : null;
}

/* ------------------------------------------------------------------------------ the middle --- */

function setPicture(blob, alt) {
    const old = shownUrl;
    shownUrl = blob ? URL.createObjectURL(blob) : "";
    $("picture").hidden = !blob;
    $("picture").alt = alt;
    if (blob)
        $("picture").src = shownUrl;
    else
        $("picture").removeAttribute("src");
    if (old)
        URL.revokeObjectURL(old);
}

function setBox(width, height) {
    const style = $("box").style;
    style.setProperty("--w", width);
    style.setProperty("--h", height);
    style.setProperty("--most", `${Math.max(width, height, SMALLEST) * width / Math.max(width, height)}px`);
}

function frame(show) {
    $("frame").dataset.show = show;
    $("job").hidden = show !== "job";
    $("caption").hidden = show !== "picture";
}

const LABELS = {
    prompt: "Prompt", negative: "Negative prompt", width: "Width", height: "Height", steps: "Steps", cfg: "Guidance (cfg)",
    seed: "Seed", mu: "mu", shift_y1: "shift_y1", shift_y2: "shift_y2", rng: "Noise generator (rng)", dialect: "Dialect",
    profile: "Profile", architecture: "Architecture", variant: "Variant", version: "Version of kread",
};

export function list(dl, pairs) {
    dl.replaceChildren(...pairs.flatMap(([term, text]) => {
        const dt = document.createElement("dt"), dd = document.createElement("dd");
        dt.textContent = term;
        dd.textContent = text;
        return [dt, dd];
    }));
}

function caption(record) {
    const {values} = record;
    $("caption-prompt").textContent = values.prompt ?? "";
    $("caption-values").textContent = words.summary(record);
    $("download").href = shownUrl;
    $("download").download = shown === "file" ? record.name : `kread-${values.seed}.png`;
    $("delete").hidden = shown === "file";
    const pairs = Object.entries(LABELS).filter(([name]) => values[name] !== undefined && values[name] !== "");
    list($("all-values").querySelector("dl"), pairs.map(([name, label]) => [label, String(values[name])]));
}

function showPicture(record) {
    const {values} = record;
    setBox(values.width ?? 1, values.height ?? 1);
    setPicture(record.png, values.prompt || "A picture without a prompt");
    frame("picture");
    caption(record);
}

function showJob(job) {
    const share = words.share(job), {width, height} = {...job.values, ...job.state?.values};
    setBox(width, height);
    frame("job");
    $("job-text").textContent = words.doing(job);
    $("cancel").disabled = job.ending;
    if (share === null)
        $("bar").removeAttribute("value");
    else
        $("bar").value = share;
    if (job.preview !== job.shownPreview || $("picture").dataset.of !== job.id) {
        setPicture(job.preview, "Preview of: " + job.values.prompt);
        job.shownPreview = job.preview;
        $("picture").dataset.of = job.id;
    }
}

function showNothing() {
    setPicture(null, "");
    frame("empty");
}

// The picture may have another size than its values say, where it is another program's.
function measured() {
    const {naturalWidth, naturalHeight} = $("picture");
    if ($("frame").dataset.show === "picture")
        setBox(naturalWidth, naturalHeight);
}

/* ------------------------------------------------------------------------------- the tiles --- */

function newTile(name) {
    const tile = document.createElement("div");
    tile.role = "option";
    tile.dataset.name = name;
    tile.tabIndex = -1;
    tiles.set(name, tile);
    return tile;
}

function pictureTile(record) {
    const name = names.picture(record.key);
    if (tiles.has(name))
        return tiles.get(name);
    const tile = newTile(name), image = document.createElement("img");
    image.src = URL.createObjectURL(record.thumb ?? record.png);
    image.alt = `${record.values.prompt || "A picture without a prompt"}, seed ${record.values.seed}`;
    image.loading = "lazy";
    image.decoding = "async";
    tile.title = image.alt;
    tile.append(image);
    return tile;
}

function jobTile(job) {
    const name = names.job(job.id);
    let tile = tiles.get(name);
    if (!tile) {
        tile = newTile(name);
        tile.className = "pending";
        tile.append(document.createElement("span"), document.createElement("progress"));
        tile.lastElementChild.max = 1;
        tile.lastElementChild.setAttribute("aria-hidden", "true");
    }
    const share = words.share(job), bar = tile.lastElementChild;
    tile.firstElementChild.textContent = job.values.prompt;
    tile.setAttribute("aria-label", `${words.doing(job)}: ${job.values.prompt}`);
    if (share === null)
        bar.removeAttribute("value");
    else
        bar.value = share;
    return tile;
}

function forget(keep) {
    for (const [name, tile] of tiles) {
        if (keep.has(tile))
            continue;
        const image = tile.querySelector("img");
        if (image)
            URL.revokeObjectURL(image.src);
        tiles.delete(name);
    }
}

// One tile is in the tab order; the arrows move among them.
function mark() {
    const all = [...$("tiles").children];
    const current = tiles.get(shown) ?? all[0];
    for (const tile of all) {
        tile.tabIndex = tile === current ? 0 : -1;
        tile.setAttribute("aria-selected", String(tile.dataset.name === shown));
    }
}

function hint(count) {
    const kept = history.limits.lasting
        ? `The newest ${history.limits.pictures} stay in this browser.`
        : "This browser keeps nothing; download what you like before you close the page.";
    $("history-hint").textContent = count === 0 ? "Pictures you make appear here. " + kept : kept;
}

export function showTiles() {
    const pictures = history.all();
    const wanted = [...jobs.all().reverse().map(jobTile), ...pictures.map(pictureTile)];
    const focused = $("tiles").contains(document.activeElement) ? document.activeElement : null;
    const now = [...$("tiles").children];
    if (wanted.length !== now.length || wanted.some((tile, i) => tile !== now[i]))
        $("tiles").replaceChildren(...wanted);
    forget(new Set(wanted));
    if (focused && focused.isConnected)
        focused.focus({preventScroll: true});
    $("delete-all").disabled = pictures.length === 0;
    hint(wanted.length);
    mark();
}

/* ---------------------------------------------------------------------------- for the page --- */

export function show(name) {
    shown = name;
    const record = shownRecord(), job = shownJob();
    delete $("picture").dataset.of;
    if (record)
        showPicture(record);
    else if (job)
        showJob(job);
    else {
        shown = "";
        showNothing();
    }
    mark();
}

export function showFile(record) {
    loose = record;
    show("file");
}

export function jobChanged(job) {
    if (shown === names.job(job.id))
        showJob(job);
    jobTile(job);
}

// The tile beside one that goes away.
export function neighbour(name) {
    const tile = tiles.get(name);
    return (tile?.nextElementSibling ?? tile?.previousElementSibling)?.dataset.name ?? "";
}

function step(event) {
    const all = [...$("tiles").children], at = all.findIndex(tile => tile.tabIndex === 0);
    const columns = getComputedStyle($("tiles")).gridTemplateColumns.split(" ").length;
    const moves = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: all.length - 1 - at};
    const to = all[at + moves[event.key]];
    if (!(event.key in moves))
        return;
    event.preventDefault();
    if (to) {
        show(to.dataset.name);
        to.focus();
    }
}

// removed() is called when the person presses Delete on a tile.
export function start(removed) {
    $("picture").addEventListener("load", measured);
    $("tiles").addEventListener("keydown", event => {
        if (event.key === "Delete")
            removed();
        else
            step(event);
    });
    $("tiles").addEventListener("click", event => {
        const tile = event.target.closest("[role=option]");
        if (tile) {
            show(tile.dataset.name);
            tile.focus();
        }
    });
    showTiles();
}
