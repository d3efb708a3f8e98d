# shellcheck shell=bash
# Makes the guest's initramfs from the host's own programs: busybox, dash, iproute2, kmod, rdma-core and its tools, with the
# libraries they load. Owns `$cache/image-KEY.cpio` and the list of its files. Sourced by `lab`.

# Busybox gives the plain commands, the host the ones that RDMA needs. Its shell is left out because it prefers its own `ip`
# and `tc` to those on the PATH, and its `tc` accepts netem without doing anything: /bin/sh is dash.
# Bash is for people.
readonly host_programs='dash bash setpriv ip tc rdma kmod ibv_devinfo rping ib_send_lat ib_send_bw ib_write_lat ib_write_bw ib_read_lat'
readonly not_from_busybox=' busybox init linuxrc sh ash hush ip tc modprobe insmod rmmod depmod lsmod modinfo '
readonly providers='rxe siw'

# Shared libraries that program $1 loads, one path a line.
libraries_of() {
    ldd "$1" 2>/dev/null | grep -oE '/[^ ]+' || true
}

path_of() {
    command -v "$1" || stop "$1 is not installed; run 'make setup'"
}

# The provider library of kind $1, which ibverbs loads by name at run time, so that ldd does not show it.
provider_library() {
    local found
    found=$(compgen -G "/usr/lib/*/libibverbs/lib$1-rdmav*.so" | head -n 1) ||
        stop "rdma-core's $1 provider is not installed; run 'make setup'"
    echo "$found"
}

copy_in() {
    mkdir -p "$root$(dirname "$2")"
    cp -L "$1" "$root$2"
}

# Every host file of the image as "SOURCE TARGET" lines.
image_files() {
    local name path file
    for name in $host_programs busybox; do
        path=$(path_of "$name") || exit
        echo "$path /usr/bin/$name"
        libraries_of "$path"
    done | sed 's/^\(\/[^ ]*\)$/\1 \1/'
    for name in $providers; do
        path=$(provider_library "$name") || exit
        echo "$path $path"
        echo "/etc/libibverbs.d/$name.driver /etc/libibverbs.d/$name.driver"
    done
    # Loaded by name when a thread is cancelled or a Rust program unwinds.
    file=$(gcc -print-file-name=libgcc_s.so.1)
    [[ $file != /* ]] || echo "$(readlink -f "$file") /lib/x86_64-linux-gnu/libgcc_s.so.1"
    for file in init barrier; do
        echo "$lab/guest/$file /lab-$file"
    done
}

fill_root() {
    local source target name
    mkdir -p "$root"/{bin,sbin,proc,sys,dev,tmp,run,etc,lab,lib,usr/bin}
    while read -r source target; do
        copy_in "$source" "$target"
    done <<<"$files"
    for name in $("$root/usr/bin/busybox" --list); do
        [[ $not_from_busybox == *" $name "* ]] || ln -sf /usr/bin/busybox "$root/bin/$name"
    done
    ln -s /usr/bin/dash "$root/bin/sh"
    for name in modprobe lsmod rmmod insmod; do
        ln -s /usr/bin/kmod "$root/sbin/$name"
    done
    mv "$root/lab-init" "$root/init"
    mv "$root/lab-barrier" "$root/usr/bin/lab-barrier"
    cp -r "$kernel_dir/lib/modules" "$root/lib/"
}

# Sets `image` to the initramfs for `kernel_dir`, from the cache unless one of its files changed since.
image=
ensure_image() {
    local files root key
    files=$(image_files | sort -u) || exit
    key=$({
        echo "$kernel_dir $files"
        cut -d ' ' -f 1 <<<"$files" | xargs cat | sha256sum
        cat "$kernel_dir"/lib/modules/*/*.ko "$lab/image.sh" | sha256sum
    } | sha256sum | cut -c 1-12)
    image=$cache/image-$key.cpio
    [[ ! -e $image ]] || return 0
    need_disk "$cache" 200
    find "$cache" -name 'image-*' -mmin +60 -delete
    root=$cache/image.partial
    rm -rf "$root"
    fill_root
    # Not compressed: an emulated processor takes longer to inflate it than to copy it.
    (cd "$root" && find . | cpio --quiet -o -H newc -R 0:0) >"$image.partial"
    cut -d ' ' -f 2 <<<"$files" >"$image.files"
    mv "$image.partial" "$image"
    rm -rf "$root"
}
