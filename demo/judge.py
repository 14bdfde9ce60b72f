#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Says by measurement whether a picture shows what a prompt of the demo world asks for.

    judge.py PICTURE.png PROMPT        prints the verdict as JSON; exit 0 right, 1 wrong, 2 usage

    from judge import judge
    verdict = judge(array, prompt)     array: uint8 [height, width, 3]

The verdict: `ok`, and its parts `background`, `count`, `colour`, `shape`, `place`, `size` (each True only when
right for all objects), `objects` (the same for each object asked for, or None where there is none) and what was
measured. Needs NumPy; Pillow for the command.
"""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import world  # noqa: E402

COLOUR_DISTANCE = 60        # RGB; the nearest two colours of the world are 110 apart
COLOUR_SHARE = 0.85         # so much of an object's inside, or of the background, must have its colour
BORDER_SHARE = 0.7          # so much of the picture's border must be background
SPECK = 0.006               # of the picture; anything smaller is no object
SPECKS = 0.02               # and all that smaller stuff together may be no more than this
OVERLAP = 0.82              # with the drawn shape, intersection over union
LEAD = 0.02                 # of the right shape's overlap over any other's
PLACE = 0.09                # from where it should be, in widths and heights
PAIR_SIZE = 1.25            # how far off a factor the radius of one of two objects may be

_NAMES = list(world.COLOURS)
_PALETTE = np.array([world.COLOURS[n] for n in _NAMES], float)


def nearest_colours(pixels):
    """For pixels [..., 3]: index of the nearest named colour, in any shade that light may give it, and how near."""
    d = []
    for c in _PALETTE:
        shade = np.clip((pixels @ c) / (c @ c), 0.8, 1.06)
        d.append(np.linalg.norm(pixels - shade[..., None] * c, axis=-1))
    d = np.stack(d, -1)
    return d.argmin(-1), d.min(-1)


def grow(mask, by):
    """Dilation (by > 0) or erosion (by < 0) with a plus-shaped element; outside the picture counts as empty."""
    for _ in range(abs(by)):
        p = np.pad(mask if by > 0 else ~mask, 1)
        p = p[1:-1, 1:-1] | p[:-2, 1:-1] | p[2:, 1:-1] | p[1:-1, :-2] | p[1:-1, 2:]
        mask = p if by > 0 else ~p
    return mask


def components(mask):
    """Masks of the 4-connected parts, the largest first."""
    left, parts = mask.copy(), []
    while left.any():
        part = np.zeros_like(mask)
        part[np.unravel_index(left.argmax(), mask.shape)] = True
        while True:                                     # spread along columns and rows until a wall
            more = part
            more = spread(more, left)
            more = spread(more[::-1], left[::-1])[::-1]
            more = spread(more.T, left.T).T
            more = spread(more.T[::-1], left.T[::-1])[::-1].T
            if more.sum() == part.sum():
                break
            part = more
        parts.append(part)
        left &= ~part
    return sorted(parts, key=lambda p: -p.sum())


def spread(seed, mask):
    """Seeds run down their columns as long as the mask lasts."""
    n = np.arange(len(mask))[:, None]
    last_seed = np.maximum.accumulate(np.where(seed, n, -1), 0)
    last_wall = np.maximum.accumulate(np.where(mask, -1, n), 0)
    return mask & (last_seed > last_wall)


def background_of(image):
    """Its colour's name (or None), the share of the border that has it, and its shade at every pixel."""
    h, w = image.shape[:2]
    border = np.ones((h, w), bool)
    border[3:-3, 3:-3] = False
    which, how_near = nearest_colours(image)
    votes = np.bincount(which[border & (how_near < COLOUR_DISTANCE)], minlength=len(_NAMES))
    best = int(votes.argmax())
    if votes[best] == 0:
        return None, 0.0, None
    mine = (which == best) & (how_near < COLOUR_DISTANCE)
    ys = np.arange(h) / h                               # light falls from above: a line in y for each channel
    rows = np.nonzero(mine)[0]
    shade = np.stack([np.polyval(np.polyfit(ys[rows], image[mine][:, c], 1), ys) for c in range(3)], -1)
    return _NAMES[best], votes[best] / border.sum(), np.broadcast_to(shade[:, None], image.shape)


def overlap(mask, shape):
    """The best intersection over union with this shape, of the mask's area and about at its place; its r, x, y."""
    h, w = mask.shape
    m, (ys, xs) = min(h, w), np.nonzero(mask)
    area, cy, cx = UNIT[shape]
    r = np.sqrt(len(ys) / area)                         # in pixels, as all of these
    x, y = xs.mean() + 0.5 - cx * r, ys.mean() + 0.5 - cy * r
    top, left = max(ys.min() - 8, 0), max(xs.min() - 8, 0)
    part = mask[top:ys.max() + 9, left:xs.max() + 9]
    gy, gx = np.mgrid[:part.shape[0], :part.shape[1]] + 0.5
    best = 0.0
    for scale in (0.96, 1.0, 1.04):
        for dx in (-1.0, 0.0, 1.0):
            for dy in (-1.0, 0.0, 1.0):
                q = r * scale
                other = world.distance(shape, (gx + left - x - dx) / q, (gy + top - y - dy) / q) < 0
                both = (part & other).sum()
                best = max(best, both / (len(ys) + other.sum() - both))
    return best, r / m, x / w, y / h


