# shellcheck shell=bash
# Sourced by tests/run: what a cross build for aarch64 needs beyond the cross compiler. The arm64 packages are unpacked
# into a folder of the build tree; the machine's own package set and architectures stay as they are.

# k3_aarch64_sysroot BUILD_DIR: fills BUILD_DIR/sysroot and writes BUILD_DIR/cross.ini. Returns 1 when it cannot.
k3_aarch64_sysroot() {
    local place=$1 sysroot=$1/sysroot deb libdir=usr/lib/aarch64-linux-gnu
    mkdir -p "$place/apt/lists/partial" "$place/apt/cache/archives/partial" "$place/apt/debs" "$sysroot" || return 1
    if [ ! -e "$place/apt/done" ]; then
        # apt reads a configuration file, where a path may hold spaces.
        cat >"$place/apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Dir::State::Lists "$place/apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "$place/apt/cache";
END
        (
            cd "$place/apt/debs" || exit 1
            export APT_CONFIG=$place/apt/apt.conf
            apt-get -q update && apt-get -q download "${K3_AARCH64_SYSROOT_PACKAGES[@]}"
        ) >&2 || return 1
        for deb in "$place"/apt/debs/*.deb; do dpkg-deb -x "$deb" "$sysroot" || return 1; done
        rm -rf "$place/apt/lists" "$place/apt/cache" "$place/apt/debs"
        touch "$place/apt/done"
    fi
    cat >"$place/cross.new" <<END
[constants]
sysroot = '$sysroot'

[binaries]
c = 'aarch64-linux-gnu-gcc'
cpp = 'aarch64-linux-gnu-g++'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['qemu-aarch64', '-L', '/usr/aarch64-linux-gnu', '-E', 'LD_LIBRARY_PATH=' + sysroot / '$libdir']

# pkg-config answers with /usr/..., which the arguments below lead into the sysroot; its own sysroot option does not
# survive a path with spaces. Libraries of headers alone may come from the machine's own /usr/include.
[properties]
pkg_config_libdir = [sysroot / '$libdir/pkgconfig', sysroot / 'usr/share/pkgconfig']

[built-in options]
cpp_args = ['-isystem', sysroot / 'usr/include']
cpp_link_args = ['-L' + sysroot / '$libdir', '-Wl,-rpath-link,' + sysroot / '$libdir']

[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'armv8-a'
endian = 'little'
END
    # meson does not read a changed cross file again: start afresh then.
    if ! cmp -s "$place/cross.new" "$place/cross.ini"; then
        rm -rf "$place/build.ninja" "$place/meson-private"
        mv "$place/cross.new" "$place/cross.ini"
    fi
}
