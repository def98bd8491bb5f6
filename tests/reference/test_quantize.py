"""The bytes that lathe stores are those of mlx.core.quantize on the same tensor."""

import unittest

import mlx.core as mx

from support import FORMATS, array, blobs, bytes_of, created, packing, source


class Quantize(unittest.TestCase):
    def check(self, format):
        """Compares every tensor; gives how many there were in each format."""
        counts, seen = {}, set()
        for layer, metadata, tensors in blobs(created(format)):
            names = [n for n in tensors if not n.endswith((".scale", ".bias", ".global_scale"))]
            for name in names:
                seen.add(name)
                original = source()[name]
                packed = packing(metadata, name)
                if f"{name}.scale" not in tensors:
                    self.assertIsNone(packed, name)
                    self.assertEqual(tensors[name][2], bytes_of(original), name)
                    continue
                mode, bits, group = packed
                counts[mode, bits, group] = counts.get((mode, bits, group), 0) + 1
                expected = mx.quantize(original, group_size=group, bits=bits, mode=mode)
                parts = [name, f"{name}.scale", f"{name}.bias"][: len(expected)]
                self.assertEqual(sorted(n for n in tensors if n.startswith(name)), sorted(parts))
                for part, must in zip(parts, expected):
                    found = array(*tensors[part])
                    self.assertEqual((found.dtype, found.shape), (must.dtype, must.shape), part)
                    self.assertEqual(tensors[part][2], bytes_of(must), f"bytes of {part}")
        self.assertEqual(seen, set(source()), "every tensor of the source is stored")
        kinds = [f"{n} × {m}, {b} bits, group {g}" for (m, b, g), n in counts.items()]
        print(f"\n  {format}: {'; '.join(kinds)}")
        return counts


def test(format):
    def run(self):
        counts = self.check(format)
        self.assertGreaterEqual(counts.get(FORMATS[format], 0), 100, "most are as asked for")

    return run


for format in FORMATS:
    setattr(Quantize, f"test_{format}", test(format))

if __name__ == "__main__":
    unittest.main()
