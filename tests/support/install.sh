# shellcheck shell=bash
# Sourced by tests/run and drivers/demo: installs Debian packages, only those that are missing.

# What the drivers need, and what the tests need on top.
# shellcheck disable=SC2034
{
    K3_BUILD_PACKAGES=(g++ meson ninja-build pkg-config python3 libxsimd-dev libsimdjson-dev nlohmann-json3-dev
                       libcli11-dev libpcre2-dev liburing-dev libcurl4-openssl-dev libssl-dev libeigen3-dev
                       ca-certificates)
    K3_TEST_PACKAGES=(git binutils clang clang-format libomp-dev doctest-dev)
    K3_AARCH64_PACKAGES=(g++-aarch64-linux-gnu qemu-user)
    # Read by tests/support/aarch64.sh: unpacked beside the build, never installed.
    K3_AARCH64_SYSROOT_PACKAGES=(libxsimd-dev libsimdjson-dev libsimdjson14 nlohmann-json3-dev libcli11-dev libpcre2-dev
                                 libpcre2-8-0 liburing-dev liburing2 doctest-dev libeigen3-dev)
}

k3_say() { printf '== %s\n' "$*" >&2; }

k3_missing_packages() {
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || printf '%s\n' "$package"
    done
}

# k3_install PACKAGE...: returns 0 when all of them are there at the end.
k3_install() {
    local -a missing as_root=()
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        k3_say "this is not a Debian system; going on with what is installed. The build wants: $*"
        return 0
    fi
    mapfile -t missing < <(k3_missing_packages "$@")
    [ "${#missing[@]}" -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            k3_say "these packages are missing and there is neither root nor sudo to install them."
            k3_say "as root, run: apt-get install ${missing[*]}"
            return 1
        fi
        as_root=(sudo)
    fi
    k3_say "installing: ${missing[*]}"
    if [ -z "${k3_apt_updated:-}" ]; then
        "${as_root[@]}" apt-get -q -o DPkg::Lock::Timeout=300 update >&2 ||
            k3_say "apt-get update failed; trying with the package lists at hand"
        k3_apt_updated=1
    fi
    if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends \
        -o DPkg::Lock::Timeout=300 install "${missing[@]}" >&2 </dev/null; then
        k3_say "apt-get could not install: ${missing[*]}; see its message above"
        return 1
    fi
}
