"""The Python examples of the READMEs: `python readme.py FOLDER` writes each to a file there, for type checkers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def examples() -> list[str]:
    """Returns the blocks of Python of both READMEs."""
    texts = [(REPOSITORY / path).read_text() for path in ("README.md", "bindings/python/README.md")]
    found = [re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for text in texts]
    assert all(found), "each README has an example"
    return [example for blocks in found for example in blocks]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(examples()):
        (folder / f"readme_{number}.py").write_text(example)
