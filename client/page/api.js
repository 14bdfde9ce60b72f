// SPDX-License-Identifier: Apache-2.0
//
// The one place that speaks to kread-http. Every failure comes out as an ApiError whose message is a
// sentence for people. Addresses are relative, so that the page also works below a path of a proxy.
//
// Seeds have 63 bits and JavaScript's numbers 53: integers that a number can't hold are read as their
// text and written from their text, untouched.

const PATIENCE = 30000; // milliseconds until an answer is given up

export class ApiError extends Error {
    constructor(status, message, retryAfter = 0) {
        super(message);
        this.status = status; // 0: there was no answer
        this.retryAfter = retryAfter;
    }

    // Nobody is there now, but somebody will be: daemon or shim restart, or the network is gone.
    get away() {
        return this.status === 0 || this.status >= 502 && this.status <= 504;
    }
}

export const events = new EventTarget(); // "locked": the server wants a token

export function token(value) {
    if (value !== undefined)
        sessionStorage.setItem("kread.token", value);
    return sessionStorage.getItem("kread.token") ?? "";
}

export function parse(text) {
    return JSON.parse(text, (key, value, context) =>
        Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value);
}

export function integer(text) {
    const value = Number(text);
    if (Number.isSafeInteger(value))
        return value;
    if (!JSON.rawJSON)
        throw new Error("This browser is too old for seeds above " + Number.MAX_SAFE_INTEGER + ".");
    return JSON.rawJSON(text);
}

const SENTENCES = {
    0: "kread-http does not answer. Check that it is running and that this computer can reach it.",
    401: "This server asks for its token.",
    403: "This server does not take requests from this address.",
    404: "This server does not know that address; its version may not fit this page. Reload the page.",
    413: "That is too much for one request. Shorten the prompt.",
    429: "The queue is full.",
    503: "kread is away.",
};

function pause(text, seconds) {
    return seconds > 0 && !/try again/i.test(text) ? ` Try again in ${seconds} s.` : "";
}

async function failure(response) {
    const retryAfter = Number(response.headers.get("Retry-After")) || 0;
    let told;
    try {
        const body = parse(await response.text());
        told = body.message ?? body.error?.message ?? body.error;
    } catch {
        // no JSON, as from a proxy: our own sentence does
    }
    const known = typeof told === "string" && told !== "" ? sentence(told) : SENTENCES[response.status];
    const text = known ?? `The server failed with status ${response.status}.`;
    return new ApiError(response.status, text + pause(text, retryAfter), retryAfter);
}

export function sentence(text) {
    return /[.!?]$/.test(text) ? text : text + ".";
}

export async function request(path, options = {}) {
    const headers = {};
    if (token())
        headers.Authorization = "Bearer " + token();
    if (options.body)
        headers["Content-Type"] = "application/json";
    let response;
    try {
        response = await fetch(path, {...options, headers, cache: "no-store",
                                      signal: AbortSignal.timeout(PATIENCE)});
    } catch {
        throw new ApiError(0, SENTENCES[0]);
    }
    if (response.ok)
        return response;
    if (response.status === 401)
        events.dispatchEvent(new Event("locked"));
    throw await failure(response);
}

async function body(response, how) {
    try {
        return how === "blob" ? await response.blob() : parse(await response.text());
    } catch {
        throw new ApiError(0, "The server's answer broke off.");
    }
}

const json = async (path, options) => body(await request(path, options), "json");
const blob = async path => body(await request(path), "blob");

export const status = () => json("kread/v1/status");
export const job = id => json("sdcpp/v1/jobs/" + encodeURIComponent(id));
export const cancel = id => json(`sdcpp/v1/jobs/${encodeURIComponent(id)}/cancel`, {method: "POST"});
export const preview = id => blob(`kread/v1/jobs/${encodeURIComponent(id)}/preview.png`);
export const image = (id, index) => blob(`kread/v1/jobs/${encodeURIComponent(id)}/images/${index}.png`);

// `values` have kread's own names; their seed is a text.
export function generate(values, preview) {
    const {prompt, negative = "", width, height, seed, count, ...more} = values;
    return json("sdcpp/v1/img_gen", {
        method: "POST",
        body: JSON.stringify({
            prompt, negative_prompt: negative, width, height, seed: integer(seed), batch_count: count,
            kread: {...more, preview},
        }),
    });
}