def _unit(shape, n=100):
    """Area and centre of mass (y, x) of a shape of radius 1."""
    y, x = np.mgrid[-1.5 * n:1.5 * n, -1.5 * n:1.5 * n] / n
    inside = world.distance(shape, x, y) < 0
    return inside.sum() / n ** 2, y[inside].mean(), x[inside].mean()


UNIT = {s: _unit(s) for s in world.SHAPES}


def measure(image, part, shade):
    """An object's colour and how much of it has that colour, overlap with every shape, radius and place."""
    inside = grow(part, -2) if grow(part, -2).sum() > 30 else part
    which, how_near = nearest_colours(image[inside])
    votes = np.bincount(which[how_near < COLOUR_DISTANCE], minlength=len(_NAMES))
    colour = np.median(image[inside], 0)
    axis = colour - shade                               # the outline is where object and background weigh alike
    alpha = ((image - shade) * axis).sum(-1) / np.maximum((axis * axis).sum(-1), 1)
    outline = components((alpha > 0.5) & grow(part, 2))
    outline = outline[0] if outline else part
    fits = {s: overlap(outline, s) for s in world.SHAPES}
    shape = max(fits, key=lambda s: fits[s][0])
    return {"colour": _NAMES[int(votes.argmax())] if votes.any() else None,
            "colour share": float(votes.max() / max(inside.sum(), 1)), "rgb": colour.round().tolist(), "shape": shape,
            "overlaps": {s: round(float(f[0]), 3) for s, f in fits.items()},
            "fits": {s: {"r": float(f[1]), "x": float(f[2]), "y": float(f[3])} for s, f in fits.items()}}


def compare(asked, found, scene):
    """Which of an object's properties are as asked."""
    at = found["fits"][asked.shape]
    others = [v for s, v in found["overlaps"].items() if s != asked.shape]
    own = found["overlaps"][asked.shape]
    right = {"colour": bool(found["colour"] == asked.colour and found["colour share"] >= COLOUR_SHARE),
             "shape": bool(own >= OVERLAP and own >= max(others) + LEAD)}
    far = lambda x, y: max(abs(at["x"] - x), abs(at["y"] - y))
    if scene.relation:
        right["place"] = far(asked.x, asked.y) <= PLACE
        right["size"] = 1 / PAIR_SIZE <= at["r"] / world.PAIR_RADIUS <= PAIR_SIZE
    else:
        o = world.OFFSET[scene.size]
        distances = {p: far(0.5 + dx * o, 0.5 + dy * o) for p, (dx, dy) in world.PLACES.items()}
        right["place"] = distances[scene.place] <= PLACE and min(distances, key=distances.get) == scene.place
        nearest = min(world.SIZES, key=lambda s: abs(np.log(at["r"] / world.SIZES[s])))
        right["size"] = nearest == scene.size
    return right


PARTS = ("colour", "shape", "place", "size")


def look(image):
    """What is in a picture, whatever was asked for."""
    image = np.asarray(image)[..., :3].astype(float)
    name, border, shade = background_of(image)
    if name is None:
        return {"background": None, "border": 0.0, "background share": 0.0, "specks": 0.0, "objects": []}
    strange = np.linalg.norm(image - shade, axis=-1) > 50
    parts = components(strange)
    which, how_near = nearest_colours(image[~grow(strange, 2)])
    mine = (which == _NAMES.index(name)) & (how_near < COLOUR_DISTANCE)
    return {"background": name, "border": float(border), "background share": float(mine.mean()) if mine.size else 0.0,
            "specks": float(sum(p.mean() for p in parts if p.mean() < SPECK)),
            "objects": [measure(image, p, shade) for p in parts if p.mean() >= SPECK][:8]}


def check(seen, prompt):
    """The verdict on what `look` saw."""
    scene = world.parse(prompt)
    found, n = seen["objects"], len(scene.objects)
    orders = [found[:2], found[1::-1]] if n == 2 else [found[:1]]
    best = None                                         # which of the found is which of the asked: the kindest reading
    for order in orders:
        rights = [compare(a, order[i], scene) if i < len(order) else None for i, a in enumerate(scene.objects)]
        score = sum(sum(r.values()) for r in rights if r)
        if best is None or score > best[0]:
            best = score, rights
    verdict = {"background": seen["background"] == scene.background and seen["background share"] >= COLOUR_SHARE
               and seen["border"] >= BORDER_SHARE,
               "count": len(found) == n and seen["specks"] <= SPECKS}
    for p in PARTS:
        verdict[p] = all(r is not None and r[p] for r in best[1])
    return {"ok": all(verdict.values()), **verdict, "objects": best[1], "measured": seen}


def judge(image, prompt):
    return check(look(image), prompt)


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    from PIL import Image
    try:
        verdict = judge(np.asarray(Image.open(sys.argv[1]).convert("RGB")), sys.argv[2])
    except (OSError, ValueError) as error:
        print(f"judge.py: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(verdict, indent=1))
    sys.exit(0 if verdict["ok"] else 1)


if __name__ == "__main__":
    main()
