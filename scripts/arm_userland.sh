#!/bin/sh
# Unpacks Debian's Python and numpy for AArch64 into a folder, for emulation: nothing is installed.
# Usage: sh scripts/arm_userland.sh DIR [--pool]; then python scripts/arm_emulated.py --userland DIR.
# Needs apt-get and dpkg, and qemu-user-static to run what it unpacks; about 30 MB are fetched. With
# --pool, pip adds in DIR/site what a worker of a pool needs (100 MB); such a worker starts processes,
# so the kernel has to know qemu (binfmt_misc). ARM_USERLAND=DIR names it to the tests.
set -eu
root=${1:?name a folder}
mkdir -p "$root/apt/lists/partial" "$root/apt/archives/partial" "$root/debs"
root=$(cd "$root" && pwd)
touch "$root/apt/status"
apt() {
  apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$root/apt" \
    -o Dir::State::status="$root/apt/status" -o Dir::Cache="$root/apt" "$@"
}
apt update
cd "$root/debs"
apt download python3.11-minimal libpython3.11-minimal libpython3.11-stdlib python3-numpy libblas3 \
  liblapack3 libgfortran5 libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libssl3 libbz2-1.0 \
  liblzma5 libuuid1
for package in *.deb; do dpkg -x "$package" "$root"; done
cd "$root"
rm -r debs apt
[ "${2:-}" = --pool ] || exit 0
platforms=
for name in manylinux2014 manylinux_2_17 manylinux_2_27 manylinux_2_28; do
  platforms="$platforms --platform ${name}_aarch64"
done
# shellcheck disable=SC2086
"${PYTHON:-python3}" -m pip install -q --target "$root/site" $platforms --python-version 311 \
  --only-binary=:all: numpy llvmlite networkx tqdm lightgbm distributed cryptography
