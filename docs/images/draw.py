#!/usr/bin/env python3
"""Draws ledger.svg, layers.svg, cache.svg and bandwidth.svg beside this file, from what the repository holds.

  docs/images/draw.py            writes them
  docs/images/draw.py --check    compares them, byte for byte; exit code 1 if one would be another

ledger, layers   the released shape, below, and docs/MEASUREMENTS.md#2026-11-30-release-shape-in-8-gb
cache            docs/data/demo-cache.json, which k3-trace computes from docs/data/demo-trace (tests/meta/pictures.py)
bandwidth        docs/images/kernels.svg, as k3-bench --chart wrote it"""
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# name: (light, dark). The paper is part of the picture, so that it is readable on any page.
COLOURS = {"paper": ("#ffffff", "#0d1117"), "ink": ("#1f2328", "#e6edf3"), "soft": ("#59636e", "#9198a1"),
           "grid": ("#d1d9e0", "#3d444d"), "blue": ("#2f6fb5", "#5b9de0"), "orange": ("#d9822b", "#e69a4c"),
           "green": ("#2c8f3c", "#4fb760"), "grey": ("#8b949e", "#7d8590")}


class Picture:
    """A few shapes; colours are classes, so that one rule turns them for a dark page."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title, self.body = width, height, title, []

    def box(self, x, y, width, height, colour):
        if width <= 0:
            return
        self.body.append(f'<rect class="{colour}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>')

    def line(self, points, colour, width=1.0, dashed=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 3"' if dashed else ""
        self.body.append(f'<polyline class="l-{colour}" stroke-width="{width:g}"{dash} points="{path}"/>')

    def dot(self, x, y, colour, hollow=False):
        shape = f'class="l-{colour}" stroke-width="1.5"' if hollow else f'class="{colour}"'
        self.body.append(f'<circle {shape} cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')

    def text(self, x, y, words, colour="ink", size=12, anchor="start", bold=False):
        words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        weight = ' font-weight="bold"' if bold else ""
        self.body.append(f'<text class="{colour}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
                         f'{weight}>{words}</text>')

    def legend(self, x, y, entries, step):
        for i, (colour, words) in enumerate(entries):
            self.box(x + i * step, y - 9, 10, 10, colour)
            self.text(x + i * step + 15, y, words)

    def finish(self):
        used = [name for name in COLOURS if any(f'"{name}"' in part or f'"l-{name}"' in part for part in self.body)]
        rules = ["".join(f".{name}{{fill:{COLOURS[name][i]}}}.l-{name}{{stroke:{COLOURS[name][i]};fill:none}}"
                         for name in ["paper", *used]) for i in (0, 1)]
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
                f'viewBox="0 0 {self.width} {self.height}" font-family="sans-serif" role="img">\n'
                f"<title>{self.title}</title>\n<style>{rules[0]}\n"
                f"@media (prefers-color-scheme:dark){{{rules[1]}}}</style>\n"
                '<rect class="paper" width="100%" height="100%"/>\n' + "\n".join(self.body) + "\n</svg>\n")


# ---------------------------------------------------------------------------------------------------------------------
# The release; checked against its totals of parameters and bytes below.
E, VOCAB, LAYERS, HEADS, DIM = 7168, 163840, 93, 96, 128
MLA_LAYERS = {*range(4, 93, 4), 93}  # from 1 on, as config.json counts
DENSE_LAYERS, BLOCK, EXPERTS, TOP_K = 1, 12, 896, 16
EXPERT_WEIGHTS = 3 * 3072 * 3584
VISION_BYTES = 802428928 + 92289024


def trunk():
    """(bf16 values, f32 values) of what every token passes through, embedding and lm_head included."""
    width = HEADS * DIM
    bf16 = f32 = 0
    for layer in range(1, LAYERS + 1):
        bf16 += 6 * E
        if layer in MLA_LAYERS:
            bf16 += 1536 * E + 1536 + 18432 * 1536 + 576 * E + 512 + 24576 * 512 + 2 * width * E
        else:
            bf16 += 5 * width * E + 128 * E + width * 128 + HEADS * E
            f32 += 3 * width * 4 + 128 + width + 128
        if layer <= DENSE_LAYERS:
            bf16 += 3 * 33792 * E
        else:
            bf16 += EXPERTS * E + 2 * 3584 * E + 3584 + 3 * 6144 * E
            f32 += EXPERTS
    return bf16 + 2 * VOCAB * E + 3 * E, f32


def ledger():
    bf16, f32 = trunk()
    routed = (LAYERS - DENSE_LAYERS) * EXPERTS * EXPERT_WEIGHTS
    assert routed + bf16 + f32 + VISION_BYTES // 2 == 2779931837184, "parameters of the release"
    assert routed * 17 // 32 + 2 * bf16 + 4 * f32 + VISION_BYTES == 1560860324864, "bytes of the release"
    active = 2 * bf16 + 4 * f32
    bars = [("every weight in bf16", "2,779,931,837,184 parameters of two bytes", 2 * routed, 2 * (bf16 + f32)),
            ("as released", "routed experts in MXFP4: 17 bytes for 32 weights", routed * 17 // 32, active),
            ("its trunk", "what every token passes through, besides 16 of 896 experts a layer", 0, active),
            ("what k3 holds", "with --memory 8G: 7.899 GB at its peak; the rest is read as needed", 0, 0)]
    picture = Picture(760, 330, "From 5,560 GB to 8 GB")
    picture.text(20, 28, "From 5,560 GB to 8 GB", size=16, bold=True)
    picture.legend(500, 28, [("blue", "routed experts"), ("orange", "trunk")], 130)
    scale = 720 / sum(bars[0][2:])
    for i, (name, words, experts, other) in enumerate(bars):
        y = 58 + 68 * i
        vision = VISION_BYTES if i < 2 else 0
        total = experts + other + vision if i < 3 else 8e9
        picture.text(20, y, f"{total / 1e9:,.{0 if total > 1e12 or i == 3 else 1}f} GB", bold=True, size=14)
        picture.text(104, y, name, size=14)
        picture.text(260, y, words, "soft")
        if i == 3:
            picture.box(20, y + 8, total * scale, 26, "green")
            continue
        picture.box(20, y + 8, experts * scale, 26, "blue")
        picture.box(20 + experts * scale, y + 8, (other + vision) * scale, 26, "orange")
    picture.text(20, 318, "Bars are to scale. GB are 10^9 bytes; images (0.9 GB) are drawn with the trunk.", "soft", 11)
    return picture.finish()


def layers():
    picture = Picture(760, 432, "The 93 layers of Kimi K3")
    picture.text(20, 28, "The 93 layers of Kimi K3", size=16, bold=True)
    left, top, width, height = 84, 84, 54, 28
    mla = len(MLA_LAYERS)
    picture.legend(20, 54, [("blue", f"{LAYERS - mla} KDA: a state of fixed size"),
                            ("orange", f"{mla} MLA: a latent cache that grows"),
                            ("grey", f"dense MLP; others: {TOP_K} of {EXPERTS} experts")], 235)
    for first in range(0, LAYERS, BLOCK):
        y = top + first // BLOCK * (height + 10)
        picture.text(left - 12, y + 18, f"block {first // BLOCK + 1}", "soft", 12, "end")
        for layer in range(first, min(first + BLOCK, LAYERS)):
            x = left + (layer - first) * width
            picture.box(x, y, width - 4, height, "orange" if layer + 1 in MLA_LAYERS else "blue")
            if layer < DENSE_LAYERS:
                picture.box(x, y + height - 6, width - 4, 6, "grey")
            picture.text(x + (width - 4) / 2, y + 18, str(layer), "paper", 12, "middle")
    y = top + (LAYERS + BLOCK - 1) // BLOCK * (height + 10)
    picture.text(20, y + 14, "Attention residual: at the first layer of a block the sum so far is kept, and a new one "
                 "begins. Every attention", "soft")
    picture.text(20, y + 30, "and every MLP reads a mix of the kept sums and the running one; so do the logits.",
                 "soft")
    return picture.finish()


# ---------------------------------------------------------------------------------------------------------------------


def cache():
    with open(os.path.join(HERE, "../data/demo-cache.json"), encoding="utf-8") as file:
        data = json.load(file)
    rows = [row for row in data["rows"] if row["mode"] == "decode"]
    every = max(row["slots"] for row in rows if row["policy"] != "compulsory")
    tokens = data["decode"]["tokens"]
    picture = Picture(760, 400, "Expert cache: hit rate by capacity")
    picture.text(20, 28, "Expert cache: hit rate by capacity", size=16, bold=True)
    picture.text(20, 48, f"The demo model, {tokens} tokens after a prompt of {data['prefill']['tokens']}: "
                 f"{data['decode']['requests']:,} requests, {data['distinct_experts']} of {every} experts", "soft")
    left, top, width, height = 70, 74, 520, 270

    def at(slots, rate):
        return left + slots / every * width, top + (1 - rate) * height

    for percent in range(0, 101, 20):
        x, y = at(every * percent / 100, percent / 100)
        picture.line([(left, y), (left + width, y)], "grid")
        picture.text(left - 8, y + 4, f"{percent} %", "soft", 11, "end")
        picture.text(x, top + height + 18, f"{percent} %", "soft", 11, "middle")
    picture.text(left + width / 2, top + height + 38, "of all experts in memory", "soft", 12, "middle")
    names = [("belady", "grey", "Belady's bound"), ("s3fifo", "green", "S3-FIFO"),
             ("lfru", "blue", "LFRU, the default"), ("lru", "orange", "LRU")]
    for i, (policy, colour, words) in enumerate(names):
        points = sorted((row["slots"], row["hit_rate"]) for row in rows if row["policy"] == policy)
        picture.line([at(*point) for point in points], colour, 2.5, policy == "belady")
        y = top + 120 + 22 * i
        picture.line([(left + width + 16, y - 4), (left + width + 40, y - 4)], colour, 2.5, policy == "belady")
        picture.text(left + width + 46, y, words, size=11)
    return picture.finish()


def bandwidth():
    with open(os.path.join(HERE, "kernels.svg"), encoding="utf-8") as file:
        chart = file.read()
    machine = re.search(r">k3-bench: ([^<]*), one thread, medians<", chart).group(1)
    panels = re.split(r'(?=<text x="150\.0"[^>]*>(?:bf16|mxfp4) )', chart)[1:]
    height = 60 + sum(46 + 22 * len(bars_of(panel)) for panel in panels)
    picture = Picture(760, height, "Weights read by one token's product")
    picture.text(20, 28, "Weights read by one token's product, as a share of the read bandwidth", size=16, bold=True)
    picture.text(20, 48, f"{machine}, one thread; 100 % is the largest bandwidth that this run measured", "soft")
    y, left, width = 84, 110, 560
    for panel in panels:
        title = re.search(r">((?:bf16|mxfp4) \w+), one token", panel).group(1)
        picture.text(20, y, title, bold=True)
        bars = bars_of(panel)
        for x in range(0, 101, 20):
            at = left + x / 100 * width
            picture.line([(at, y + 8), (at, y + 8 + 22 * len(bars))], "grid")
        for name, share in bars:
            y += 22
            picture.text(left - 8, y + 4, name, "ink", 12, "end")
            picture.box(left, y - 8, share * width, 15, "grey" if name.startswith("seed") else "blue")
            picture.text(left + share * width + 5, y + 4, f"{100 * share:.0f} %", "soft", 11)
        y += 46
    return picture.finish()


def bars_of(panel):
    """[(candidate, share of the read limit)] of one panel of bars; peers read another format and are left out."""
    limit = float(re.search(r'<line x1="([\d.]+)"[^>]*/>\n<text[^>]*>read limit', panel).group(1)) - 150
    found = re.findall(r'text-anchor="end" font-size="12">([^<]+)</text>\n<rect [^>]*?width="([\d.]+)"', panel)
    return [(name, float(width) / limit) for name, width in found if not name.startswith(("openblas", "eigen"))]


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    passed = failed = 0
    for draw in (ledger, layers, cache, bandwidth):
        name, text = draw.__name__ + ".svg", draw()
        path = os.path.join(HERE, name)
        if not sys.argv[1:]:
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            continue
        try:
            with open(path, encoding="utf-8", newline="") as file:
                same = file.read() == text
        except OSError:
            same = False
        passed, failed = passed + same, failed + (not same)
        print(f"ok       {name}" if same else f"FAILED   {name} is not what would be drawn: run docs/images/draw.py")
    if sys.argv[1:]:
        print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
