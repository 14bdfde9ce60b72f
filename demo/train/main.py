# SPDX-License-Identifier: Apache-2.0
"""Trains, exports and measures the demo model.

    main.py --work DIR vae MINUTES         each of the trainings, in this order
    main.py --work DIR text MINUTES
    main.py --work DIR widen MINUTES
    main.py --work DIR dit MINUTES         goes on from its last checkpoint, if there is one
    main.py --work DIR export              writes the model's files
    main.py --work DIR rates [N]           measures what was exported
"""
import argparse
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, help="folder for checkpoints and logs")
    parser.add_argument("--target", default=os.path.dirname(HERE), help="folder of the exported model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--guidance", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--size", default="128x128", help="WIDTHxHEIGHT, for rates")
    parser.add_argument("--sheet", help="PNG of all pictures measured, for rates")
    parser.add_argument("what", choices=("vae", "text", "widen", "dit", "export", "rates"))
    parser.add_argument("amount", type=float, nargs="?", default=None)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    os.makedirs(a.work, exist_ok=True)
    if a.what in ("vae", "text", "widen", "dit") and a.amount is None:
        parser.error("how many minutes?")
    if a.what == "vae":
        from train_vae import train
        train(a.work, a.amount * 60)
    elif a.what == "text":
        from train_text import train
        train(a.work, a.amount * 60)
    elif a.what == "widen":
        from train_text import widen
        widen(a.work, a.amount * 60)
    elif a.what == "dit":
        from train_dit import train
        train(a.work, a.amount * 60, processes=a.threads, evaluate=evaluate_during_training)
    elif a.what == "export":
        from export import export
        sizes = export(a.work, a.target)
        for name, size in sizes.items():
            print(f"{size:9d} {name}")
        print(f"{sum(sizes.values()):9d} in all")
    else:
        measure(a)


def evaluate_during_training(averaged, conditions, vae, n=64):
    from dit import DiT
    from rates import line, paint, rates, test_prompts
    dit = DiT()
    dit.load_state_dict(averaged)
    prompts = test_prompts(n)
    return line(rates(paint(dit, conditions, vae, prompts, range(n)), prompts)[0])


def measure(a):
    from PIL import Image
    from export import load
    from rates import line, paint, rates, sheet, test_prompts
    from train_dit import Conditions
    prompts, dit, encoder, vae = load(a.target)
    texts = test_prompts(int(a.amount or 64))
    width, height = map(int, a.size.split("x"))
    pictures = paint(dit, Conditions(prompts, encoder), vae, texts, range(len(texts)), (height, width), a.steps,
                     a.guidance)
    result, verdicts = rates(pictures, texts)
    print(f"{len(texts)} prompts, seeds 0 to {len(texts) - 1}, {a.steps} steps, guidance {a.guidance}, {a.size}")
    print(line(result))
    if a.sheet:
        Image.fromarray(sheet(pictures, marks=[v["ok"] for v in verdicts])).save(a.sheet)


if __name__ == "__main__":
    main()
