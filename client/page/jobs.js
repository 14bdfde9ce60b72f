// SPDX-License-Identifier: Apache-2.0
//
// The jobs that this browser asked for and that have not ended. The daemon owns them: they run on when
// the page is closed, so their ids are kept in localStorage and a new page follows them again. Each is
// polled by a loop of its own; a daemon that is away is asked again, less and less often.
//
// A job: {id, values, since, had (pictures that are in the history already), state (the server's job
// object, null before the first answer), preview (Blob or null), away (sentence or ""), ending}.

import * as api from "./api.js";
import {read} from "./png.js";

const KEY = "kread.jobs";
const RUNNING = 300, WAITING = 1000, UNSEEN = 2000, LONGEST = 10000; // milliseconds between two questions

const jobs = new Map();
const wakers = new Set();
let report; // {changed(job), picture(job, record), ended(job, how, sentence)}

export const all = () => [...jobs.values()];
export const get = id => jobs.get(id);

function save() {
    const list = all().map(({id, values, since, had}) => ({id, values, since, had}));
    try {
        localStorage.setItem(KEY, JSON.stringify(list));
    } catch {
        // full or forbidden: a reload then loses sight of the job
    }
}

function nap(ms) {
    return new Promise(resolve => {
        const wake = () => (clearTimeout(timer), wakers.delete(wake), resolve());
        const timer = setTimeout(wake, ms);
        wakers.add(wake);
    });
}

// Ask now, as after a token was entered or the page came to the front.
export function wake() {
    for (const each of wakers)
        each();
}

/* ----------------------------------------------------------------------------- following --- */

async function lookAtPreview(job) {
    const url = job.state.progress?.preview_url;
    if (!url || url === job.previewUrl || job.state.status !== "generating")
        return;
    job.previewUrl = url;
    try {
        job.preview = await api.preview(job.id);
    } catch {
        // the next one will come
    }
}

// The values that made a picture: its file knows them best, then the server, then what was asked for.
async function valuesOf(job, png, index) {
    let written = {};
    try {
        written = (await read(png, "The picture")).values;
    } catch {
        // a server may write none
    }
    const {state} = job, told = state.values ?? {};
    const first = String(told.seed ?? state.seed ?? job.values.seed);
    const seed = (BigInt(first) + BigInt(index)).toString();
    return {...job.values, ...told, seed, ...written, count: 1};
}

async function take(job, index) {
    const png = await api.image(job.id, index);
    const {started, completed} = job.state;
    const took = job.values.count === 1 && completed > started ? completed - started : null;
    const record = {key: `${job.id}/${index}`, index, made: job.since, png, bytes: png.size, took,
                    values: await valuesOf(job, png, index)};
    job.preview = null;
    job.had = index + 1;
    save();
    await report.picture(job, record);
}

// How many pictures are finished by now.
function finished({state, values}) {
    if (state.status === "completed")
        return state.values?.count ?? state.result?.images?.length ?? values.count;
    return state.status === "generating" ? state.progress?.image ?? 0 : 0;
}

async function takeFinished(job) {
    for (let i = job.had; i < finished(job); i++) {
        try {
            await take(job, i);
        } catch (error) {
            if (job.state.status !== "completed" && error.status >= 400 && error.status < 500)
                return; // not fetchable until the job ends
            throw error;
        }
    }
}

const ENDED = ["completed", "failed", "cancelled"];

async function look(job) {
    job.state = await api.job(job.id);
    job.away = "";
    await lookAtPreview(job);
    await takeFinished(job);
    if (!ENDED.includes(job.state.status))
        return null;
    return {how: job.state.status, text: job.state.error?.message ?? ""};
}

const GONE = "The server no longer knows this job: kread was restarted or its pictures were dropped. Generate again.";

function after(job, error, misses) {
    if (error.status === 404 || error.status === 410)
        return {how: "failed", text: GONE};
    if (error.status === 400)
        return {how: "failed", text: error.message};
    job.away = error.message;
    job.misses = misses;
    return null;
}

function interval(job, misses) {
    if (misses > 0)
        return Math.min(LONGEST, 500 * 2 ** misses);
    if (document.hidden)
        return UNSEEN;
    return job.state?.status === "generating" ? RUNNING : WAITING;
}

async function follow(job) {
    for (let misses = 0; ;) {
        let end;
        try {
            end = await look(job);
            misses = 0;
        } catch (error) {
            end = after(job, error, ++misses);
        }
        if (!jobs.has(job.id))
            return;
        if (end) {
            jobs.delete(job.id);
            save();
            report.ended(job, end.how, end.text);
            return;
        }
        report.changed(job);
        await nap(interval(job, misses));
    }
}

/* -------------------------------------------------------------------------- for the page --- */

function add(job) {
    const full = {state: null, preview: null, away: "", ending: false, ...job};
    jobs.set(full.id, full);
    save();
    follow(full);
    return full;
}

// Enough previews to watch, on a long run not one for every step.
const previewEvery = steps => Math.max(1, Math.round(steps / 16));

export async function submit(values) {
    const {id} = await api.generate(values, previewEvery(values.steps));
    return add({id, values, since: Date.now(), had: 0});
}

export async function cancel(job) {
    job.ending = true;
    report.changed(job);
    try {
        await api.cancel(job.id);
        wake();
    } catch (error) {
        job.ending = false;
        report.changed(job);
        if (error.status !== 404 && error.status !== 410) // then the loop finds out and says so
            throw error;
    }
}

export function start(callbacks) {
    report = callbacks;
    let list = [];
    try {
        list = JSON.parse(localStorage.getItem(KEY)) ?? [];
    } catch {
        // as if there were none
    }
    for (const job of list)
        if (typeof job?.id === "string" && job.values)
            add(job);
    document.addEventListener("visibilitychange", () => document.hidden || wake());
}
