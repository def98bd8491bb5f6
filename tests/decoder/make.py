"""Makes the tiny random models of this folder with transformers 5.24.0 and torch, on the CPU.

usage: make.py OUT [NAME...]

OUT/NAME/config.json: what the settings below say and no more, as published configs hold what differs
from the defaults of their class; transformers fills in the rest when the reference is computed.
OUT/NAME/model.safetensors: bf16 weights as transformers saves them.
OUT/NAME.ref.safetensors: input_ids [1, 20], logits [1, 20, 96] of the whole prompt in float32 with
eager attention, greedy [16], the continuation by transformers' `generate`. Where rotations depend on
the length (LONG), also those of a prompt of 40 tokens, long_input_ids and so on: the trained length of
these models lies between the two, and the continuation of the shorter prompt crosses it.
"""
import json, os, sys, warnings

import torch
import transformers as T
from safetensors.torch import load_file, save_file

warnings.filterwarnings("ignore")
T.logging.set_verbosity_error()
VOCABULARY, PROMPT, LONG_PROMPT, CONTINUATION = 96, 20, 40, 16

BASE = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)


def but(*without, **changes):
    return {key: value for key, value in (BASE | changes).items() if key not in without}


DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
             linear_value_head_dim=8, linear_conv_kernel_dim=4, num_hidden_layers=4)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
QWEN35_ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=1e7,
                   partial_rotary_factor=0.5, mrope_section=[1, 1, 0], mrope_interleaved=True))
LATENT = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8,
              v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
              n_shared_experts=1, n_group=1, topk_group=1, num_key_value_heads=4)
GEMMA4 = dict(sliding_window=8, global_head_dim=16, vocab_size_per_layer_input=VOCABULARY,
              layer_types=["sliding_attention", "full_attention"], final_logit_softcapping=30.0)
LISTS = dict(short_factor=[1.0, 1.3, 1.7, 2.2], long_factor=[1.5, 3.0, 6.0, 9.0])
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)

