"""A report's text, from its file; and what it is made of."""

from __future__ import annotations

import re
from pathlib import Path

from ridgeline.claims import tabling
from ridgeline.claims.document import Document, Line, opens, plain, strip
from ridgeline.errors import InputError

_CODE = {"python", "py", "rust", "bash", "sh", "shell", "c", "cpp", "c++", "cuda", "java", "js", "go", "yaml", "json"}


def load(path: Path) -> str:
    """A file's text; what is no text is refused."""
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the files to check.")
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file '{path}'; give a report to check.") from None
    except OSError as wrong:
        raise InputError(f"'{path}' cannot be read: {wrong.strerror}.") from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        try:
            return raw.decode("utf-16")
        except UnicodeDecodeError:
            raise InputError(f"'{path}' is no text; give Markdown, plain text, HTML or CSV.") from None
    if b"\0" in raw or raw[:5] == b"%PDF-":
        raise InputError(f"'{path}' is a binary file; give Markdown, plain text, HTML or CSV.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        odd = sum(byte < 9 or 13 < byte < 32 for byte in raw)
        if odd * 50 > len(raw):
            raise InputError(f"'{path}' is a binary file; give Markdown, plain text, HTML or CSV.") from None
        return raw.decode("cp1252", errors="replace")


def read(text: str, path: str = "") -> Document:
    document = Document(path)
    suffix = Path(path).suffix.lower()
    if suffix in (".csv", ".tsv"):
        tabling.separated(document, text.splitlines(), "\t" if suffix == ".tsv" else "")
        return document
    raw = [plain(line) for line in re.sub(r"<!--.*?-->", _blank, text, flags=re.DOTALL).splitlines()]
    section, heading, fence = 0, "", ""
    headings: list[str] = [""] * 7
    for number, line in enumerate(raw, 1):
        if opened := re.match(r"\s*(?:```|~~~)(.*)", line):
            word = (opened[1].split() or ["text"])[0].lower()
            fence = "" if fence else word
            document.lines.append(Line(number, "", section, heading))
            continue
        title = None if fence else re.match(r"\s*(#{1,6})\s+(.*)|\s*<h([1-6])[^>]*>(.*)", line, re.I)
        if title:
            level = len(title[1] or "") or int(title[3])
            headings[level:] = [strip(title[2] or title[4]), *[""] * (6 - level)]
            section, heading = section + 1, " · ".join(h for h in headings[2:] if h) or headings[1]
        elif not fence and re.fullmatch(r"\s*\*\*[^*]+\*\*:?\s*", line):
            section += 1
        begins = title is not None or opens(line)
        document.lines.append(Line(number, strip(line), section, heading, fence in _CODE, bool(fence), begins))
    tabling.piped(document, raw)
    tabling.spaced(document, raw)
    if re.search(r"<table", text, re.I):
        tabling.html(document, text)
    return document


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "", match[0])
