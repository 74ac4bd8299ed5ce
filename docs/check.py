"""Checks that the documents are true where a machine can tell: links, rooms, Python examples."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
PATH = re.compile(r"`((?:ravnest|benchmarks|tests|examples|docs|protos)/[\w/.]*)`")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def faults(document: Path) -> list[str]:
    """What is wrong in one document."""
    text = document.read_text(encoding="utf-8")
    found = [
        f"link to {target}, which is not there"
        for target in LINK.findall(text)
        if not (document.parent / target).exists()
    ]
    found += [
        f"names {path}, which is not there"
        for path in PATH.findall(text)
        if not (ROOT / path).exists()
    ]
    for block in PYTHON.findall(text):
        try:
            ast.parse(block)
        except SyntaxError as error:
            found.append(f"a Python example does not parse: {error}")
    return found


def rooms_without_a_word() -> list[str]:
    """Packages that ARCHITECTURE.md does not mention."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = sorted(path.parent.name for path in (ROOT / "ravnest").glob("*/__init__.py"))
    return [
        f"ARCHITECTURE.md: no word of the room {room}/" for room in rooms if f"{room}/" not in text
    ]


def main() -> int:
    """Prints every fault; 1 when there is one."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]
    lines = [
        f"{path.relative_to(ROOT)}: {fault}" for path in documents for fault in faults(path)
    ] + rooms_without_a_word()
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
