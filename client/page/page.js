// SPDX-License-Identifier: Apache-2.0
//
// The page of kread-http. Nothing here makes a picture: the form (form.js) becomes a request (api.js),
// its job is followed until it ends (jobs.js), the pictures are kept in the browser (history.js) and
// shown (stage.js); png.js reads values back out of a file. This file holds them together, and has
// what concerns the page as a whole: state of the server, messages, keys, dropped files, colours.

import * as api from "./api.js";
import * as form from "./form.js";
import * as history from "./history.js";
import * as jobs from "./jobs.js";
import * as png from "./png.js";
import * as stage from "./stage.js";
import * as words from "./words.js";

const $ = id => document.getElementById(id);

/* -------------------------------------------------------------------------------- messages --- */

function button(text, act) {
    const element = document.createElement("button");
    element.type = "button";
    element.className = "text";
    element.textContent = text;
    element.addEventListener("click", act);
    return element;
}

function quiet() {
    $("alert").replaceChildren();
    $("info").replaceChildren();
}

// One message at a time; kind is "alert" or "info". action: [words, function].
function say(kind, text, action) {
    const line = document.createElement("p");
    line.textContent = text;
    const act = action && button(action[0], () => (quiet(), action[1]()));
    quiet();
    $(kind).replaceChildren(line, ...act ? [act] : [], button("Close", quiet));
}

// For those who listen: what those who see learn from the bar. Not every step.
let spoken = "";
function speak(text) {
    if (text !== spoken)
        $("live").textContent = spoken = text;
}

function speakOf(job) {
    const share = words.share(job);
    const quarter = share === null ? "" : `${Math.floor(share * 4) * 25} percent, `;
    if (share === null || quarter !== job.spokenQuarter)
        speak(quarter + words.doing(job));
    job.spokenQuarter = quarter;
}

function title() {
    const job = stage.shownJob() ?? jobs.all()[0];
    const share = job ? words.share(job) : null;
    document.title = job ? (share === null ? "waiting" : `${Math.round(share * 100)} %`) + " - kread" : "kread";
}

/* ------------------------------------------------------------------------ the server's state --- */

const ASK = 5000, LONGEST = 15000; // milliseconds between two questions
let misses = 0, asking = 0, last = null;

const STATES = {
    loading: "kread is loading its model.",
    stopping: "kread is stopping and takes no more jobs.",
    away: "kread is away.",
};

function banner(status) {
    const text = STATES[status.state];
    const shown = text ? `${api.sentence(status.message || text)} Your settings and pictures stay here. Asking again until it is ready.` : "";
    if ($("banner").firstElementChild.textContent !== shown)
        $("banner").firstElementChild.textContent = shown;
    $("banner").hidden = !text;
}

function summary(status) {
    const {state, running, queued} = status;
    const busy = state !== "ready" || !running ? state : queued > 0 ? `working, ${queued} waiting` : "working";
    $("summary").textContent = status.profile ? `${status.profile}, ${busy}` : busy;
    $("summary").dataset.state = state;
}

const MEMORY = {
    diffusion_model: "Diffusion model", text_encoder: "Text encoder", vae: "VAE", default_job: "For a picture",
    free: "Free", last_peak: "Last peak",
};

function about(status) {
    const memory = status.memory ?? {};
    const sizes = Object.entries(MEMORY).filter(([key]) => memory[key] > 0)
        .map(([key, label]) => [label, words.size(memory[key])]);
    const plan = status.residency ?? memory.residency;
    const pairs = [["Profile", status.profile], ["Model", status.architecture], ["Variant", status.variant],
                   ["Device", status.device], ["", status.device_why], ["Memory plan", plan],
                   ["", status.residency_why], ...sizes,
                   ["Up for", status.uptime >= 0 ? words.duration(status.uptime) : undefined],
                   ["kread", status.release]];
    stage.list($("about"), pairs.filter(([, value]) => typeof value === "string" && value !== ""));
    $("server-summary").textContent = [status.variant, status.device, plan].filter(Boolean).join(", ");
}

