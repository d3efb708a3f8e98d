//! `docs/guarantees.md` against the tests: every name in its "held by" columns is a test that exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The folders in which tests are.
const FOLDERS: [&str; 6] =
    ["rpc-core", "rpc-codegen", "transport-tcp", "transport-rdma", "verbwire", "tests"];

/// What stands between backquotes in the last column of the document's tables and is a name of a function.
fn promised() -> BTreeSet<&'static str> {
    let rows =
        include_str!("../../docs/guarantees.md").lines().filter(|line| line.starts_with('|'));
    let columns = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    let quoted = columns.flat_map(|column| column.split('`').skip(1).step_by(2));
    quoted.filter(|text| text.contains('_')).collect()
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

#[test]
fn every_test_that_the_guarantees_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut found = BTreeSet::new();
    FOLDERS.iter().for_each(|folder| functions(&root.join(folder), &mut found));
    let promised = promised();
    assert!(promised.len() > 50, "only {} names were read", promised.len());
    let missing: Vec<_> = promised.into_iter().filter(|name| !found.contains(*name)).collect();
    assert!(missing.is_empty(), "no tests of these names: {missing:#?}");
}
