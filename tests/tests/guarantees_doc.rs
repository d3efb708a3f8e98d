//! `docs/guarantees.md` and `docs/from-tonic.md` against the tests: every name in their "held by" columns is a test
//! that exists, and every row about a feature of tonic has one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The folders in which tests are.
const FOLDERS: [&str; 10] = [
    "rpc-core",
    "rpc-codegen",
    "transport-tcp",
    "transport-rdma",
    "tower",
    "tonic",
    "health",
    "reflection",
    "verbwire",
    "tests",
];

const GUARANTEES: &str = include_str!("../../docs/guarantees.md");

const FROM_TONIC: &str = include_str!("../../docs/from-tonic.md");

/// What stands between backquotes in the last column of a row and is a name of a function.
fn names(row: &'static str) -> impl Iterator<Item = &'static str> {
    let column = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
    column.split('`').skip(1).step_by(2).filter(|text| text.contains('_'))
}

fn rows(document: &'static str) -> impl Iterator<Item = &'static str> {
    document.lines().filter(|line| line.starts_with('|'))
}

fn promised(document: &'static str) -> BTreeSet<&'static str> {
    rows(document).flat_map(names).collect()
}

fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("readable").path();
        if path.is_dir() && !path.ends_with("target") {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("source is UTF-8");
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split('(').next());
            found.extend(names.map(str::to_owned));
        }
    }
}

fn assert_exist(promised: &BTreeSet<&str>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut found = BTreeSet::new();
    FOLDERS.iter().for_each(|folder| functions(&root.join(folder), &mut found));
    let missing: Vec<_> = promised.iter().filter(|name| !found.contains(**name)).collect();
    assert!(missing.is_empty(), "no tests of these names: {missing:#?}");
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    let promised = promised(GUARANTEES);
    assert!(promised.len() > 50, "only {} names were read", promised.len());
    assert_exist(&promised);
}

#[test]
fn every_feature_of_tonic_has_a_test_that_exists() {
    let promised = promised(FROM_TONIC);
    assert!(promised.len() > 40, "only {} names were read", promised.len());
    assert_exist(&promised);
    // A table with a column of tests has three, and a row of one without a test promises nothing.
    let three = rows(FROM_TONIC).filter(|row| row.matches(" | ").count() == 2);
    let is_head = |row: &str| row.ends_with("| held by |");
    let bare: Vec<_> = three.filter(|row| !is_head(row) && names(row).next().is_none()).collect();
    assert!(bare.is_empty(), "rows without a test: {bare:#?}");
}
