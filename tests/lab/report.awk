# Turns the guests' output into result lines as `cargo test` prints them, and ends with one `test result:` line.
# Input: "HOST LINE", where LINE is a program's output or begins with @lab (guest/init writes those).
# A program that is a libtest binary reports its own tests; for any other the program is one test: its output is shown when it
# fails, and exit status 77 says that the device cannot do it, with the last line as the reason.
# A test inside a libtest binary says the same with a line "@cannot NAME: REASON" on its real standard output.
# Variables: hosts (1 or 2), show (1: show the output of every program).
# Exit status: 0 all passed, 1 a test failed, 2 a guest ended before its last case or none ran.

BEGIN { passed = failed = ignored = filtered = seconds = 0 }

function label(name) { return kind[host] "::" (hosts > 1 ? "host" host "::" : "") name }

function verdict(name, text) { print "test " label(name) " ... " text; fflush() }

function reason_of(status) {
    if (status == 142) return "FAILED (its time limit passed)"
    if (status > 128) return "FAILED (signal " (status - 128) ")"
    return "FAILED (exit status " status ")"
}

function fail(name, text) { verdict(name, text); failed++ }

function show_output(    n) {
    print "---- " label(name[host]) " output ----"
    for (n = 1; n <= lines[host]; n++) print output[host, n]
    print "----"
}

# The end of a program that is one test.
function end_plain(status,    n, reason) {
    for (n = lines[host]; n > 0 && reason == ""; n--) reason = output[host, n]
    if (status == 0) { verdict(name[host], "ok"); passed++ }
    else if (status == 77 && reason != "") { verdict(name[host], "ignored, " reason); ignored++ }
    else fail(name[host], reason_of(status))
    if (show || (status != 0 && status != 77)) show_output()
}

# The end of a libtest binary: its own tests are counted already; here, whether it came to its end.
function end_libtest(status) {
    if (!summed[host]) fail(name[host], reason_of(status) " before its tests ended")
    else if (status != 0 && !bad[host]) fail(name[host], reason_of(status) " after its tests ended")
}

function begin_case(k, n) {
    kind[host] = k; name[host] = n; running[host] = 1
    libtest[host] = lines[host] = summed[host] = bad[host] = said[host] = 0
    held[host] = ""
}

function marker(line,    w, count) {
    count = split(line, w, " ")
    if (w[2] == "ready") ready[host] = 1
    else if (w[2] == "begin") begin_case(w[3], w[4])
    else if (w[2] == "done") done[host] = 1
    else if (w[2] == "end" && count >= 5) {
        running[host] = 0
        seconds += w[5] - w[4]
        if (libtest[host]) end_libtest(w[3] + 0)
        else end_plain(w[3] + 0)
    }
}

# A line of a libtest binary.
function libtest_line(line,    w, test) {
    if (match(line, /@cannot [^ ]+: .*/)) {
        split(substr(line, RSTART + 8), w, ": ")
        cannot[host, kind[host], w[1]] = substr(line, RSTART + 8 + length(w[1]) + 2)
        line = substr(line, 1, RSTART - 1)
        if (line !~ /^test /) return
    }
    # With one thread libtest prints a name first and its verdict when it has it.
    if (line ~ /^test .* \.\.\. $/) { held[host] = line; return }
    if (held[host] != "" && line ~ /^(ok|FAILED|ignored)/) { line = held[host] line; held[host] = "" }
    if (line ~ /^test .* \.\.\. /) {
        test = line
        sub(/^test /, "", test)
        sub(/ \.\.\. .*/, "", test)
        sub(/^test .* \.\.\. /, "", line)
        if (line ~ /^ok/ && (host, kind[host], test) in cannot) line = "ignored, " cannot[host, kind[host], test]
        verdict(test, line)
        if (line ~ /^ok/) passed++
        else if (line ~ /^ignored/) ignored++
        else { failed++; bad[host]++ }
    } else if (line ~ /^test result: /) {
        summed[host] = 1
        if (match(line, /[0-9]+ filtered out/)) filtered += substr(line, RSTART) + 0
    } else if (line !~ /^running [0-9]+ tests?$/ && (line != "" || said[host])) {
        print line
        fflush()
        said[host] = line != ""
    }
}

{
    host = $1
    line = $0
    sub(/^[^ ]* /, "", line)
    sub(/\r$/, "", line)
    if (line ~ /^@lab /) marker(line)
    else if (!running[host]) next
    else if (libtest[host]) libtest_line(line)
    else if (line ~ /^running [0-9]+ tests?$/ && !lines[host]) libtest[host] = 1
    else if (line != "" || lines[host]) output[host, ++lines[host]] = line
}

END {
    for (host = 1; host <= hosts; host++) {
        if (done[host]) continue
        broken = 1
        if (!running[host]) continue
        fail(name[host], "FAILED (the guest ended during it)")
        if (!libtest[host]) show_output()
    }
    if (!broken && passed + failed + ignored == 0) { print "no test ran"; broken = 1 }
    printf "\ntest result: %s. %d passed; %d failed; %d ignored; 0 measured; %d filtered out; finished in %.2fs\n\n",
        (failed || broken) ? "FAILED" : "ok", passed, failed, ignored, filtered, seconds
    exit broken ? 2 : failed > 0
}
