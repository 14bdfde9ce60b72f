// SPDX-License-Identifier: Apache-2.0
//
// Numbers and states in words.

export function duration(seconds) {
    if (seconds < 1)
        return "less than a second";
    if (seconds < 90)
        return `${Math.round(seconds)} s`;
    const minutes = Math.round(seconds / 60);
    return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function size(bytes) {
    const units = ["bytes", "kB", "MB", "GB", "TB"];
    let n = bytes, unit = 0;
    for (; n >= 1000 && unit < units.length - 1; unit++)
        n /= 1000;
    return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

function waiting(progress, state) {
    const before = progress.position ?? Math.max(0, (state.queue_position ?? 1) - 1);
    const place = before === 0 ? "Next in the queue"
        : before === 1 ? "In the queue, 1 job before this one"
        : `In the queue, ${before} jobs before this one`;
    return progress.wait > 0 ? `${place}, starts in about ${duration(progress.wait)}` : place;
}

const STAGES = {
    encode: () => "Reading the prompt",
    denoise: p => `Step ${p.step} of ${p.steps}`,
    decode: () => "Decoding the picture",
};

function running(progress) {
    const stage = STAGES[progress.stage]?.(progress) ?? "Starting";
    const which = progress.count > 1 ? `Picture ${(progress.image ?? 0) + 1} of ${progress.count}: ` : "";
    const left = typeof progress.remaining === "number" ? `, ${duration(progress.remaining)} left` : "";
    return which + stage + left;
}

// What a job is doing, as one line.
export function doing(job) {
    if (job.away)
        return `${job.away.replace(/ Try again.*$/, "")} Asking again; the job is not lost.`;
    if (job.ending)
        return "Cancelling";
    if (!job.state)
        return "Asking for the job";
    const progress = job.state.progress ?? {};
    return job.state.status === "queued" ? waiting(progress, job.state) : running(progress);
}

// How far a job is, from 0 to 1; null while nobody knows.
export function share(job) {
    const progress = job.state?.progress;
    if (job.away || job.state?.status !== "generating" || !progress?.stage)
        return null;
    const within = {encode: 0.02, denoise: 0.02 + 0.93 * progress.step / progress.steps, decode: 0.96};
    return ((progress.image ?? 0) + (within[progress.stage] ?? 0)) / Math.max(1, progress.count ?? 1);
}

// The values under a picture, as one line.
export function summary(record) {
    const {width, height, steps, cfg, seed} = record.values;
    const parts = [`${width} × ${height}`, `${steps} steps`];
    if (cfg > 0)
        parts.push(`guidance ${cfg}`);
    parts.push(`seed ${seed}`);
    if (record.took >= 1)
        parts.push(duration(record.took));
    return parts.filter(part => !part.includes("undefined")).join(" · ");
}
