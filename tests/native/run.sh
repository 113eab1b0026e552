#!/usr/bin/env bash
# Build the kernels under a sanitizer, apart from the library in use, and drive all of them: run.sh address|thread.
# PYTHON: one that has setuptools.
set -euo pipefail
cd "$(dirname "$0")/../.."

sanitizer=$1
folder=build/sanitizers/$sanitizer
library=octavo/kernels/_native.so
OCTAVO_SANITIZER=$sanitizer "${PYTHON:-python3}" setup.py -q build_ext --build-temp "$folder/objects" --build-lib "$folder"

case $sanitizer in
address) flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined" ;;
thread) flags=-fsanitize=thread ;;
esac
"${CXX:-g++}" -std=c++17 -O1 -g -Wall -Wextra -Werror -pthread $flags -Ioctavo/kernels/csrc tests/native/*.cpp "$folder/$library" \
	"-Wl,-rpath,$PWD/$folder/octavo/kernels" -o "$folder/drive"

echo "under the $sanitizer sanitizer"
"$folder/drive"
