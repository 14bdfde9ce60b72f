// SPDX-License-Identifier: Apache-2.0
//
// The pictures that this browser keeps, in IndexedDB, the newest first. A record is {key, made, png,
// thumb, bytes, values, took}; its key, job and index, makes a second put of the same picture harmless,
// so that two tabs may follow one job. Where there is no IndexedDB they live as long as the page.

const MOST = 200;
const MOST_BYTES = 256 << 20;
const THUMB = 288; // pixels

let database = null;
const records = new Map(); // key -> record, what the database holds
export const limits = {pictures: MOST, lasting: true};
const others = "BroadcastChannel" in window ? new BroadcastChannel("kread.history") : null;

const settled = request => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
});

function store(mode) {
    return database.transaction("pictures", mode).objectStore("pictures");
}

// changed() is called when another tab changed something.
export async function open(changed) {
    try {
        const opening = indexedDB.open("kread", 1);
        opening.onupgradeneeded = () => opening.result.createObjectStore("pictures", {keyPath: "key"});
        database = await settled(opening);
        database.onversionchange = () => database.close();
        await load();
    } catch {
        database = null;
        limits.lasting = false;
    }
    if (others)
        others.onmessage = async () => {
            await load();
            changed();
        };
}

async function load() {
    if (!database)
        return;
    const all = await settled(store("readonly").getAll());
    records.clear();
    for (const record of all)
        records.set(record.key, record);
}

export function all() {
    return [...records.values()].sort((a, b) => b.made - a.made || b.index - a.index);
}

export const get = key => records.get(key);

async function write(change) {
    if (!database)
        return;
    await change(store("readwrite"));
    others?.postMessage("changed");
}

// Puts a record and drops the oldest beyond the limits. False: the browser has no room for it, and it
// is only kept until the page closes.
export async function put(record) {
    records.set(record.key, record);
    const kept = all();
    let bytes = 0;
    const old = kept.filter((each, i) => (bytes += each.bytes, i > 0 && (i >= MOST || bytes > MOST_BYTES)));
    for (const each of old)
        records.delete(each.key);
    try {
        await write(async pictures => {
            for (const each of old)
                pictures.delete(each.key);
            await settled(pictures.put(record));
        });
        return true;
    } catch {
        return false;
    }
}

export async function remove(key) {
    records.delete(key);
    await write(pictures => settled(pictures.delete(key)));
}

export async function clear() {
    records.clear();
    await write(pictures => settled(pictures.clear()));
}

export async function thumbnail(png) {
    const image = await createImageBitmap(png);
    const scale = Math.min(1, THUMB / Math.max(image.width, image.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(image.width * scale));
    canvas.height = Math.max(1, Math.round(image.height * scale));
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    image.close();
    return new Promise(resolve => canvas.toBlob(thumb => resolve(thumb ?? png), "image/webp", 0.85));
}