MODELS = {
    "cohere2_moe": ("Cohere2Moe", but(num_experts=4, num_experts_per_tok=2, num_shared_experts=1,
        sliding_window=8, sliding_window_pattern=2, first_k_dense_replace=1, num_hidden_layers=3,
        prefix_dense_intermediate_size=48, intermediate_size=16, expert_selection_fn="sigmoid")),
    "deepseek_v3": ("DeepseekV3", but("head_dim", **LATENT | dict(n_group=2),
        first_k_dense_replace=1)),
    "gemma2": ("Gemma2", but(sliding_window=8, query_pre_attn_scalar=8)),
    "gemma3": ("Gemma3Text Gemma3", but(sliding_window=8, query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention"])),
    # As published: text_config without heads, activation, eps, scale, thetas or kinds of layers.
    "gemma3_vision": ("Gemma3 Gemma3ForConditionalGeneration", dict(
        text_config=dict(model_type="gemma3_text", hidden_size=16, intermediate_size=16,
            num_hidden_layers=6, head_dim=8, sliding_window=8, vocab_size=VOCABULARY,
            rope_scaling=dict(rope_type="linear", factor=8.0)),
        vision_config=dict(model_type="siglip_vision_model", hidden_size=16, image_size=28,
            intermediate_size=16, num_attention_heads=2, num_hidden_layers=1, patch_size=14,
            vision_use_head=False),
        mm_tokens_per_image=4, boi_token_index=90, eoi_token_index=91, image_token_index=92,
        eos_token_id=[1, 95])),
    "gemma4_moe": ("Gemma4Text Gemma4", but(**GEMMA4, hidden_size_per_layer_input=0,
        attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=4,
        top_k_experts=2, moe_intermediate_size=16)),
    "gemma4_shared": ("Gemma4Text Gemma4", but(**GEMMA4 | dict(num_hidden_layers=4,
        layer_types=GEMMA4["layer_types"] * 2), hidden_size_per_layer_input=8,
        num_kv_shared_layers=2, use_double_wide_mlp=True)),
    "glm4_moe": ("Glm4Moe", but(n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, n_shared_experts=1, first_k_dense_replace=1, use_qk_norm=True,
        attention_bias=True)),
    "glm4_moe_lite": ("Glm4MoeLite", but("head_dim", **LATENT)),
    "gpt_oss": ("GptOss", but(num_local_experts=4, num_experts_per_tok=2, intermediate_size=16,
        sliding_window=8)),
    "laguna": ("Laguna", but(**EXPERTS, shared_expert_intermediate_size=16, sliding_window=8,
        layer_types=["full_attention", "sliding_attention"], num_attention_heads_per_layer=[4, 8])),
    "lfm2_moe": ("Lfm2Moe", but("head_dim", layer_types=["conv", "full_attention", "conv"],
        num_hidden_layers=3, num_dense_layers=1, **EXPERTS, conv_L_cache=3, use_expert_bias=True)),
    "lfm2": ("Lfm2", but("head_dim", layer_types=["conv", "full_attention"],
        block_auto_adjust_ff_dim=False)),
    "llama": ("Llama", but(rope_parameters=LLAMA3)),
    "llama_dynamic": ("Llama", but(max_position_embeddings=26, rope_parameters=dict(
        rope_type="dynamic", rope_theta=100.0, factor=4.0))),
    "llama_longrope": ("Llama", but(rope_parameters=dict(rope_type="longrope", rope_theta=100.0,
        original_max_position_embeddings=26, **LISTS))),
    "llama_yarn": ("Llama", but(max_position_embeddings=26, rope_parameters=dict(
        rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=26,
        mscale=1.0, mscale_all_dim=0.5))),
    "minimax_m2": ("MiniMaxM2", but(num_local_experts=4, num_experts_per_tok=2,
        intermediate_size=16)),
    "ministral3": ("Ministral3", but(sliding_window=None, rope_parameters=dict(rope_type="yarn",
        rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
        mscale_all_dim=1.0, original_max_position_embeddings=8, llama_4_scaling_beta=0.1))),
    "mistral": ("Mistral", but("head_dim", sliding_window=8)),
    # As published: rotary positions and kinds of norms by default, and a head of its own although
    # the class ties by default.
    "mistral3": ("Mistral3 Mistral3ForConditionalGeneration", dict(
        text_config=dict(model_type="ministral3", hidden_size=32, intermediate_size=32,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            vocab_size=VOCABULARY, max_position_embeddings=64),
        vision_config=dict(model_type="pixtral", hidden_size=16, image_size=28, patch_size=14,
            intermediate_size=16, num_attention_heads=2, num_hidden_layers=1, head_dim=8),
        image_token_index=90, multimodal_projector_bias=False, spatial_merge_size=2,
        vision_feature_layer=-1)),
    "mixtral": ("Mixtral", but(num_local_experts=4, num_experts_per_tok=2, intermediate_size=16,
        sliding_window=None)),
    # With next to no least time step: transformers applies it to prompts and not to single tokens.
    "nemotron_h": ("NemotronH", but("num_hidden_layers", hybrid_override_pattern="ME*-",
        ssm_state_size=8, mamba_num_heads=4, mamba_head_dim=8, n_groups=2, chunk_size=8,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16, n_shared_experts=1, time_step_min=1e-30)),
    "phi3": ("Phi3", but("head_dim", original_max_position_embeddings=26, sliding_window=None,
        rope_parameters=dict(rope_type="longrope", rope_theta=100.0, **LISTS))),
    "phi3_partial": ("Phi3", but("head_dim", original_max_position_embeddings=26, sliding_window=8,
        tie_word_embeddings=True, hidden_size=64, partial_rotary_factor=0.5, rope_parameters=dict(
        rope_type="longrope", rope_theta=100.0, factor=4.0, **LISTS))),
    "qwen2": ("Qwen2", but("head_dim")),
    "qwen3": ("Qwen3", but(tie_word_embeddings=True)),
    # Tied by the config, and with another head in the file.
    "qwen3_head": ("Qwen3", but(tie_word_embeddings=True)),
    "qwen3_5": ("Qwen3_5Text Qwen3_5", but(tie_word_embeddings=True, **DELTA, **QWEN35_ROPE)),
    "qwen3_5_moe": ("Qwen3_5MoeText Qwen3_5Moe", but("intermediate_size", **EXPERTS,
        shared_expert_intermediate_size=16, **DELTA, **QWEN35_ROPE)),
    "qwen3_moe": ("Qwen3Moe", but(**EXPERTS, norm_topk_prob=True, decoder_sparse_step=1,
        mlp_only_layers=[])),
    "qwen3_next": ("Qwen3Next", but(**EXPERTS, shared_expert_intermediate_size=16,
        norm_topk_prob=True, **DELTA)),
}

LONG = {"llama_dynamic", "llama_longrope", "llama_yarn", "phi3", "phi3_partial"}
# The names under which a head is added to a model that ties by its config.
OTHER_HEADS = {"qwen3_head": "lm_head.weight", "mistral3": "language_model.lm_head.weight"}


def randomize(model, seed):
    """Norms, biases and decays near what they start from, matrices wide enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    buffers = [b for b in model.named_buffers() if "correction" in b[0] or "expert_bias" in b[0]]
    with torch.no_grad():
        for name, value in list(model.named_parameters()) + buffers:
            noise = torch.randn(value.shape, generator=generator)
            if value.ndim <= 1:
                value.add_(0.1 * noise)
            elif "conv" in name:
                value.copy_(0.3 * noise)
            else:
                value.copy_(0.18 * noise)


def continuation(model, ids):
    """Greedy tokens, and the least margin between best and second best."""
    settings = T.GenerationConfig(do_sample=False, max_new_tokens=CONTINUATION, eos_token_id=None,
                                  pad_token_id=0, use_cache=True)
    out = model.generate(ids, generation_config=settings, return_dict_in_generate=True,
                         output_logits=True)
    best = torch.stack(out.logits, 1)[0].topk(2).values
    return out.sequences[0, ids.shape[1]:], (best[:, 0] - best[:, 1]).min().item()


def reference(model, length):
    ids = torch.randint(3, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        greedy, margin = continuation(model, ids)
    return {"input_ids": ids.int(), "logits": logits.contiguous(), "greedy": greedy.int()}, margin


def write_config(folder, architecture, config_class, settings):
    """config.json with nothing in it that was not asked for."""
    said = {"architectures": [architecture], "model_type": config_class.model_type, **settings}
    with open(f"{folder}/config.json", "w") as file:
        json.dump(said, file, indent=1)
        file.write("\n")


def untie(folder, head):
    """Another head beside an embedding that the config makes the head."""
    tensors = load_file(f"{folder}/model.safetensors")
    noise = torch.randn((VOCABULARY, BASE["hidden_size"]), generator=torch.Generator().manual_seed(5))
    tensors[head] = (0.18 * noise).to(torch.bfloat16)
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})


def make(out, name, kinds, settings):
    config, *model = kinds.split()
    config_class = getattr(T, config + "Config")
    architecture = (model or [config])[0]
    architecture += "" if architecture.endswith("Generation") else "ForCausalLM"
    model_class = getattr(T, architecture)
    folder = f"{out}/{name}"
    for seed in range(100):
        torch.manual_seed(seed)
        model = model_class(config_class(**json.loads(json.dumps(settings)))).float().eval()
        randomize(model, seed)
        model.to(torch.bfloat16).save_pretrained(folder)
        write_config(folder, architecture, config_class, settings)
        if name in OTHER_HEADS:
            untie(folder, OTHER_HEADS[name])
        model = model_class.from_pretrained(folder, dtype=torch.float32,
                                            attn_implementation="eager").eval()
        tensors, margin = reference(model, PROMPT)
        if name in LONG:
            # A fresh model: a dynamic rotation remembers the longest sequence that it has seen.
            model = model_class.from_pretrained(folder, dtype=torch.float32,
                                                attn_implementation="eager").eval()
            long, of_long = reference(model, LONG_PROMPT)
            tensors |= {"long_" + key: value for key, value in long.items()}
            margin = min(margin, of_long)
        if margin > 0.01:
            break
    save_file(tensors, f"{folder}.ref.safetensors")
    os.path.exists(f"{folder}/generation_config.json") and os.remove(f"{folder}/generation_config.json")
    print(name, "seed", seed, "margin", round(margin, 4), "std", round(tensors["logits"].std().item(), 3))


if __name__ == "__main__":
    wanted = sys.argv[2:] or MODELS
    for name in wanted:
        make(sys.argv[1], name, *MODELS[name])
