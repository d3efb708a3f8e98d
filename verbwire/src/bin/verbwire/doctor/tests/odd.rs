//! Files that no kernel should write. Nothing may panic, and nothing may be taken for well.

use std::fs;
use std::path::{Path, PathBuf};

use super::findings;
use super::machine::Machine;
use crate::doctor::finding::Level;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            files(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

fn machines() -> [Machine; 4] {
    [Machine::soft_roce(), Machine::soft_iwarp(), Machine::roce(), Machine::infiniband()]
}

#[test]
fn no_content_of_any_one_file_panics() {
    let odd: [&[u8]; 4] = [
        b"",
        b"\xff\xfe\x00\x80",
        b":::: : :\t\t-1 99999999999999999999999999",
        "driver\nü: \u{1f980}\n=\n a\tb c d e f g h i\n0::/\n5:rdma:\n::::::\n0x".as_bytes(),
    ];
    for machine in machines() {
        let mut all = Vec::new();
        files(machine.root(), &mut all);
        assert!(all.len() > 20, "{} files", all.len());
        for file in all {
            let good = fs::read(&file).expect("a file");
            for content in odd {
                fs::write(&file, content).expect("a file");
                findings(&machine);
            }
            fs::write(&file, good).expect("a file");
        }
    }
}

#[test]
fn files_that_vanish_one_by_one_never_panic() {
    for machine in machines() {
        let mut all = Vec::new();
        files(machine.root(), &mut all);
        for file in all {
            fs::remove_file(file).expect("it was there");
            findings(&machine);
        }
        assert!(findings(&machine).iter().any(|finding| finding.level == Level::Problem));
    }
}

#[test]
fn an_empty_folder_is_a_machine_without_a_device() {
    let machine = Machine::plain();
    for folder in ["sys", "proc"] {
        machine.remove(folder);
    }
    let rules: Vec<&str> = findings(&machine).iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, ["no-device"]);
}

#[test]
fn a_pipe_in_a_files_place_is_not_waited_for() {
    let machine = Machine::roce();
    let path = machine.root().join("sys/class/infiniband/mlx5_0/ports/1/rate");
    fs::remove_file(&path).expect("it was there");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
    assert!(made.success());
    assert!(findings(&machine).iter().any(|finding| finding.what.contains("unknown rate")));
}
