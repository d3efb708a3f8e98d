//! The device lab, seen from inside a guest: its variables and its programs.

use std::env;
use std::process::Command;

use tokio::task::spawn_blocking;

/// What the lab says of the device under test or of the guest, by the variable's name.
///
/// # Errors
///
/// This is not a guest of the lab; says how to run in one.
pub fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set: run this with tests/lab/lab"))
}

/// Runs a program of the guest and returns what it printed. In the words of `line`, `DEVICE`, `KIND` and `NETDEV` stand for those of
/// the device under test. Off the runtime: deleting a device waits until nobody uses it.
///
/// # Errors
///
/// It does not run, or fails; says what it printed.
pub async fn run(line: &str) -> Result<String, String> {
    let line = line
        .replace("DEVICE", &variable("LAB_DEVICE")?)
        .replace("KIND", &variable("LAB_KIND")?)
        .replace("NETDEV", &variable("LAB_NETDEV")?);
    let failed = format!("'{line}' failed");
    let running = spawn_blocking(move || {
        let mut words = line.split(' ');
        Command::new(words.next().unwrap_or_default()).args(words).output()
    });
    let ran = running.await.map_err(|error| format!("{failed}: {error}"))?;
    let ran = ran.map_err(|error| format!("{failed}: {error}"))?;
    if !ran.status.success() {
        return Err(format!("{failed}: {}", String::from_utf8_lossy(&ran.stderr)));
    }
    String::from_utf8(ran.stdout).map_err(|error| format!("{failed}: {error}"))
}