function take(status) {
    const back = last && last.state !== "ready" && status.state === "ready";
    misses = status.state === "away" ? misses + 1 : 0;
    if (status.state !== "away") {
        about(status);
        form.setDefaults(status);
    }
    summary({...last, ...status});
    banner(status);
    if (back) {
        speak("kread is back.");
        jobs.wake();
    }
    last = {...last, ...status};
}

async function look() {
    clearTimeout(asking);
    try {
        take(await api.status());
    } catch (error) {
        if (error.status !== 401)
            take({state: "away", message: error.message});
    }
    const wait = misses > 0 ? Math.min(LONGEST, 500 * 2 ** misses) : last?.state === "ready" ? ASK : 1000;
    asking = setTimeout(() => document.hidden || look(), wait);
}

/* -------------------------------------------------------------------------------- pictures --- */

const HOW = {
    cancelled: job => say("info", job.had > 0 ? `Cancelled. ${job.had} of ${job.values.count} pictures are in the history.` : "Cancelled."),
    failed: (job, text) => say("alert", `No picture: ${text || "the job failed."}`, ["Use its values", () => reuse(job.values)]),
    completed: () => {},
};

function ended(job, how, text) {
    const watched = stage.shownName() === stage.names.job(job.id);
    HOW[how](job, text);
    speak({completed: "Done.", cancelled: "Cancelled."}[how] ?? "");
    stage.showTiles();
    if (watched) {
        const newest = history.all()[0];
        stage.show(jobs.all().length > 0 ? stage.names.job(jobs.all()[0].id) : newest ? stage.names.picture(newest.key) : "");
    }
    title();
    look();
}

async function picture(job, record) {
    record.thumb = await history.thumbnail(record.png).catch(() => record.png);
    const kept = await history.put(record);
    if (!kept && history.limits.lasting)
        say("alert", "The browser has no room for this picture. Download it, or delete older ones.");
    const last = job.had >= job.values.count;
    stage.showTiles();
    if (last && stage.shownName() === stage.names.job(job.id))
        stage.show(stage.names.picture(record.key));
}

function changed(job) {
    stage.jobChanged(job);
    if (stage.shownJob() === job)
        speakOf(job);
    title();
}

function foreign(values) {
    const other = values.profile && last?.profile && values.profile !== last.profile;
    return other ? ` It was made with ${values.profile}; with ${last.profile} it will look different.` : "";
}

function reuse(values) {
    const undo = form.fill(values);
    say("info", "The form has the picture's values." + foreign(values), ["Undo", undo]);
    $("prompt").focus();
}

async function remove() {
    const record = stage.shownRecord(), name = stage.shownName();
    if (!record || name === "file")
        return;
    const next = stage.neighbour(name), inTiles = $("tiles").contains(document.activeElement);
    await history.remove(record.key);
    stage.show(next);
    stage.showTiles();
    (inTiles && $("tiles").querySelector("[tabindex='0']") || $("prompt")).focus();
    say("info", "Deleted.", ["Undo", async () => {
        await history.put(record);
        stage.showTiles();
        stage.show(name);
    }]);
}

async function removeAll() {
    $("sure").close();
    await history.clear();
    if (!stage.shownJob())
        stage.show("");
    stage.showTiles();
    say("info", "The history is empty.");
    $("prompt").focus();
}

/* --------------------------------------------------------------------------------- actions --- */

async function generate() {
    const values = form.values();
    if (!values)
        return;
    quiet();
    $("generate").disabled = true;
    try {
        const job = await jobs.submit(values);
        stage.showTiles();
        stage.show(stage.names.job(job.id));
        title();
        if (matchMedia("(max-width: 50rem)").matches)
            $("stage").scrollIntoView();
    } catch (error) {
        if (error.status !== 401)
            say("alert", error.message);
        if (error.away)
            look();
    } finally {
        $("generate").disabled = false;
        look();
    }
}

