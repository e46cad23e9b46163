"""Opens a page from file:// in headless Chromium, light, dark and as paper, and prints what it showed as JSON.

    browser.py CHROMIUM PAGE FOLDER

Writes light.png, dark.png and paper.pdf into FOLDER. `requests` are the addresses that the page asked for, `console` the lines of the console,
`rectangles` and `pictures` numbers of elements, `light` and `dark` the most frequent colours of pixels.
"""
import json
import re
import struct
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

program, page, folder = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3])
folder.mkdir(exist_ok=True)
address = page.as_uri()


def browse(name, *options):
    profile, log = folder / f"profile-{name}", folder / f"net-{name}.json"
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-component-update",
               "--disable-background-networking", "--disable-sync", "--hide-scrollbars", "--window-size=1280,1600", "--enable-logging=stderr",
               f"--user-data-dir={profile}", f"--log-net-log={log}", *options, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    # The browser's own requests, such as those for updates, have no page that began them.
    asked = set()
    for line in log.read_text().splitlines():
        event = re.search(r'"initiator":"([^"]*)".*"url":"([^"]*)"', line)
        if event and event[1] != "not an origin":
            asked.add(event[2])
    return done.stdout, console, asked


def pixels(path):
    """The counts of the colours of an 8-bit PNG without interlacing."""
    data, at, header, packed = path.read_bytes(), 8, None, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        chunk = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", chunk)
        elif kind == b"IDAT":
            packed += chunk
        at += length + 12
    width, height, depth, colour, _, _, interlace = header
    assert depth == 8 and colour in (2, 6) and not interlace, header
    step = 3 if colour == 2 else 4
    raw, stride, before = zlib.decompress(packed), width * step, bytes(width * step)
    counts = Counter()
    for row in range(height):
        start = row * (stride + 1)
        kind, line = raw[start], bytearray(raw[start + 1:start + 1 + stride])
        for place in range(stride):
            left = line[place - step] if place >= step else 0
            up, corner = before[place], before[place - step] if place >= step else 0
            if kind == 1:
                line[place] = line[place] + left & 255
            elif kind == 2:
                line[place] = line[place] + up & 255
            elif kind == 3:
                line[place] = line[place] + (left + up) // 2 & 255
            elif kind == 4:
                guess = left + up - corner
                near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))
                line[place] = line[place] + near[2] & 255
        before = bytes(line)
        counts.update(before[place:place + 3].hex() for place in range(0, stride, step))
    return dict(counts.most_common(60))


dom, console, asked = browse("dom", "--dump-dom")
shots = {}
for name, preferred in [("light", "1"), ("dark", "0")]:
    _, more, found = browse(name, f"--screenshot={folder / name}.png", f"--blink-settings=preferredColorScheme={preferred}")
    console, asked = console + more, asked | found
    shots[name] = pixels(folder / f"{name}.png")
_, more, found = browse("paper", f"--print-to-pdf={folder / 'paper.pdf'}", "--no-pdf-header-footer")
console, asked = console + more, asked | found
assert (folder / "paper.pdf").read_bytes().startswith(b"%PDF")
print(json.dumps({
    "requests": sorted(asked), "console": console, "rectangles": dom.count("<rect"), "pictures": dom.count("<svg"), **shots,
}))
