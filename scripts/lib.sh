# What every script of this folder starts with: a .venv at the root of the checkout, made and filled once.
# Sourced, never run. Everything it says goes to stderr, so that a script's own output can be piped.
# PYTHON=... chooses the interpreter that .venv is made from.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python

say() { printf '%s\n' "$*" >&2; }
die() { say "edgeinfer: $*"; exit 13; }

# one line about an interpreter: major minor bits libc venv; written for any Python, 2.7 included
probe='
import struct, sys
try:
    import sysconfig
    names = " ".join(str(sysconfig.get_config_var(n)) for n in ("SOABI", "MULTIARCH", "HOST_GNU_TYPE"))
except Exception:
    names = ""
try:
    import ensurepip, venv
    has = "venv"
except ImportError:
    has = "novenv"
libc = "musl" if "musl" in names else "other"
print("%d %d %d %s %s" % (sys.version_info[0], sys.version_info[1], struct.calcsize("P") * 8, libc, has))'

describe() { "$1" -c "$probe" </dev/null 2>/dev/null; }

# What is wrong with an interpreter (its name, then the facts of the probe), in a sentence; nothing if it will do.
fault() {
    local name=$1 major=$2 minor=$3 bits=$4 libc=$5 has=$6
    if [ "$major" -lt 3 ] || { [ "$major" -eq 3 ] && [ "$minor" -lt 10 ]; }; then
        printf '%s' "$name is Python $major.$minor, and edgeinfer needs Python 3.10 or newer; install one or name it with PYTHON=/path/to/python3."
    elif [ "$bits" -ne 64 ]; then
        printf '%s' "$name is a $bits-bit Python; edgeinfer needs a 64-bit system, so install a 64-bit OS image."
    elif [ "$libc" = musl ]; then
        printf '%s' "$name is built for musl (as on Alpine), for which Numba has no packages; use a system with glibc, such as Debian."
    elif [ "$has" != venv ]; then
        printf '%s' "$name cannot make a virtual environment; install what it lacks with: sudo apt install python3-venv"
    fi
}

# Print the interpreter to make .venv from, or end with one sentence that says what is wrong and what to do.
find_python() {
    local name facts wrong first=""
    local names=(python3.13 python3.12 python3.11 python3.10 python3)
    [ -z "${PYTHON:-}" ] || names=("$PYTHON")
    for name in "${names[@]}"; do
        facts=$(describe "$name") && [ -n "$facts" ] || continue
        # shellcheck disable=SC2086  # five words on purpose
        wrong=$(fault "$name" $facts)
        if [ -z "$wrong" ]; then
            printf '%s\n' "$name"
            return
        fi
        first=${first:-$wrong}
    done
    [ -z "$first" ] || die "$first"
    [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON is not a Python that runs; wanted Python 3.10 or newer."
    die "found no Python; install Python 3.10 or newer, for example with: sudo apt install python3 python3-venv"
}

# setup [EXTRA]: make .venv and install edgeinfer with the extra, unless the same pyproject.toml was installed before.
setup() {
    local extra=${1:-base} target=$root base stamp want
    stamp=$venv/.edgeinfer-$extra
    want="$root $(cksum <"$root/pyproject.toml")"
    [ "$extra" = base ] || target="$root[$extra]"
    [ "$(cat "$stamp" 2>/dev/null)" != "$want" ] || ! "$python" -c '' 2>/dev/null || return 0
    if ! "$python" -c '' 2>/dev/null; then
        base=$(find_python) || exit
        say "edgeinfer: making $venv with $base"
        "$base" -m venv --clear "$venv" >&2 || die "$base could not make $venv; the lines above say why."
    fi
    say "edgeinfer: installing what is needed into $venv (once; a few minutes on a small board)"
    "$python" -m pip install --quiet --disable-pip-version-check --editable "$target" >&2 ||
        die "the installation failed; the lines above say why, and running this again continues."
    printf '%s\n' "$want" >"$stamp"
}

# Install llama-cpp-python, built from source for this CPU: the yardstick of the comparisons and of many tests.
setup_llama_cpp() {
    "$python" -c 'import llama_cpp' >/dev/null 2>&1 && return
    say "edgeinfer: building llama-cpp-python for this CPU (once; about five minutes on two cores)"
    CMAKE_ARGS="-DGGML_NATIVE=ON" "$python" -m pip install --quiet --disable-pip-version-check \
        --no-binary llama-cpp-python llama-cpp-python==0.3.36 >&2 ||
        die "llama-cpp-python could not be built; it needs a C++ compiler: sudo apt install build-essential"
}

# Install llama.cpp's own server, the yardstick for many streams at once.
setup_llama_server() {
    "$python" -c 'import xllamacpp' >/dev/null 2>&1 && return
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps xllamacpp >&2 ||
        die "xllamacpp, which brings llama.cpp's server, could not be installed; --no-llamacpp does without it."
}
