# shellcheck shell=bash
# Fetches a stock Debian kernel with apt, builds the one module that it lacks (siw), and keeps both in the cache.
# Owns `$cache/SERIES/`: linux.deb, release, siw.ko, and modules-KEY/ with vmlinuz and the modules the guest loads.
# Installs nothing: packages are unpacked beside the host's system. Sourced by `lab`.

# What the guest loads, with all that these depend on. crc32*: rxe and siw ask the kernel's crypto by name, so no dependency
# of theirs names them.
readonly guest_modules='virtio_pci 9p 9pnet_virtio virtio_net virtio_blk ext4 veth
    crc32_generic crc32c_generic ib_uverbs rdma_ucm rdma_rxe sch_netem'
readonly fetch_disk_mb=2000

# The package name of the newest kernel of series $1 that apt offers, e.g. linux-image-6.1.0-57-amd64.
newest_kernel() {
    local series=$1 meta image
    for meta in "linux-image-$series-amd64" linux-image-amd64; do
        image=$(apt-cache depends "$meta" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
        [[ $image != linux-image-"$series".* ]] || { echo "$image"; return; }
    done
    stop "apt offers no Linux $series kernel here; run 'apt-get update' as root on Debian 12, which has 6.1 and 6.12," \
        "or name another one with --kernel"
}

# The version of package $1 that belongs to `image` at `version`, as apt-get download takes it.
fetch() {
    local wanted=$1
    apt-get download -q "$wanted" >>fetch.log 2>&1 ||
        stop "cannot fetch $wanted with apt-get: check the network and run 'apt-get update' as root;" \
            "what apt-get said is in $PWD/fetch.log"
}

# Unpacks the kernel's header packages into ./headers, with their absolute paths turned to there.
unpack_headers() {
    local release=$1 version=$2 series=$3 package makefile
    local kbuild=linux-kbuild-$series
    # Since 6.12 the kbuild package is named after the whole release.
    [[ -z $(apt-cache show "linux-kbuild-${release%-amd64}" 2>/dev/null) ]] || kbuild=linux-kbuild-${release%-amd64}
    for package in "linux-headers-$release" "linux-headers-${release%-amd64}-common" "$kbuild"; do
        fetch "$package=$version"
    done
    for package in linux-headers-*.deb linux-kbuild-*.deb; do
        dpkg -x "$package" headers
    done
    makefile=headers/usr/src/linux-headers-$release/Makefile
    sed -i "s|/usr/src/|$PWD/headers/usr/src/|g" "$makefile"
}

# Builds ./siw.ko from the distribution's own source of the same version.
build_siw() {
    local release=$1 version=$2 series=$3 source=linux-source-$3
    unpack_headers "$release" "$version" "$series"
    fetch "$source=$version"
    dpkg --fsys-tarfile "$source"_*.deb | tar -xO "./usr/src/$source.tar.xz" |
        tar -xJ --strip-components=5 --one-top-level=siw "$source/drivers/infiniband/sw/siw"
    nice -n 5 make -s -j2 -C "headers/usr/src/linux-headers-$release" M="$PWD/siw" CC=gcc CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules \
        >siw.log 2>&1 || stop "siw does not build against Linux $release; the compiler's output is in $PWD/siw.log"
    strip --strip-debug -o siw.ko siw/siw.ko
}

# Makes `$cache/$1` whole. It appears with one rename, so an interrupted run leaves nothing that looks finished.
fetch_kernel() {
    local series=$1 work image release version
    image=$(newest_kernel "$series")
    release=${image#linux-image-}
    version=$(apt-cache show "$image" | sed -n 's/^Version: //p' | head -n 1)
    need_disk "$cache" "$fetch_disk_mb"
    say "fetching Linux $release and building siw for it: some 250 MB, a minute or two, once"
    work=$cache/$series.partial
    rm -rf "$work"
    mkdir -p "$work"
    (
        cd "$work"
        fetch "$image=$version"
        mv "$image"_*.deb linux.deb
        build_siw "$release" "$version" "$series"
        echo "$release" >release
        rm -rf headers siw linux-*.deb siw.log fetch.log
    )
    rm -rf "${cache:?}/$series"
    mv "$work" "$cache/$series"
}

# Unpacks what the guest needs of linux.deb into folder $2: vmlinuz and lib/modules/RELEASE with just `guest_modules` and siw.
unpack_modules() {
    local kernel=$1 to=$2 release all=$2.all module file
    release=$(<"$kernel/release")
    rm -rf "$to" "$all"
    need_disk "$cache" 600
    mkdir -p "$to/lib/modules/$release" "$all"
    dpkg -x "$kernel/linux.deb" "$all"
    [[ ! -d $all/usr/lib/modules ]] || { mkdir -p "$all/lib"; mv "$all/usr/lib/modules" "$all/lib/"; }
    mkdir -p "$all/lib/modules/$release/extra"
    cp "$kernel/siw.ko" "$all/lib/modules/$release/extra/"
    depmod -b "$all" "$release"
    for module in $guest_modules siw; do
        modprobe -d "$all" -S "$release" --show-depends "$module" ||
            stop "Linux $release has no module $module, which the guest needs"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r file; do
        cp "$file" "$to/lib/modules/$release/"
    done
    find "$to/lib/modules/$release" -name '*.xz' -exec xz -d {} +
    cp "$all/lib/modules/$release"/modules.{order,builtin*} "$to/lib/modules/$release/"
    depmod -b "$to" "$release"
    cp "$all/boot/vmlinuz-$release" "$to/vmlinuz"
    rm -rf "$all"
}

# Sets `kernel_dir` to a folder with vmlinuz and lib/modules for series $1, from the cache where it is there.
kernel_dir=
ensure_kernel() {
    local kernel=$cache/$1 key
    [[ -e $kernel/release ]] || fetch_kernel "$1"
    key=$(sha256sum <<<"$guest_modules" | cut -c 1-12)
    kernel_dir=$kernel/modules-$key
    [[ -e $kernel_dir/vmlinuz ]] || unpack_modules "$kernel" "$kernel_dir"
}
