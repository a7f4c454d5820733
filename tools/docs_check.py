"""Links of a built site: every internal one must arrive, nothing may be loaded from the network."""
import re
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}
CSS_LOAD = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^"')\s]+)""")


class Document(HTMLParser):
    "The ids and the references of an HTML page."
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.refs: set[tuple[str, str, str]] = set()
        self.text = path.read_text(errors="replace")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value: self.ids.add(value)
            elif name in ("href", "src", "data") and value is not None: self.refs.add((tag, name, value))

    @cached_property
    def loads(self) -> list[str]:
        "Addresses that a browser fetches from elsewhere to show the page."
        away = ("http:", "https:", "//")
        tags = [url for tag, name, url in self.refs if (tag, name) in LOADS and url.startswith(away)]
        return tags + CSS_LOAD.findall(self.text)


class Site:
    "The pages of a folder, each read once."
    def __init__(self, folder: Path) -> None: self.folder, self.documents = folder.resolve(), {}

    def document(self, path: Path) -> Document:
        if path not in self.documents: self.documents[path] = Document(path)
        return self.documents[path]

    def arrives(self, page: Path, url: str) -> bool:
        "Does this reference of a page lead to a file of the site and, with a fragment, to a place in it?"
        parts = urlsplit(url)
        start = self.folder if parts.path.startswith("/") else page.parent
        target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else page
        if target.is_dir(): target /= "index.html"
        if not target.is_file() or not target.is_relative_to(self.folder): return False
        fragment = unquote(parts.fragment)
        return not fragment or target.suffix != ".html" or fragment in self.document(target).ids


def problems(folder: Path) -> list[str]:
    "What is wrong with the links of the site in `folder`, a line each."
    site, found = Site(folder), []
    for page in sorted(site.folder.rglob("*.html")):
        document, name = site.document(page), page.relative_to(site.folder)
        found += [f"{name} loads {url}" for url in document.loads]
        internal = sorted(url for _, _, url in document.refs if not urlsplit(url).scheme and not url.startswith("//"))
        found += [f"{name} links to {url}, which does not exist" for url in internal if not site.arrives(page, url)]
    for sheet in sorted(site.folder.rglob("*.css")):
        found += [f"{sheet.relative_to(site.folder)} loads {url}" for url in CSS_LOAD.findall(sheet.read_text())]
    return found
