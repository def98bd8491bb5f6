#!/usr/bin/env python3
"""Finds circles among the rooms of src, and among the modules inside each: fails where there are any.

    scripts/rooms.py           what uses what in a circle, and in which files
    scripts/rooms.py --uses    also which rooms each room uses

A module may use the one that holds it, and that one its children; siblings that use each other are a
circle. Modules of a network hold each other by nature: a mixture of experts is a module and holds some.
"""
import re
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"
ALLOWED = {("model", "cpu"): {"module", "moe"}, ("model", "graph"): {"module", "moe"}}
USE = re.compile(r"\buse\s+([^;]+);")
INLINE = re.compile(r"\b((?:crate|super)(?:::\w+)+)")


def modules():
    """Module path (as a tuple of names) -> file, without tests."""
    found = {}
    for path in sorted(SRC.rglob("*.rs")):
        parts = path.relative_to(SRC).with_suffix("").parts
        if "tests" in parts or parts in (("main",), ("lib",)):
            continue
        found[parts[:-1] if parts[-1] == "mod" else parts] = path
    return found


def paths(tree):
    """The single paths of a `use` tree."""
    items, depth, item = [], 0, ""
    for char in tree:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            items, item = items + [item], ""
        else:
            item += char
    for item in filter(None, (item.strip() for item in items + [item])):
        group = re.fullmatch(r"(.*?)(?:::)?\{(.*)\}", item, re.S)
        if group:
            head = [name for name in group[1].split("::") if name]
            yield from (head + path for path in paths(group[2]))
        else:
            yield item.split(" as ")[0].strip().split("::")


def uses(known):
    """Module -> modules that it uses."""
    edges = {}
    for module, file in known.items():
        text = re.sub(r"//.*", "", file.read_text().split("#[cfg(test)]\nmod ")[0])
        found = [path for tree in USE.findall(text) for path in paths(tree)]
        found += [path.split("::") for path in INLINE.findall(text)]
        for path in found:
            base = list(module)
            if path[0] == "crate":
                base, path = [], path[1:]
            elif path[0] == "self":
                path = path[1:]
            elif path[0] == "super":
                while path and path[0] == "super":
                    base, path = base[:-1], path[1:]
            elif (*module, path[0]) not in known:
                continue
            target = tuple(base + path)
            while target and target not in known:
                target = target[:-1]
            if target and target != module:
                edges.setdefault(module, set()).add(target)
    return edges


def siblings(edges, parent):
    """Child of `parent` -> its siblings that it uses -> in which modules."""
    n, found = len(parent), {}
    for module, targets in edges.items():
        for target in targets:
            inside = all(path[:n] == parent and len(path) > n for path in (module, target))
            if inside and module[n] != target[n]:
                found.setdefault(module[n], {}).setdefault(target[n], set()).add(module)
    return found


def circles(graph):
    """The strongly connected parts of more than one node."""
    def reach(start):
        seen, left = set(), [start]
        while left:
            for node in graph.get(left.pop(), {}):
                if node not in seen:
                    seen.add(node)
                    left.append(node)
        return seen

    reached = {node: reach(node) for node in graph}
    parts = {
        frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in graph if a in reached[a]
    }
    return sorted(sorted(part) for part in parts)


def main():
    known = modules()
    edges = uses(known)
    if "--uses" in sys.argv[1:]:
        for room, of in sorted(siblings(edges, ()).items()):
            print(f"{room}: {', '.join(sorted(of))}")
    wrong = 0
    for parent in sorted({module[:n] for module in known for n in range(len(module))}):
        graph = siblings(edges, parent)
        for circle in circles(graph):
            if set(circle) == ALLOWED.get(parent):
                continue
            wrong += 1
            print(f"{'/'.join(('src', *parent))}: a circle of {', '.join(circle)}")
            for a in circle:
                for b in sorted(set(graph[a]) & set(circle)):
                    where = ", ".join(sorted("/".join(module) for module in graph[a][b]))
                    print(f"    {a} -> {b} in {where}")
    sys.exit(wrong > 0)


main()
