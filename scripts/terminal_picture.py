"""Text with the escape sequences of a terminal, as an SVG picture.

    terminal_picture.py TEXT > PICTURE
"""
import html
import re
import sys
import unicodedata

COLOURS = ["#20252b", "#d9655a", "#69b36b", "#d6b04c", "#5b93d6", "#b07cc6", "#4fb3c0", "#d5d9de",
           "#7d8791", "#ee8378", "#8fd08f", "#ecca6d", "#85b3ec", "#cfa0e0", "#79cfda", "#ffffff"]
PAPER, INK = "#16191d", "#d5d9de"
WIDTH, HEIGHT = 8.4, 18


def runs(line, state):
    """Pieces of a line with the style that holds for them."""
    for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not piece.startswith("\x1b"):
            if piece:
                yield piece, dict(state)
            continue
        codes = [int(code or 0) for code in piece[2:-1].split(";")]
        while codes:
            code = codes.pop(0)
            if code == 0:
                state.clear()
            elif code in (1, 2, 7):
                state[code] = True
            elif code in (22, 27):
                for key in (1, 2) if code == 22 else (7,):
                    state.pop(key, None)
            elif code == 39:
                state.pop("ink", None)
            elif 30 <= code <= 37 or 90 <= code <= 97:
                state["ink"] = COLOURS[code - 30 if code < 40 else code - 82]
            elif code == 38 and codes[:1] == [5]:
                state["ink"] = COLOURS[codes[1] % 16]
                del codes[:2]


lines = open(sys.argv[1], encoding="utf-8").read().rstrip("\n").split("\n")
plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
columns = max(len(line) for line in plain)
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * WIDTH + 20:.0f} {len(lines) * HEIGHT + 20}" '
      'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">'
      f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>')
state = {}
for row, line in enumerate(lines):
    at, y = 0, 10 + (row + 1) * HEIGHT - 5
    for text, style in runs(line, state):
        x, width = 10 + at * WIDTH, len(text) * WIDTH
        ink, paper = style.get("ink", INK), None
        if 7 in style:
            ink, paper = PAPER, ink
        if paper:
            print(f'<rect x="{x:.1f}" y="{y - 13}" width="{width:.1f}" height="{HEIGHT}" fill="{paper}"/>')
        if text.strip():
            more = ' font-weight="bold"' if 1 in style else ""
            more += ' opacity="0.6"' if 2 in style and 7 not in style else ""
            # Spaces in a row would be joined.
            shown = html.escape("".join(c for c in text if unicodedata.category(c) != "Cc").replace(" ", "\u00a0"))
            print(f'<text x="{x:.1f}" y="{y}" fill="{ink}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"{more}>{shown}</text>')
        at += len(text)
print("</svg>")
