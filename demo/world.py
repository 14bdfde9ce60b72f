# SPDX-License-Identifier: Apache-2.0
"""The little world of the demo model: what can be in a picture, how it is said and how it is drawn.

Shared by the trainer (train/) and by the judge (judge.py), so it needs NumPy only.

A scene has a background colour and one or two objects. Lengths are fractions: x of the width, y of the
height, radius of the smaller of the two. Captions are made by `caption` and read back by `parse`.
"""
import math
import re
from collections import namedtuple

import numpy as np

COLOURS = {
    "red": (214, 48, 49),
    "green": (46, 160, 67),
    "blue": (40, 98, 214),
    "yellow": (250, 204, 21),
    "purple": (150, 55, 190),
    "cyan": (40, 200, 210),
    "white": (245, 245, 245),
    "black": (25, 25, 28),
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")
SIZES = {"small": 0.17, "": 0.25, "large": 0.36}        # radius
PLACES = {                                             # direction from the centre
    "": (0, 0),
    "on the left": (-1, 0),
    "on the right": (1, 0),
    "at the top": (0, -1),
    "at the bottom": (0, 1),
}
OFFSET = {"small": 0.28, "": 0.22, "large": 0.12}       # how far a placed object lies from the centre
RELATIONS = {"above": (0, -1), "below": (0, 1), "left of": (-1, 0), "right of": (1, 0)}
PAIR_RADIUS, PAIR_OFFSET = 0.19, 0.24
JITTER, JITTER_RADIUS = 0.01, 0.04

Object = namedtuple("Object", "colour shape x y r")
# one object: size and place; two: relation of the first to the second (else None)
Scene = namedtuple("Scene", "background objects size place relation")


def one(background, colour, shape, size="", place=""):
    dx, dy = PLACES[place]
    o = OFFSET[size]
    return Scene(background, (Object(colour, shape, 0.5 + dx * o, 0.5 + dy * o, SIZES[size]),), size, place, None)


def two(background, first, relation, second):
    dx, dy = (d * PAIR_OFFSET for d in RELATIONS[relation])
    return Scene(background, (Object(*first, 0.5 + dx, 0.5 + dy, PAIR_RADIUS),
                              Object(*second, 0.5 - dx, 0.5 - dy, PAIR_RADIUS)), None, None, relation)


def random_scene(rng, pair_share=0.5):
    """A scene as prompts describe it, with its objects moved and scaled a little."""
    background = rng.choice(list(COLOURS))
    others = [c for c in COLOURS if c != background]
    if rng.random() < pair_share:
        scene = two(background, (rng.choice(others), rng.choice(SHAPES)), rng.choice(list(RELATIONS)),
                    (rng.choice(others), rng.choice(SHAPES)))
    else:
        scene = one(background, rng.choice(others), rng.choice(SHAPES), rng.choice(list(SIZES)),
                    rng.choice(list(PLACES)))
    return scene._replace(objects=tuple(jittered(rng, o) for o in scene.objects))


def jittered(rng, o):
    j = lambda: rng.uniform(-JITTER, JITTER)
    return o._replace(x=o.x + j(), y=o.y + j(), r=o.r * (1 + rng.uniform(-JITTER_RADIUS, JITTER_RADIUS)))


def caption(scene):
    if scene.relation:
        a, b = scene.objects
        what = f"a {a.colour} {a.shape} {scene.relation} a {b.colour} {b.shape}"
    else:
        o = scene.objects[0]
        what = " ".join(w for w in ("a", scene.size, o.colour, o.shape, scene.place) if w)
    return f"{what} on a {scene.background} background"


def say(scene, rng):
    """One of the other ways to say the same; one in eight leaves the background open. Also: whether it tells it."""
    text = caption(scene).removesuffix(f" on a {scene.background} background")
    ways = [f" on a {scene.background} background"] * 3 + [f" with a {scene.background} background",
                                                          f", {scene.background} background",
                                                          f" on {scene.background}"]
    told = rng.random() >= 0.125
    if told:
        text += rng.choice(ways)
    if rng.random() < 0.5:
        text = text.replace("large", "big")
        text = text.replace(" left of", " to the left of").replace(" right of", " to the right of")
    if rng.random() < 0.3:
        text = text.removeprefix("a ")
    if rng.random() < 0.5:
        text = text[0].upper() + text[1:]
    return text + ("." if rng.random() < 0.3 else ""), told


_c, _s = "|".join(COLOURS), "|".join(SHAPES)
_p = "|".join(p for p in PLACES if p)
_ONE = re.compile(rf"a (?:(small|large) )?({_c}) ({_s})(?: ({_p}))? on a ({_c}) background")
_TWO = re.compile(rf"a ({_c}) ({_s}) ({'|'.join(RELATIONS)}) a ({_c}) ({_s}) on a ({_c}) background")


def parse(prompt):
    """The scene that a prompt describes; ValueError when it says anything else, or leaves the background open."""
    text = " ".join(prompt.lower().replace(",", " ").split()).rstrip(".")
    for said, meant in ((r"\ban\b", "a"), (r"\bbig\b", "large"), (r"\bto the (left|right) of\b", r"\1 of")):
        text = re.sub(said, meant, text)
    text = re.sub(rf" (?:(?:on|with) )?(?:a )?({_c}) background$| on ({_c})$", r" on a \1\2 background", text)
    text = text if text.startswith("a ") else "a " + text
    if m := _ONE.fullmatch(text):
        size, colour, shape, place, background = m.groups()
        return one(background, colour, shape, size or "", place or "")
    if m := _TWO.fullmatch(text):
        c1, s1, relation, c2, s2, background = m.groups()
        return two(background, (c1, s1), relation, (c2, s2))
    raise ValueError(f"not a prompt of the demo world: {prompt!r}")


def distance(shape, x, y):
    """Signed distance (roughly) to the outline, in units of the radius, negative inside; y points down."""
    if shape == "circle":
        return np.hypot(x, y) - 0.95
    if shape == "square":
        return np.maximum(abs(x), abs(y)) - 0.84
    if shape == "triangle":
        return np.maximum(abs(x) * 0.88 - y * 0.47 - 0.45, y - 0.75)
    if shape == "cross":
        ax, ay = abs(x), abs(y)
        return np.minimum(np.maximum(ax - 0.95, ay - 0.33), np.maximum(ay - 0.95, ax - 0.33))
    if shape == "star":
        k = 2 * math.pi / 5
        a = abs((np.arctan2(x, -y) + k / 2) % k - k / 2)
        r = np.hypot(x, y)
        ex, ey = 0.45 * math.cos(k / 2) - 1.05, 0.45 * math.sin(k / 2)
        n = math.hypot(ex, ey)
        return (r * np.cos(a) - 1.05) * (ey / n) + r * np.sin(a) * (-ex / n)
    if shape == "heart":
        u, v, half = abs(x), 0.08 - y, 0.56            # a square on its corner, a half disc on each upper side
        u, v = (u + v) / math.sqrt(2), (v - u) / math.sqrt(2)
        return np.minimum(np.maximum(abs(u), abs(v)), np.hypot(u - half, v)) - half
    raise KeyError(shape)


def mask(shape, height, width, x=0.5, y=0.5, r=0.25):
    """How much of each pixel the object covers, 0 to 1."""
    ys, xs, m = np.arange(height)[:, None] + 0.5, np.arange(width)[None] + 0.5, min(height, width)
    d = distance(shape, (xs - x * width) / (r * m), (ys - y * height) / (r * m)) * (r * m)
    return 1 / (1 + np.exp(np.clip(2.2 * d, -60, 60)))


def draw(scene, height, width):
    """The picture, float32 [height, width, 3], 0 to 1: soft light from above on everything."""
    m = min(height, width)
    ys, xs = np.arange(height)[:, None, None] + 0.5, np.arange(width)[None, :, None] + 0.5
    colour = lambda c: np.array(COLOURS[c], np.float32) / 255
    image = colour(scene.background) * (1.04 - 0.12 * ys / height) * np.ones((1, width, 1))
    for o in scene.objects:
        a = mask(o.shape, height, width, o.x, o.y, o.r)[..., None]
        u, v = (xs - o.x * width) / (o.r * m), (ys - o.y * height) / (o.r * m)
        shade = 1.05 - 0.18 * np.clip((v + 1) / 2, 0, 1) - 0.05 * np.clip(u, -1, 1)
        image = image * (1 - a) + colour(o.colour) * shade * a
    return np.clip(image, 0, 1).astype(np.float32)
