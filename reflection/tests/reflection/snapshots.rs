//! The committed code is what the generator makes of the `.proto` file.
//!
//! After a change of either: `UPDATE_SNAPSHOTS=1 cargo test -p verbwire-reflection snapshots`, and review the difference.

use std::path::{Path, PathBuf};
use std::{env, fs};

const FILES: [&str; 2] = ["verbwire-package.grpc.reflection.v1.rs", "reflection.bin"];

fn generate(folder: &Path) {
    let generated = verbwire_codegen::configure()
        .out_dir(folder)
        .emit_rerun_if_changed(false)
        .file_descriptor_set_path(folder.join("reflection.bin"))
        .compile(&["proto/grpc/reflection/v1/reflection.proto"], &["proto"]);
    generated.expect("the proto is valid");
}

#[test]
fn the_committed_code_is_generated() {
    let committed = PathBuf::from("src/generated");
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reflection");
    fs::create_dir_all(&fresh).expect("a scratch folder can be made");
    generate(&fresh);
    for file in FILES {
        if env::var_os("UPDATE_SNAPSHOTS").is_some() {
            fs::copy(fresh.join(file), committed.join(file)).expect("it can be written");
        }
        let [found, expected] =
            [&fresh, &committed].map(|folder| fs::read(folder.join(file)).expect("it is there"));
        assert!(
            found == expected,
            "src/generated/{file} is not what is generated; if that is intended, run with UPDATE_SNAPSHOTS=1"
        );
    }
}
