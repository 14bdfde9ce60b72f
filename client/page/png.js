// SPDX-License-Identifier: Apache-2.0
//
// Reads how a picture was made out of its PNG: kread's own chunk "kread" (JSON), else the chunk
// "parameters" of AUTOMATIC1111's tools. The file may come from anywhere: everything is checked, what
// is not understood is left out, and every refusal is one sentence.

import {parse} from "./api.js";

const MAX_FILE = 256 << 20;
const MAX_TEXT = 1 << 20; // of one chunk, unpacked
const MAX_SEED = 2n ** 63n - 1n;

const latin1 = bytes => new TextDecoder("latin1").decode(bytes);

// tEXt is Latin-1 by its definition, but some programs write UTF-8 into it.
function lenient(bytes) {
    try {
        return new TextDecoder("utf-8", {fatal: true}).decode(bytes);
    } catch {
        return latin1(bytes);
    }
}

async function inflate(bytes) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const parts = [];
    let size = 0;
    for (const reader = stream.getReader();;) {
        const {done, value} = await reader.read();
        if (done)
            return new Uint8Array(await new Blob(parts).arrayBuffer());
        parts.push(value);
        if ((size += value.length) > MAX_TEXT) {
            reader.cancel();
            throw new Error("too long");
        }
    }
}

// Where the text that starts at `from` ends with a zero byte.
function end(data, from) {
    const at = data.indexOf(0, from);
    if (at < 0)
        throw new Error("no end");
    return at;
}

async function textOf(type, data) {
    const key = end(data, 0);
    const name = latin1(data.subarray(0, key));
    if (type === "tEXt")
        return [name, lenient(data.subarray(key + 1))];
    if (type === "zTXt")
        return [name, lenient(await inflate(data.subarray(key + 2)))];
    const packed = data[key + 1] === 1;
    const text = data.subarray(end(data, end(data, key + 3) + 1) + 1); // after language and title
    return [name, new TextDecoder().decode(packed ? await inflate(text) : text)];
}

function* chunks(bytes, broken) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (let at = 8;;) {
        if (at + 12 > bytes.length)
            throw broken;
        const size = view.getUint32(at);
        const type = latin1(bytes.subarray(at + 4, at + 8));
        if (size > bytes.length - at - 12)
            throw broken;
        if (type === "IEND")
            return;
        yield [type, bytes.subarray(at + 8, at + 8 + size)];
        at += size + 12;
    }
}

async function textsOf(bytes, name) {
    const broken = new Error(`${name} is damaged: it ends in the middle or is not what it says.`);
    const signature = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
    if (!signature.every((byte, i) => bytes[i] === byte))
        throw new Error(`${name} is not a PNG file.`);
    const texts = new Map();
    for (const [type, data] of chunks(bytes, broken)) {
        if (!["tEXt", "zTXt", "iTXt"].includes(type) || data.length > MAX_TEXT)
            continue;
        try {
            const [key, text] = await textOf(type, data);
            if (!texts.has(key))
                texts.set(key, text);
        } catch {
            throw new Error(`${name} is damaged: one of its texts can't be unpacked.`);
        }
    }
    return texts;
}

/* ------------------------------------------------------------------------- the values --- */

const real = (least, most) => value => {
    const n = typeof value === "number" || /\d/.test(value) && typeof value === "string" ? Number(value) : NaN;
    return n >= least && n <= most ? n : undefined;
};
const whole = (least, most) => value => {
    const n = real(least, most)(value);
    return Number.isInteger(n) ? n : undefined;
};
const word = (...words) => value => words.includes(value) ? value : undefined;
const text = value => typeof value === "string" ? value.slice(0, 65536) : undefined;

export function seedText(value) {
    const digits = String(value).trim();
    return /^\d{1,19}$/.test(digits) && BigInt(digits) <= MAX_SEED ? BigInt(digits).toString() : undefined;
}

const FIELDS = {
    prompt: text, negative: text,
    width: whole(16, 8192), height: whole(16, 8192), steps: whole(1, 1000), cfg: real(0, 100),
    seed: seedText, count: whole(1, 64),
    mu: real(-10, 10), shift_y1: real(-10, 10), shift_y2: real(-10, 10),
    rng: word("cuda", "cpu"), dialect: word("krea", "comfyui"),
    profile: text, variant: text, architecture: text, version: text,
};

// The values of some object, or of a line of some other program, that are what they should be.
export function clean(object) {
    const values = {};
    for (const [name, check] of Object.entries(FIELDS)) {
        const given = object[name];
        const value = given === null || given === undefined ? undefined : check(given);
        if (value !== undefined)
            values[name] = value;
    }
    return values;
}

function unquote(value) {
    try {
        return value.startsWith('"') ? JSON.parse(value) : value.trim();
    } catch {
        return value;
    }
}

// The prompt's lines, then perhaps "Negative prompt: ...", then "Steps: 8, Sampler: Euler, ...".
export function fromParameters(parameters) {
    const lines = parameters.replaceAll("\r\n", "\n").trimEnd().split("\n");
    const last = /^Steps: \d/.test(lines.at(-1)) ? lines.pop() : "";
    const at = lines.findIndex(line => line.startsWith("Negative prompt:"));
    const negative = at < 0 ? "" : lines.splice(at).join("\n").slice("Negative prompt:".length).trim();
    const pairs = new Map();
    for (const [, key, value] of last.matchAll(/([A-Za-z][\w /-]*): ("(?:\\.|[^"\\])*"|[^,]*)/g))
        pairs.set(key.trim(), unquote(value));
    const [width, height] = (pairs.get("Size") ?? "").split("x");
    const ours = /^kread\b/.test(pairs.get("Version") ?? "");
    const scale = pairs.has("CFG scale") ? Number(pairs.get("CFG scale")) : undefined;
    return clean({
        prompt: lines.join("\n").trim(), negative, width, height, steps: pairs.get("Steps"),
        seed: pairs.get("Seed"), variant: undefined, profile: pairs.get("Model"),
        // others' scale begins at 1, where guidance is off
        cfg: scale === undefined || ours ? scale : Math.max(0, scale - 1),
    });
}

function fromKread(json, name) {
    let object;
    try {
        object = parse(json);
    } catch {
        // said below
    }
    if (object === null || typeof object !== "object" || Array.isArray(object))
        throw new Error(`${name} is damaged: what kread wrote into it can't be read.`);
    return clean(object);
}

// What stands in a PNG, a Blob: {values, ours}. `name` is for the sentences.
export async function read(file, name) {
    if (file.size > MAX_FILE)
        throw new Error(`${name} is too large to look into.`);
    let bytes;
    try {
        bytes = new Uint8Array(await file.arrayBuffer());
    } catch {
        throw new Error(`${name} can't be read. Was it moved?`);
    }
    const texts = await textsOf(bytes, name);
    if (texts.has("kread"))
        return {values: fromKread(texts.get("kread"), name), ours: true};
    if (texts.has("parameters"))
        return {values: fromParameters(texts.get("parameters")), ours: false};
    throw new Error(`${name} does not say how it was made: it has no text of kread or AUTOMATIC1111.`);
}
