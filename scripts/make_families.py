"""Make the small random models of tests/data/families: for each family a GGUF file and the logits of transformers.

    scripts/make_families.py [--converter FOLDER] [NAME...]

Each model is made from its Hugging Face class with a seed, saved, and converted by llama.cpp's own converter; only the
vocabulary is put in by hand, a byte-level one, as there is no tokenizer to convert. Weights are random multiples of 1/128, so
that the float32 files compress to a fifth. The logits are of one float32 forward of 220 tokens on the CPU, kept at some
positions. Needs torch, transformers, gguf and llama.cpp's conversion scripts, which come inside the source package of
llama-cpp-python; without --converter they are fetched through pip, and torch and transformers are looked for in the
environment: pip install -e '.[dev-hf]'.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "data" / "families"
CONVERTER = ROOT / ".cache" / "llama.cpp-converter"
N_VOCAB, N_TOKENS = 288, 220
POSITIONS = (
    0,
    1,
    2,
    7,
    15,
    16,
    17,
    31,
    32,
    33,
    47,
    48,
    49,
    63,
    64,
    65,
    95,
    127,
    128,
    129,
    150,
    191,
    192,
    193,
    218,
    219,
)
N_SHORT = 60  # tokens of the second forward, within the original context of longrope models

BASE = dict(
    vocab_size=N_VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


def rope(kind: str = "default", theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    """The configuration of a rotary embedding."""
    return {"rope_type": kind, "rope_theta": theta, **more}


YARN = rope("yarn", 10000.0, factor=4.0, original_max_position_embeddings=64)
LONGROPE = rope(
    "longrope", 10000.0, original_max_position_embeddings=64, partial_rotary_factor=0.5,
    short_factor=[1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6], long_factor=[1.0, 1.2, 1.6, 2.2, 3.0, 4.0, 5.0, 6.0],
)  # fmt: skip
OLMO3_LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]

# name: (class without "ForCausalLM", what differs from BASE)
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama3": (
        "Llama",
        dict(
            rope_parameters=rope(
                "llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=64,
            )
        ),
    ),
    "llama-linear-bias": (
        "Llama", dict(attention_bias=True, mlp_bias=True, rope_parameters=rope("linear", factor=4.0), head_dim=16)
    ),
    "mistral": ("Mistral", dict(head_dim=32, sliding_window=None, rope_parameters=rope(theta=1000000.0))),
    "ministral3": (
        "Ministral3",
        dict(
            head_dim=32,
            rope_parameters={
                **YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        ),
    ),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True, rope_parameters=rope(theta=1000000.0))),
    "qwen3": ("Qwen3", dict(head_dim=32, rope_parameters=YARN)),
    "smollm3": ("SmolLM3", dict(num_hidden_layers=5, tie_word_embeddings=True, rope_parameters=rope(theta=50000.0))),
    "granite": (
        "Granite",
        dict(
            embedding_multiplier=3.0, residual_multiplier=0.22, attention_multiplier=0.11, logits_scaling=0.8,
            rope_parameters=rope(),
        ),
    ),
    "gemma2": (
        "Gemma2",
        dict(
            head_dim=32, query_pre_attn_scalar=32, sliding_window=48, num_hidden_layers=4, tie_word_embeddings=True,
            attn_logit_softcapping=8.0, final_logit_softcapping=6.0, rope_parameters=rope(),
        ),
    ),
    "gemma3": (
        "Gemma3",
        dict(
            head_dim=32, query_pre_attn_scalar=32, sliding_window=48, num_hidden_layers=6, tie_word_embeddings=True,
            rope_parameters={"full_attention": rope("linear", 1000000.0, factor=8.0), "sliding_attention": rope()},
        ),
    ),
    "phi3": (
        "Phi3",
        dict(hidden_size=128, sliding_window=None, original_max_position_embeddings=64, rope_parameters=LONGROPE),
    ),
    "phi3-window": ("Phi3", dict(sliding_window=48, rope_parameters=rope(partial_rotary_factor=1.0))),
    "olmo2": ("Olmo2", dict(rope_parameters=rope(theta=500000.0))),
    "olmo3": ("Olmo3", dict(sliding_window=48, layer_types=OLMO3_LAYERS, rope_parameters=YARN)),
    "qwen2moe": (
        "Qwen2Moe",
        dict(
            num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64,
            norm_topk_prob=False, rope_parameters=rope(theta=1000000.0),
        ),
    ),
    "qwen3moe": (
        "Qwen3Moe",
        dict(
            head_dim=32, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True,
            rope_parameters=rope(theta=1000000.0),
        ),
    ),
    "lfm2": (
        "Lfm2",
        dict(
            num_hidden_layers=4, layer_types=["conv", "conv", "full_attention", "conv"], conv_L_cache=3, norm_eps=1e-5,
            block_auto_adjust_ff_dim=False, block_ff_dim=96, tie_word_embeddings=True, rope_parameters=rope(theta=1e6),
        ),
    ),
}  # fmt: skip


def model_of(name: str) -> Any:
    """The Hugging Face model, in float32, with random weights that make its parts matter."""
    import torch
    import transformers

    family, more = MODELS[name]
    config_name = {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config")
    config = getattr(transformers, config_name)(**{**BASE, **more})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.float32).eval()
    state = model.state_dict()
    for key, old in state.items():
        rng = np.random.default_rng([7, zlib.crc32(f"{name} {key}".encode())])
        shape = tuple(old.shape)
        if "norm" in key:
            values = 0.2 * rng.standard_normal(shape) + (0.0 if family.startswith("Gemma") else 1.0)
        elif key.endswith("bias"):
            values = 0.4 * rng.standard_normal(shape)
        elif "embed_tokens" in key:
            tied = model.config.tie_word_embeddings
            size = (0.25 if tied else 1.0) / getattr(model.config, "embedding_multiplier", 1.0)
            values = size * rng.standard_normal(shape)
        elif "conv.conv" in key:
            values = 0.6 * rng.standard_normal(shape)
        elif "lm_head" in key:
            values = 2.5 / np.sqrt(shape[-1]) * rng.standard_normal(shape)
        else:
            values = 1.3 / np.sqrt(shape[-1]) * rng.standard_normal(shape)
        state[key] = torch.from_numpy((np.round(values * 128) / 128).astype(np.float32))
    model.load_state_dict(state)
    model.tie_weights()
    return model


def logits_of(model: Any, ids: list[int]) -> np.ndarray:
    """The logits (n, n_vocab) of one float32 forward."""
    import torch

    with torch.inference_mode():
        found = model(torch.tensor([ids]), use_cache=False).logits[0]
    return np.asarray(found.to(torch.float32).numpy())


def set_vocab(self: Any) -> None:
    """In the place of the converter's method: bytes, a few merges, and names for the rest."""
    from tests.tiny import byte_vocabulary

    keys = byte_vocabulary("qwen2", N_VOCAB)
    writer = self.gguf_writer
    writer.add_tokenizer_model(keys["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(keys["tokenizer.ggml.pre"])
    writer.add_token_list(keys["tokenizer.ggml.tokens"])
    writer.add_token_types(keys["tokenizer.ggml.token_type"])
    writer.add_token_merges(keys["tokenizer.ggml.merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def convert(model: Any, folder: Path, target: Path) -> None:
    """Save the model and let llama.cpp's converter write the GGUF file, all float32."""
    import gguf
    import torch
    from conversion import get_model_class

    model.save_pretrained(folder)
    converter = get_model_class(type(model).__name__)
    if type(model).__name__.startswith("Ministral3"):
        converter = converter.Ministral3Model  # what it hands its work to
    # The converter of Gemma 3 counts the tokens here.
    names = {f"token {i}": i for i in range(N_VOCAB)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": names}, "added_tokens": []}))
    own = type("WithVocabulary", (converter,), {"set_vocab": set_vocab, "model_arch": converter.model_arch})
    with torch.inference_mode():
        own(folder, gguf.LlamaFileType.ALL_F32, target, model_name="random weights").write()


def fetch_converter() -> Path:
    """llama.cpp's conversion scripts from the source package of llama-cpp-python, by its checksum."""
    from fetch_llama_cpp import PACKAGE, SHA256

    if CONVERTER.is_dir():
        return CONVERTER
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "--dest", work]
        subprocess.run([*command, PACKAGE], check=True)
        archive = next(Path(work).glob("*.tar.gz"))
        if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
            raise SystemExit(f"{archive.name} has another sha256 than {SHA256}; not used")
        with tarfile.open(archive) as package:
            for member in package:
                _, marker, name = member.name.partition("/vendor/llama.cpp/")
                content = package.extractfile(member) if name.startswith(("conversion/", "gguf-py/gguf/")) else None
                if marker and content:
                    place = CONVERTER / name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(content.read())
    return CONVERTER


def make(name: str) -> None:
    """One family's two files."""
    model = model_of(name)
    ids = [int(i) for i in np.random.default_rng(3).integers(3, N_VOCAB, N_TOKENS)]
    kept = np.array(POSITIONS)
    arrays = {"ids": np.array(ids, np.int32), "positions": kept.astype(np.int32), "logits": logits_of(model, ids)[kept]}
    if "longrope" in str(MODELS[name][1]):
        arrays["short_logits"] = logits_of(model, ids[:N_SHORT])
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        target = Path(work) / f"{name}.gguf"
        convert(model, Path(work) / "hf", target)
        packed = lzma.compress(target.read_bytes(), preset=9)
    (OUT / f"{name}.gguf.xz").write_bytes(packed)
    np.savez(OUT / f"{name}.npz", **arrays)
    spread = arrays["logits"].std()
    print(f"{name}: {len(packed) / 1024:.0f} KiB, logits spread {spread:.2f}, finite {np.isfinite(spread)}")


def main() -> None:
    """Make the named families, or all."""
    parser = argparse.ArgumentParser(description="Make the small random models of tests/data/families.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(MODELS)}")
    parser.add_argument("--converter", type=Path, help="a folder with llama.cpp's conversion/ and gguf-py/")
    options = parser.parse_args()
    folder = options.converter or fetch_converter()
    sys.path[:0] = [str(ROOT), str(folder), str(folder / "gguf-py")]
    for name in options.names or MODELS:
        if name not in MODELS:
            parser.error(f"there is no family {name!r}; wanted one of {', '.join(MODELS)}")
        make(name)


if __name__ == "__main__":
    main()
