#!/usr/bin/env bash
# Makes .venv, or brings it up to date; prints nothing when it already is.
#
# The interpreter: Python 3.12, then 3.10, because ttnn has wheels for these two; else the default python3, else any
# other that ttkern runs on. PYTHON=/path/to/python decides otherwise.
# torch: PyTorch's CPU build where its index can be reached, else what the default index gives.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CPU_INDEX=https://download.pytorch.org/whl/cpu
STAMP=.venv/.complete # written last, so an interrupted run never looks finished

say() { printf 'venv: %s\n' "$*"; }
fail() { printf 'venv: %s\n' "$*" >&2; exit 1; }

# Prints the version of an interpreter that can carry ttkern, or says on stderr why it cannot.
probe() {
    "$1" - <<'PYTHON'
import platform, sys, sysconfig

version = "%d.%d" % sys.version_info[:2]
if not (3, 10) <= sys.version_info[:2] < (3, 14):
    sys.exit("is Python %s; ttkern needs 3.10 to 3.13" % version)
try:
    import ensurepip, venv
except ImportError:
    sys.exit("has no venv module (on Debian and Ubuntu: apt install python%s-venv)" % version)
libc, libc_version = platform.libc_ver()
if version in ("3.10", "3.12") and sysconfig.get_platform() == "linux-x86_64":
    if libc != "glibc" or tuple(map(int, libc_version.split(".")[:2])) < (2, 34):
        sys.exit("would need ttnn, whose wheel asks for glibc 2.34 or newer; here is %s %s" % (libc, libc_version))
print(version)
PYTHON
}

candidates() {
    local version
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" || printf '%s\n' "$PYTHON"
        return
    fi
    for version in 3.12 3.10 3 3.13 3.11; do
        command -v "python$version" || true
        [ "$version" = 3 ] || ls -d "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$version".*/bin/python 2>/dev/null || true
    done
}

choose() { # sets python, version, refused
    local candidate reason
    refused=
    while IFS= read -r candidate; do
        if reason=$(probe "$candidate" 2>&1); then
            python=$candidate version=$reason
            return
        fi
        refused+=$'\n'"  $candidate: ${reason##*$'\n'}"
    done < <(candidates)
    fail "no usable Python found; install Python 3.12 with its venv module, or name one: make .venv PYTHON=/path/to/python$refused"
}

has() { .venv/bin/python -c 'import importlib.metadata as m, sys; m.version(sys.argv[1])' "$1" 2>/dev/null; }

pip_install() { .venv/bin/python -m pip --disable-pip-version-check install "$@"; }

install_torch() {
    [ "$(uname -sm)" = "Linux x86_64" ] || return 0 # elsewhere the default index's build has no CUDA
    local requirement
    requirement=$(sed -n 's/^ *"\(torch[^a-z"]*\)",$/\1/p' pyproject.toml)
    if timeout 15 .venv/bin/python -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=8)' "$CPU_INDEX/torch/" \
        2>/dev/null && pip_install "$requirement" --index-url "$CPU_INDEX"; then
        return
    fi
    say "PyTorch's CPU index gave nothing; taking torch from the default index, whose build has CUDA: ~3 GB to download, ~6 GB on disk"
}

if command -v flock >/dev/null; then # two makes at once: the second waits, then finds everything done
    exec 9<.ci/make_venv.sh
    flock -n 9 || { say "another make is at work on .venv; waiting for it"; flock 9; }
fi

choose
# The path belongs to it: scripts and the editable install name it, so a copied or moved tree needs its own.
wanted="$PWD $version $("$python" -c 'import hashlib; print(hashlib.sha256(open("pyproject.toml", "rb").read()).hexdigest())')"
found=$(cat "$STAMP" 2>/dev/null || true)
if [ -n "$found" ] && .venv/bin/python -c '' 2>/dev/null; then
    [ "$found" != "$wanted" ] || exit 0
    reusable=$([ "${found% *}" = "${wanted% *}" ] && echo yes || echo no)
else
    reusable=no
fi

if [ "$reusable" = yes ]; then
    say "pyproject.toml has changed; bringing .venv up to date"
    rm -f "$STAMP"
else
    say "making .venv with Python $version ($python)"
    rm -f "$STAMP"
    rm -rf .venv
    "$python" -m venv .venv
fi
has torch || install_torch
pip_install -e '.[test]'
printf '%s\n' "$wanted" >"$STAMP"

if has ttnn; then
    say "Python $version with ttnn $(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("ttnn"))')"
else
    say "Python $version without ttnn (it has wheels for Python 3.12 and 3.10 on Linux x86-64): the targets that use the real ttnn library are missing; the emulated device needs none$refused"
fi
has transformers || say "no transformers >= 5.24 for Python $version: the tests leave out the comparison with transformers"
