#!/usr/bin/env python3
"""Lists which rooms of src use which (`crate::ROOM`), and those that use each other in a circle."""
import re
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"
USE = re.compile(r"\bcrate::(?:\{([^}]*)\}|(\w+))")


def uses():
    found = {}
    for path in sorted(SRC.rglob("*.rs")):
        parts = path.relative_to(SRC).parts
        if "tests" in parts or parts[-1] == "tests.rs" or parts == ("main.rs",) or parts == ("lib.rs",):
            continue
        room = parts[0].removesuffix(".rs")
        text = path.read_text().split("#[cfg(test)]\nmod ")[0]
        text = re.sub(r"//.*", "", text)
        for group, one in USE.findall(text):
            names = re.findall(r"(?:^|,)\s*(\w+)", group) if group else [one]
            for name in names:
                if name != room and ((SRC / name).is_dir() or (SRC / f"{name}.rs").is_file()):
                    found.setdefault(room, {}).setdefault(name, set()).add("/".join(parts))
    return found


def circles(graph):
    """Strongly connected components of more than one room."""
    def reach(start):
        seen, left = set(), [start]
        while left:
            for room in graph.get(left.pop(), {}):
                if room not in seen:
                    seen.add(room)
                    left.append(room)
        return seen
    reached = {room: reach(room) for room in graph}
    return sorted({tuple(sorted(b for b in reached[a] if a in reached.get(b, ()))) for a in graph if a in reached[a]})


graph = uses()
for room, of in sorted(graph.items()):
    print(f"{room}: {', '.join(sorted(of))}")
for circle in circles(graph):
    print("\ncircle:", ", ".join(circle))
    for a in circle:
        for b in sorted(set(graph[a]) & set(circle)):
            print(f"  {a} -> {b}: {', '.join(sorted(graph[a][b]))}")
