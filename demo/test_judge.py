# SPDX-License-Identifier: Apache-2.0
"""The judge must accept drawn pictures with their own prompts and refuse them with any other, and refuse damaged ones.

    python3 test_judge.py [COUNT]
"""
import random
import sys
import time

import numpy as np

import world
from judge import check, judge, look

SIZES = ((128, 128), (128, 192), (192, 128), (256, 256))


def wrong_scenes(rng, scene):
    """The scene with one thing changed, in every way."""
    other = lambda options, *not_these: rng.choice([o for o in options if o not in not_these])
    for i, o in enumerate(scene.objects):
        for new in (o._replace(colour=other(world.COLOURS, o.colour, scene.background)),
                    *(o._replace(shape=s) for s in world.SHAPES if s != o.shape)):
            yield scene._replace(objects=scene.objects[:i] + (new,) + scene.objects[i + 1:])
    yield scene._replace(background=other(world.COLOURS, scene.background, *(o.colour for o in scene.objects)))
    a, b = scene.objects[0], scene.objects[-1]
    if scene.relation:
        same = a[:2] == b[:2]                           # then "left of" says what "right of" does
        for relation, (dx, dy) in world.RELATIONS.items():
            if relation != scene.relation and not (same and world.RELATIONS[scene.relation] == (-dx, -dy)):
                yield world.two(scene.background, (a.colour, a.shape), relation, (b.colour, b.shape))
        if not same:
            yield world.two(scene.background, (b.colour, b.shape), scene.relation, (a.colour, a.shape))
        yield world.one(scene.background, a.colour, a.shape)
    else:
        for size in world.SIZES:
            for place in world.PLACES:
                if (size, place) != (scene.size, scene.place):
                    yield world.one(scene.background, a.colour, a.shape, size, place)
        yield world.two(scene.background, (a.colour, a.shape), "above", (a.colour, a.shape))


def damaged(rng, image, scene):
    h, w = image.shape[:2]
    colour = np.array(world.COLOURS[rng.choice([c for c in world.COLOURS if c not in
                                               (scene.background, *(o.colour for o in scene.objects))])])
    half = image.copy()
    half[:, : w // 2] = colour
    yield "half painted over", half
    blot = image.copy()
    blot[: h // 10, : w // 10] = colour
    yield "a blot in the corner", blot
    yield "noise", np.random.default_rng(rng.randrange(1 << 30)).integers(0, 256, image.shape).astype(np.uint8)
    yield "empty", np.full_like(image, world.COLOURS[scene.background])
    o = scene.objects[0]
    spoiled = image.copy()
    inside = world.mask(o.shape, h, w, o.x, o.y, o.r) > 0.5
    inside[int(o.y * h):] = False
    spoiled[inside] = colour
    yield "object of two colours", spoiled


def main():
    count, rng = int(sys.argv[1]) if len(sys.argv) > 1 else 100, random.Random(11)
    bad, wrong, start = 0, 0, time.time()
    for n in range(count):
        scene = world.random_scene(rng)
        h, w = rng.choice(SIZES)
        prompt = world.caption(scene)
        image = (world.draw(scene, h, w) * 255 + 0.5).astype(np.uint8)
        verdict = judge(image, prompt)
        if not verdict["ok"]:
            bad += 1
            print("REFUSED", (h, w), prompt, verdict)
        seen = look(image)
        for false in wrong_scenes(rng, scene):
            wrong += 1
            if check(seen, world.caption(false))["ok"]:
                bad += 1
                print("ACCEPTED", (h, w), prompt, "as", world.caption(false))
        for what, spoiled in damaged(rng, image, scene):
            wrong += 1
            if judge(spoiled, prompt)["ok"]:
                bad += 1
                print("ACCEPTED", (h, w), prompt, "though", what)
    print(f"{count} right and {wrong} wrong pairs of picture and prompt, {bad} misjudged, {time.time() - start:.0f} s")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