async function cancel() {
    const job = stage.shownJob() ?? jobs.all()[0];
    if (!job || job.ending)
        return;
    try {
        await jobs.cancel(job);
    } catch (error) {
        say("alert", "Not cancelled. " + error.message);
    }
}

async function readFile(file) {
    if (!file)
        return;
    try {
        const {values} = await png.read(file, file.name || "The picture");
        stage.showFile({png: file, name: file.name, values, took: null});
        const undo = form.fill(values);
        say("info", `The form has the values of ${file.name}.` + foreign(values), ["Undo", undo]);
    } catch (error) {
        say("alert", error.message);
    }
}

/* ---------------------------------------------------------------------------- the whole page --- */

function startDropping() {
    const files = event => event.dataTransfer?.types.includes("Files");
    let depth = 0;
    const over = n => {
        depth = n;
        $("drop").hidden = depth <= 0;
    };
    addEventListener("dragenter", event => files(event) && over(depth + 1));
    addEventListener("dragleave", event => files(event) && over(depth - 1));
    addEventListener("dragover", event => files(event) && event.preventDefault());
    addEventListener("drop", event => {
        over(0);
        if (!files(event))
            return;
        event.preventDefault();
        readFile(event.dataTransfer.files[0]);
    });
    $("file").addEventListener("change", async () => {
        await readFile($("file").files[0]);
        $("file").value = "";
    });
}

function startKeys() {
    addEventListener("keydown", event => {
        if (event.isComposing || document.querySelector("dialog[open]"))
            return;
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            generate();
        } else if (event.key === "Escape" && jobs.all().length > 0)
            cancel();
    });
}

function startTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const apply = () => {
        const chosen = localStorage.getItem("kread.theme");
        if (chosen)
            document.documentElement.dataset.theme = chosen;
        $("theme").setAttribute("aria-pressed", String((chosen ?? (dark.matches ? "dark" : "light")) === "dark"));
    };
    $("theme").addEventListener("click", () => {
        const isDark = $("theme").getAttribute("aria-pressed") === "true";
        localStorage.setItem("kread.theme", isDark ? "light" : "dark");
        apply();
    });
    dark.addEventListener("change", apply);
    apply();
}

function startToken() {
    api.events.addEventListener("locked", () => {
        if ($("locked").open)
            return;
        $("locked-text").textContent = api.token() ? "The token was refused. Check it with the server's owner."
            : "Its owner has it. It is kept until you close this tab.";
        $("token").value = "";
        $("locked").showModal();
    });
    $("locked").addEventListener("submit", event => {
        event.preventDefault();
        api.token($("token").value.trim());
        $("locked").close();
        look();
        jobs.wake();
    });
}

function startHistory() {
    $("cancel").addEventListener("click", cancel);
    $("reuse").addEventListener("click", () => reuse(stage.shownRecord().values));
    $("delete").addEventListener("click", remove);
    $("delete-all").addEventListener("click", () => $("sure").showModal());
    $("sure").addEventListener("submit", event => (event.preventDefault(), removeAll()));
    $("sure").querySelector("[value=no]").addEventListener("click", () => $("sure").close());
}

async function start() {
    startTheme();
    startToken();
    startKeys();
    startDropping();
    startHistory();
    $("settings").open = !matchMedia("(max-width: 50rem)").matches;
    $("server").open = matchMedia("(min-width: 50rem) and (min-height: 68rem)").matches;
    form.start();
    $("form").addEventListener("submit", event => (event.preventDefault(), generate()));
    $("banner").querySelector("button").addEventListener("click", () => (jobs.wake(), look()));
    document.addEventListener("visibilitychange", () => document.hidden || look());
    look();
    await history.open(stage.showTiles);
    jobs.start({changed, picture, ended});
    stage.start(remove);
    const job = jobs.all()[0], newest = history.all()[0];
    stage.show(job ? stage.names.job(job.id) : newest ? stage.names.picture(newest.key) : "");
    if (!matchMedia("(pointer: coarse)").matches) // there it would bring up a keyboard
        $("prompt").focus({preventScroll: true});
}

start();
