//! Generated files, compared with those in `tests/snapshots`.
//!
//! After an intended change: `UPDATE_SNAPSHOTS=1 cargo test -p verbwire-codegen`, and review the difference.

use std::{env, fs, path::Path};

use verbwire_codegen::{Builder, configure};

use crate::scratch::{Scratch, read_folder};

fn check(name: &str, protos: &[&str]) {
    check_with(configure(), name, protos);
}

fn check_with(builder: Builder, name: &str, protos: &[&str]) {
    let scratch = Scratch::new(&format!("snapshot_{name}"));
    let written = scratch.compile_shared(builder, protos).written();

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        if folder.exists() {
            fs::remove_dir_all(&folder).expect("old snapshots can be removed");
        }
        fs::create_dir_all(&folder).expect("the snapshot folder can be made");
        for (file, text) in &written {
            fs::write(folder.join(file), text).expect("a snapshot can be written");
        }
    }

    let expected = read_folder(&folder);
    let files: Vec<_> = expected.keys().collect();
    assert_eq!(written.keys().collect::<Vec<_>>(), files, "files of {name}");
    for (file, text) in &written {
        assert!(
            *text == expected[file],
            "{name}/{file} is not what it was: {}; if that is intended, run with UPDATE_SNAPSHOTS=1",
            first_difference(&expected[file], text)
        );
    }
}

fn first_difference(expected: &str, found: &str) -> String {
    let mut lines = expected.lines().zip(found.lines()).enumerate();
    match lines.find(|(_, (expected, found))| expected != found) {
        Some((index, (expected, found))) => {
            format!("line {} was `{expected}` and is `{found}`", index + 1)
        }
        None => "one of them is longer".to_owned(),
    }
}

#[test]
fn a_service_and_its_messages() {
    check("greeter", &["greeter.proto"]);
}

#[test]
fn every_shape_of_a_call() {
    check("streams", &["streams.proto"]);
}

#[test]
fn hints_of_methods() {
    check("hints", &["hints.proto"]);
}

#[test]
fn keywords_and_names_of_the_client_itself() {
    check("keywords", &["keywords.proto"]);
}

#[test]
fn several_packages_files_and_services() {
    check("packages", &["packages.proto"]);
}

#[test]
fn comments_and_deprecation() {
    check("comments", &["comments.proto"]);
}

#[test]
fn well_known_types() {
    check("well_known", &["well_known.proto"]);
}

#[test]
fn one_name_for_everything() {
    check("same_names", &["same_names.proto"]);
}

#[test]
fn boxed_handlers() {
    check_with(configure().async_trait(true), "async_trait", &["greeter.proto"]);
}

#[test]
fn handlers_of_an_arc_that_may_be_left_out_without_comments() {
    let builder = configure().use_arc_self(true).generate_default_stubs(true);
    check_with(builder.disable_comments(["."]), "arc_self", &["greeter.proto"]);
}

#[test]
fn well_known_types_that_are_generated() {
    let builder = configure().compile_well_known_types(true);
    check_with(builder, "well_known_compiled", &["well_known.proto"]);
}

#[test]
fn types_of_the_crate_around_the_generated_code() {
    let builder = configure().extern_path(".shop.items", "crate::shop::items");
    check_with(builder, "extern_crate", &["packages.proto"]);
}
