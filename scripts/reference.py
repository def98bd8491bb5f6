#!/usr/bin/env python3
"""What transformers computes of a model folder, for `lathe policy check --against`.

usage: reference.py FOLDER OUT.safetensors [--tokens 24] [--greedy 16] [--text TEXT] [--seed 7]

Writes input_ids [1, n], logits [1, n, vocabulary] in float32 with eager attention, and greedy [k], the
continuation through the cache of transformers. The prompt is random ids, or TEXT by the folder's
tokenizer. Prints the least margin between the best two logits of the continuation: where it is small,
another order of sums may choose another token. Needs the packages torch and transformers.
"""

import argparse
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--tokens", type=int, default=24, help="length of the random prompt")
    parser.add_argument("--greedy", type=int, default=16, help="length of the continuation")
    parser.add_argument("--text", help="a prompt in place of random ids")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    try:
        import torch
        import transformers
        from safetensors.torch import save_file
    except ImportError as error:
        sys.exit(f"{error}; install torch, transformers and safetensors")

    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.from_pretrained(args.folder)
    kinds = [transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText]
    kind = next((kind for kind in kinds if type(config) in kind._model_mapping), kinds[0])
    model = kind.from_pretrained(
        args.folder, dtype=torch.float32, attn_implementation="eager").eval()
    vocabulary = model.get_output_embeddings().weight.shape[0]
    if args.text:
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
        ids = tokenizer(args.text, return_tensors="pt").input_ids
    else:
        generator = torch.Generator().manual_seed(args.seed)
        ids = torch.randint(3, vocabulary, (1, args.tokens), generator=generator)
    greedy, margin = [], float("inf")
    with torch.no_grad():
        out = model(input_ids=ids, use_cache=True)
        logits = out.logits.float()
        for _ in range(args.greedy):
            best = out.logits[0, -1].topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            greedy.append(best.indices[0].item())
            out = model(input_ids=best.indices[:1][None], past_key_values=out.past_key_values,
                        use_cache=True)
    arrays = {"input_ids": ids.int(), "logits": logits.contiguous()}
    if greedy:
        arrays["greedy"] = torch.tensor(greedy, dtype=torch.int32)
    save_file(arrays, args.out)
    print(f"{args.out}: {ids.shape[1]} + {len(greedy)} tokens, vocabulary {logits.shape[-1]}, "
          f"least margin {margin:.4f}")


if __name__ == "__main__":
    main()
