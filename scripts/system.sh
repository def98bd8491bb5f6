#!/bin/sh
# Installs what lathe's build and checks need of the system, if it is lacking: a C++ compiler, and
# Python 3 with venv and pip. Asks for nothing that is there. Arguments are further packages.
set -u
lacking=${1:+ $*}
command -v c++ > /dev/null || lacking="$lacking g++"
python3 -c 'import sys; assert sys.version_info >= (3, 10)' 2> /dev/null || lacking="$lacking python3"
python3 -c 'import ensurepip, venv' 2> /dev/null || lacking="$lacking python3-venv"
command -v curl > /dev/null || command -v cargo > /dev/null || lacking="$lacking curl"

if [ -n "$lacking" ]; then
    if command -v apt-get > /dev/null; then
        root=
        [ "$(id -u)" = 0 ] || root=sudo
        echo "installing$lacking"
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086 # a list of names
        scripts/retry.sh $root apt-get update -qq &&
            scripts/retry.sh $root apt-get install -y -qq --no-install-recommends $lacking || exit 1
    elif [ "$(uname)" = Darwin ]; then
        echo "lacking:$lacking. Run: xcode-select --install; brew install python" >&2
        exit 1
    else
        echo "lacking:$lacking (Debian's names). Install them with your package manager." >&2
        exit 1
    fi
fi
command -v cargo > /dev/null || {
    echo "lacking: Rust. Run: curl --proto '=https' -sSf https://sh.rustup.rs | sh" >&2
    exit 1
}
