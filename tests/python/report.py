"""Reads a page of tierfs report as a browser would and prints what it shows as JSON: the tiles of the treemap, the rows of its tables with the
file that they belong to, the cells of the heat maps.

Fails where elements do not nest, where the page has a script, an event handler or a link, or where it would load something.
"""
import json
import sys
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "wbr", "input", "rect"}


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tiles, self.cells, self.tables, self.owners, self.texts = [], [], [], [], [], []
        self.owner = ""
        self.row = self.cell = None

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        assert tag not in {"script", "iframe", "object", "embed", "base", "form", "img", "a", "image", "use"}, tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in {"src", "href", "srcset", "action", "xlink:href"} or value == "data:,", (tag, name, value)
            assert "url(" not in (value or ""), (tag, name, value)
        kind = (attributes.get("class") or "").split()
        if tag == "rect" and "data-tier" in attributes:
            self.tiles.append({key.removeprefix("data-"): value for key, value in attributes.items() if key.startswith("data-")}
                              | {"area": float(attributes["width"]) * float(attributes["height"])})
        elif tag == "rect" and len(kind) == 4:
            self.cells.append(kind)
        if tag == "table":
            self.tables.append([])
            self.owners.append(self.owner)
        elif tag == "summary":
            self.owner = ""
        elif tag == "tr":
            self.row = []
        elif tag in ("td", "th"):
            self.cell = ""
        if tag not in VOID or tag == "rect" and self.get_starttag_text()[-2:] != "/>":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open, self.getpos())
        self.open.pop()
        if tag in ("td", "th"):
            self.row.append(self.cell)
            self.cell = None
        elif tag == "tr":
            self.tables[-1].append(self.row)

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            assert "url(" not in data and "@import" not in data
        elif self.cell is not None:
            self.cell += data
        elif self.open and self.open[-1] == "summary":
            self.owner += data
        else:
            self.texts.append(data)


page = Page()
page.feed(open(sys.argv[1], encoding="utf-8").read())
page.close()
assert not page.open, page.open
print(json.dumps({"tiles": page.tiles, "cells": page.cells, "tables": page.tables, "owners": page.owners, "texts": page.texts}))
