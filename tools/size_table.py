"""Lines per package and the longest files, printed by `make lint`. A file above the ceiling fails."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CEILING = 640  # lines of one source file; design: about 600
ALLOWED: dict[str, int] = {}  # longer ones, each with what it waits for
SOURCES = {
    "csrc": ("*.cpp", "*.h"),
    "src/opentrn": ("*.py",),
    "tests": ("*.py",),
    "benchmarks": ("*.py",),
    "examples": ("*.py",),
}


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    depth = {"csrc": 2, "src": 3, "tests": 2}.get(parts[0], 1)
    return "/".join(parts[: min(depth, len(parts) - 1)])


def main() -> int:
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    longest: list[tuple[int, Path]] = []
    for folder, patterns in SOURCES.items():
        for pattern in patterns:
            for path in (ROOT / folder).rglob(pattern):
                count = len(path.read_text(encoding="utf-8").splitlines())
                lines[package_of(path)] += count
                files[package_of(path)] += 1
                longest.append((count, path))
    for package in sorted(lines):
        print(f"{lines[package]:7d} lines {files[package]:4d} files  {package}")
    print(f"{sum(lines.values()):7d} lines {sum(files.values()):4d} files  in all")
    too_long = [
        (count, path)
        for count, path in sorted(longest, reverse=True)
        if count > ALLOWED.get(str(path.relative_to(ROOT)), CEILING)
    ]
    for count, path in too_long:
        print(f"too long: {count} lines (at most {CEILING}): {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
