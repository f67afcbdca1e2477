"""Says what a file that is not GGUF looks like, and what to do about it. Must not know the GGUF format itself."""

from __future__ import annotations

__all__ = ["describe"]

_CONVERT = "convert it to GGUF with llama.cpp's convert_hf_to_gguf.py, or download a GGUF build of the model"
_OLD_GGML = {b"tjgg": "GGJT", b"fmgg": "GGMF", b"lmgg": "GGML", b"algg": "GGLA (an adapter)", b"nugg": "GGUN"}
_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", f"a zip archive or PyTorch checkpoint; unpack it, or {_CONVERT}"),
    (b"\x80\x02", f"a Python pickle or old PyTorch checkpoint; {_CONVERT}"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
    (b"\xfd7zXZ", "xz-compressed; unpack it first"),
    (b"(\xb5/\xfd", "zstd-compressed; unpack it first"),
    (b"BZh", "bzip2-compressed; unpack it first"),
    (b"7z\xbc\xaf", "a 7z archive; unpack it first"),
    (b"\x7fELF", "a Linux program, not a model"),
    (b"%PDF", "a PDF document, not a model"),
    (b"FUGG", "GGUF with its magic reversed (a big-endian writer); convert it to little-endian"),
)


def describe(head: bytes, size: int) -> str:
    """What the file looks like, from its first bytes: the end of a sentence "..., it is ".

    `head` is the start of the file (512 bytes are enough) and `size` its whole length in bytes.
    """
    if not size:
        return "empty (0 bytes); download it again"
    if size < 4 and b"GGUF".startswith(head):
        return f"cut off after {size} bytes; download it again"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the model itself; run 'git lfs pull', or download the file from its web page"
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "a web page saved under a model's name; use the link that downloads the file itself"
    if head[:4] in _OLD_GGML:
        return f"an old {_OLD_GGML[head[:4]]} container from before GGUF; download a GGUF build of the model"
    for start, answer in _STARTS:
        if head.startswith(start):
            return answer
    if len(head) > 9 and head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= size:
        return f"a safetensors file; {_CONVERT}"
    if text.startswith((b"{", b"[")):
        return "JSON text (a configuration or an error message); download the .gguf file itself"
    if not any(head):
        return "all zeros at its start (a download that only reserved its space?); download it again"
    if all(32 <= byte < 127 or byte in (9, 10, 13) for byte in head):
        return "plain text, not a model"
    return f"of an unknown kind (it starts with bytes {head[:4].hex(' ')}, wanted 47 47 55 46)"
