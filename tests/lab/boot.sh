# shellcheck shell=bash
# Boots one guest or two, waits for them with a time limit, and says in one sentence what went wrong if they did not finish.
# Owns the run's folder: `$run/share` (the guests' /lab), console.N.log, output.N and, outside it, the wires' sockets.
# Sourced by `lab`.

# The lab emulates and never opens the KVM device: a guest behaves alike on every machine, and there are hosts on which KVM is
# there and hangs. Without erms and fsrm the kernel copies word by word: with them one instruction copies any number of bytes,
# so that the virtual clock, which counts instructions, would charge nothing for a copy inside the kernel and one instruction a
# byte elsewhere.
readonly processor='max,-erms,-fsrm'
# What QEMU needs beside the guest's memory.
readonly emulator_mb=400

# Sets `machine` to QEMU's words for guest $1.
machine=()
describe_machine() {
    local host=$1 kernel_words="console=ttyS0 panic=-1 oops=panic quiet mitigations=off random.trust_cpu=on no_timer_check"
    kernel_words+=" lab.host=$host lab.hosts=$hosts lab.clock=$clock lab.shell=$shell"
    machine=(qemu-system-x86_64 -machine q35 -nodefaults -display none -no-reboot -m "$memory"
        -cpu "$processor" -kernel "$kernel_dir/vmlinuz" -initrd "$image" -append "$kernel_words "
        -fsdev "local,id=lab,path=$run/share,security_model=none" -device virtio-9p-pci,fsdev=lab,mount_tag=lab)
    case $clock in
    parallel) machine+=(-accel tcg,thread=multi,tb-size=256 -smp 2) ;;
    virtual) machine+=(-accel tcg,thread=single,tb-size=256 -smp 1 -icount shift=0,sleep=off -rtc base=2024-01-01,clock=vm) ;;
    esac
    if [[ $shell == yes ]]; then
        machine+=(-serial mon:stdio -serial null)
    else
        machine+=(-serial "file:$run/console.$host.log" -serial stdio)
    fi
    [[ -z $disk ]] ||
        machine+=(-drive "if=none,id=disk,format=raw,file=$run/disk.$host" -device virtio-blk-pci,drive=disk)
    [[ $hosts == 1 ]] || plug_wires "$host"
}

# Two network cards, each at the end of its own wire: datagrams between two sockets in the file system.
plug_wires() {
    local host=$1 n
    for n in 0 1; do
        machine+=(-netdev "dgram,id=wire$n,local.type=unix,local.path=$wires/$n.$host,remote.type=unix,remote.path=$wires/$n.$((3 - host))"
            -device "virtio-net-pci,netdev=wire$n,mac=52:54:00:00:0$n:0$host")
    done
}

need_memory() {
    local free=$(($(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo) / 1024)) wanted=$((hosts * (memory + emulator_mb)))
    [[ $free -ge $wanted ]] ||
        stop "$hosts guest(s) of $memory MB need $wanted MB of free memory and $free MB are free; end other programs" \
            "or give the guests less with --memory"
}

make_disks() {
    local host
    [[ -n $disk ]] || return 0
    need_disk "$run" $((disk * hosts))
    for ((host = 1; host <= hosts; host++)); do
        truncate -s "${disk}M" "$run/disk.$host"
        mkfs.ext4 -q -F "$run/disk.$host"
    done
}

# The emulators' process ids, by guest.
guests=()

start_guest() {
    local host=$1
    describe_machine "$host"
    # Its output reaches the report line by line, with the guest's number in front.
    nice -n 5 "${machine[@]}" </dev/null 2>"$run/qemu.$host.log" \
        > >(tee "$run/output.$host" | sed -u "s/^/$host /" >"$run/lines") &
    guests[host]=$!
}

end_guests() {
    local pid
    for pid in "${guests[@]}"; do
        kill -9 "$pid" 2>/dev/null || true
    done
}

finished() { grep -q '^@lab done' "$run/output.$1"; }

# Waits for the guests; ends them at the time limit, and one of a pair soon after the other broke off.
# Sets `late` if the limit passed.
late=
await_guests() {
    local host running
    local -i deadline=$((SECONDS + limit))
    while :; do
        running=0
        for ((host = 1; host <= hosts; host++)); do
            if kill -0 "${guests[host]}" 2>/dev/null; then
                running=$((running + 1))
            elif ! finished "$host"; then
                # The other side fails by itself within some seconds, and its words are worth having.
                ((deadline <= SECONDS + 10)) || deadline=$((SECONDS + 10))
            fi
        done
        [[ $running != 0 ]] || return 0
        if ((SECONDS >= deadline)); then
            late=yes
            end_guests
            return
        fi
        sleep 0.2
    done
}

# What guest $1 was doing last: "in CASE on DEVICE" or a phase of its boot.
last_doing() {
    local last
    last=$(sed -n 's/^@lab \(ready\|begin\|end\)/\1/p' "$run/output.$1" | tail -n 1)
    case $last in
    begin*) read -r _ kind name <<<"$last"; echo "in $name on $kind" ;;
    '') echo "before it was ready" ;;
    *) echo "between two cases" ;;
    esac
}

# Says why guest $1 did not come to its end, in a sentence.
explain() {
    local host=$1 console=$run/console.$1.log gave_up panic words
    ! finished "$host" || return 0
    gave_up=$(sed -n 's/^@lab fail //p' "$run/output.$host")
    panic=$(grep -a -o -m 1 'Kernel panic - not syncing[^'$'\r'']*' "$console" 2>/dev/null) || panic=
    if [[ -n $gave_up ]]; then
        words="gave up: $gave_up"
    elif [[ -n $panic ]]; then
        words="crashed $(last_doing "$host") ($panic)"
    elif [[ $late == yes ]]; then
        words="did not finish within $limit s, $(last_doing "$host"); --limit gives it longer"
    elif [[ -s $run/qemu.$host.log ]]; then
        words="was not emulated to its end: $(tail -n 1 "$run/qemu.$host.log")"
    else
        words="ended $(last_doing "$host")"
    fi
    say "guest $host $words; read its console log, $console"
}

# Sets `reporter` to an awk that does not wait for a full buffer: mawk must be asked.
reporter=(awk)
choose_reporter() {
    [[ $(awk -W version 2>&1 </dev/null) != mawk* ]] || reporter+=(-W interactive)
}

# Boots the guests, prints their report and returns its status.
boot() {
    local status=0 host report
    need_memory
    make_disks
    mkfifo "$run/lines"
    wires=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder's name as it is now
    trap "end_guests; rm -rf '$wires'" EXIT
    trap 'exit 130' INT TERM
    choose_reporter
    "${reporter[@]}" -v hosts="$hosts" -v show="$show" -f "$lab/report.awk" <"$run/lines" &
    report=$!
    for ((host = 1; host <= hosts; host++)); do
        : >"$run/output.$host"
        start_guest "$host"
    done
    await_guests
    wait "$report" || status=$?
    for ((host = 1; host <= hosts; host++)); do
        explain "$host" >&2
    done
    return "$status"
}
